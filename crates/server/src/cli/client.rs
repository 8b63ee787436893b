//! `relais client`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_protocol::{
    HumanDuration,
    admin::{
        ClientDeclaration, ClientSecret, ClientStates, NotificationRightsDeclaration, SecretDeclaration,
        TicketDeclaration,
    },
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
    /// Create a client, or give it the secret or the rights for notifications that you say
    ///
    /// A new client without a given secret gets one that is printed this once. A client that is there keeps its own.
    /// `--emit`, `--audience` and `--ticket` together replace its rights for notifications; without any of them it keeps
    /// those it has.
    Put {
        /// The client: the user part of its Basic credentials
        #[arg(value_parser = client_id)]
        id: String,
        /// Environment variable that holds the secret, which thus is in no shell history
        #[arg(long, value_name = "NAME")]
        secret_env: Option<String>,
        #[command(flatten)]
        rights: RightsArgs,
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

/// What a client may do with notifications.
#[derive(Debug, Default, Args)]
struct RightsArgs {
    /// Types of audience that it may send notifications to, e.g. USER,GROUP; '*' for all
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    emit: Option<Vec<String>>,
    /// Types of audience whose members it may change; '*' for all
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    audience: Option<Vec<String>>,
    /// It may ask for tickets on behalf of users: tickets that name the user only, or also these types; '*' for all
    #[arg(long, value_name = "TYPES", num_args = 0..=1, require_equals = true)]
    ticket: Option<Option<String>>,
    /// Take away all its rights for notifications
    #[arg(long, conflicts_with_all = ["emit", "audience", "ticket"])]
    no_notifications: bool,
}

impl RightsArgs {
    /// What to declare; none leaves the rights as they are.
    fn declaration(self) -> Option<NotificationRightsDeclaration> {
        let Self { emit, audience, ticket, no_notifications } = self;
        let said = no_notifications || emit.is_some() || audience.is_some() || ticket.is_some();
        said.then(|| NotificationRightsDeclaration {
            emit: emit.unwrap_or_default(),
            audience: audience.unwrap_or_default(),
            ticket: ticket.map(|types| match types {
                None => TicketDeclaration::Allowed(true),
                Some(types) => TicketDeclaration::Types(types.split(',').map(str::to_owned).collect()),
            }),
        })
    }
}

/// Runs `relais client`.
pub async fn run(args: ClientArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        ClientCommand::List => {
            server.print(Request::get(["admin", "clients"]), show_clients).await?;
        }
        ClientCommand::Put { id, secret_env, rights } => {
            let secret = secret_env.map(|name| declarations::resolve(&name, |name| std::env::var(name).ok()));
            let client_secret = secret.transpose()?.map(SecretDeclaration::Plain);
            let declaration = ClientDeclaration {
                client_id: id,
                client_secret,
                signing_secret: None,
                destinations: None,
                notifications: rights.declaration(),
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
    let rows = states.clients.iter().map(|client| {
        let rights = client.notifications.clone().unwrap_or_default();
        let ticket = match rights.ticket {
            None | Some(TicketDeclaration::Allowed(false)) => String::new(),
            Some(TicketDeclaration::Allowed(true)) => "user only".to_owned(),
            Some(TicketDeclaration::Types(types)) => types.join(","),
        };
        let services = client.authorizations.to_string();
        [client.client_id.clone(), services, rights.emit.join(","), rights.audience.join(","), ticket]
    });
    let columns = [Left("CLIENT"), Right("SERVICES"), Left("EMIT"), Left("AUDIENCE"), Left("TICKET")];
    table(columns, rows, "There are no clients. `relais client put ID` makes one.")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use relais_protocol::admin::ClientState;

    use super::*;

    #[test]
    fn clients_are_listed_one_per_line() {
        let client = |id: &str, notifications| ClientState {
            client_id: id.to_owned(),
            authorizations: 2,
            destinations: Vec::new(),
            notifications,
        };
        let rights = NotificationRightsDeclaration {
            emit: vec!["GROUP".to_owned(), "USER".to_owned()],
            audience: vec!["*".to_owned()],
            ticket: Some(TicketDeclaration::Allowed(true)),
        };
        let clients = vec![client("shop", Some(rights)), client("web", None)];
        let lines = [
            "CLIENT  SERVICES  EMIT        AUDIENCE  TICKET",
            "shop           2  GROUP,USER  *         user only",
            "web            2  -           -         -",
        ];
        assert_eq!(show_clients(&ClientStates { clients }), lines.join("\n"));
    }

    #[test]
    fn rights_that_are_not_said_stay_as_they_are() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            rights: RightsArgs,
        }
        let declared = |line: &str| {
            let line = Line::try_parse_from(["put"].into_iter().chain(line.split_whitespace())).unwrap();
            line.rights.declaration().map(|rights| serde_json::to_string(&rights).unwrap())
        };
        for (line, expected) in [
            ("", None),
            ("--no-notifications", Some("{}")),
            ("--emit USER,GROUP", Some(r#"{"emit":["USER","GROUP"]}"#)),
            ("--emit * --audience GROUP --ticket", Some(r#"{"emit":["*"],"audience":["GROUP"],"ticket":true}"#)),
            ("--ticket=GROUP,ROLE", Some(r#"{"ticket":["GROUP","ROLE"]}"#)),
        ] {
            assert_eq!(declared(line).as_deref(), expected, "{line}");
        }
        assert!(Line::try_parse_from(["put", "--no-notifications", "--ticket"]).is_err());
    }
}
