//! `relais client`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_protocol::{
    HumanDuration,
    admin::{ClientDeclaration, ClientSecret, ClientStates, SecretDeclaration},
    callback::{RotateSigningRequest, SigningSecrets},
};

use super::{
    apply::{note_secrets, show_report},
    args::{client_id, duration},
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, or_none, table},
};
use crate::{declarations, output};

/// `relais client`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct ClientArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: ClientCommand,
}

#[derive(Debug, Subcommand)]
enum ClientCommand {
    /// List the clients
    List,
    /// Create a client, or give it the secret you say
    ///
    /// A new client without a given secret gets one that is printed this once. A client that is there keeps its own.
    Put {
        /// The client: the user part of its Basic credentials
        #[arg(value_parser = client_id)]
        id: String,
        /// Environment variable that holds the secret, which thus is in no shell history
        #[arg(long, value_name = "NAME")]
        secret_env: Option<String>,
    },
    /// Give a client a new secret, and print it this once; the old one ends
    Rotate {
        /// The client
        #[arg(value_parser = client_id)]
        id: String,
    },
    /// Show what a client's callbacks are signed with, or sign them with a new secret
    SigningSecret {
        /// The client
        #[arg(value_parser = client_id)]
        id: String,
        /// Make a new one; the old one is used as well for a while
        #[arg(long)]
        rotate: bool,
        /// For how long, e.g. 24h
        #[arg(long, value_name = "DURATION", value_parser = duration, requires = "rotate")]
        overlap: Option<HumanDuration>,
    },
    /// Delete a client and its authorizations; its tasks stay until they are purged
    Delete {
        /// The client
        #[arg(value_parser = client_id)]
        id: String,
    },
}

/// Runs `relais client`.
pub async fn run(args: ClientArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        ClientCommand::List => {
            server.print(Request::get(["admin", "clients"]), show_clients).await?;
        }
        ClientCommand::Put { id, secret_env } => {
            let secret = secret_env.map(|name| declarations::resolve(&name, |name| std::env::var(name).ok()));
            let client_secret = secret.transpose()?.map(SecretDeclaration::Plain);
            let declaration = ClientDeclaration {
                client_id: id,
                client_secret,
                signing_secret: None,
                destinations: None,
                notifications: None,
            };
            let request = Request::put(["admin", "clients", &declaration.client_id], &declaration)?;
            if let Some(report) = server.print(request, show_report).await? {
                note_secrets(&report);
            }
        }
        ClientCommand::Rotate { id } => {
            let request = Request::call(["admin", "clients", &id, "secret"]);
            let shown = server.print(request, |secret: &ClientSecret| secret.client_secret.clone()).await?;
            if shown.is_some() {
                output::note(&format!("This is the new secret of {id}. It is not shown again."));
            }
        }
        ClientCommand::SigningSecret { id, rotate, overlap } => {
            let path = ["admin", "clients", &id, "signing-secrets"];
            let request = match rotate {
                true => Request::post(path, Some(&RotateSigningRequest { overlap }))?,
                false => Request::get(path),
            };
            server.print(request, show_signing_secrets).await?;
        }
        ClientCommand::Delete { id } => {
            server.print(Request::delete(["admin", "clients", &id]), show_report).await?;
        }
    }
    Ok(())
}

fn show_signing_secrets(signing: &SigningSecrets) -> String {
    let rows = signing
        .secrets
        .iter()
        .map(|one| [one.secret.clone(), one.created_date.clone(), or_none(one.expires_date.as_deref())]);
    table(
        [Left("SECRET"), Left("SINCE"), Left("UNTIL")],
        rows,
        "Its callbacks are not signed; make a secret with --rotate.",
    )
}

fn show_clients(states: &ClientStates) -> String {
    let rows = states.clients.iter().map(|client| [client.client_id.clone(), client.authorizations.to_string()]);
    table([Left("CLIENT"), Right("SERVICES")], rows, "There are no clients. `relais client put ID` makes one.")
}

#[cfg(test)]
mod tests {
    use relais_protocol::admin::ClientState;

    use super::*;

    #[test]
    fn clients_are_listed_one_per_line() {
        let clients = vec![ClientState {
            client_id: "web".to_owned(),
            authorizations: 2,
            destinations: Vec::new(),
            notifications: None,
        }];
        assert_eq!(show_clients(&ClientStates { clients }), "CLIENT  SERVICES\nweb            2");
    }
}
