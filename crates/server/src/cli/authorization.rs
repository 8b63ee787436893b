//! `relais authorization`

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use relais_protocol::admin::{AuthorizationDeclaration, AuthorizationStates, RoleName};

use super::{
    apply::show_report,
    args::{client_id, service_name},
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, or_none, table},
};

/// `relais authorization`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct AuthorizationArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: AuthorizationCommand,
}

#[derive(Debug, Subcommand)]
enum AuthorizationCommand {
    /// List who may do what
    List {
        /// Only of this client
        #[arg(long, value_parser = client_id)]
        client: Option<String>,
        /// Only on this service
        #[arg(long, value_parser = service_name)]
        service: Option<String>,
    },
    /// Say what a client may do on a service
    ///
    /// The authorization is then as this command says; what it said before is replaced.
    Put {
        /// The client
        #[arg(value_parser = client_id)]
        client: String,
        /// The service
        #[arg(value_parser = service_name)]
        service: String,
        /// What it may do; may be given twice
        #[arg(long = "role", value_name = "ROLE", required = true, value_delimiter = ',')]
        roles: Vec<RoleArg>,
        /// Refuse this client's tasks while it has this many pending there; no limit by default
        #[arg(long, value_name = "N")]
        capacity: Option<u32>,
        /// Have at most this many of its tasks running there at once; the service's limit by default
        #[arg(long, value_name = "N")]
        max_running: Option<u32>,
        /// How much it weighs where clients take turns; 1 by default
        #[arg(long, value_name = "N")]
        share: Option<u32>,
    },
    /// Take everything from a client on a service
    Delete {
        /// The client
        #[arg(value_parser = client_id)]
        client: String,
        /// The service
        #[arg(value_parser = service_name)]
        service: String,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleArg {
    /// Submit tasks and follow one's own
    Consume,
    /// Take tasks and report on them
    Work,
}

impl From<RoleArg> for RoleName {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Consume => Self::Consume,
            RoleArg::Work => Self::Work,
        }
    }
}

/// Runs `relais authorization`.
pub async fn run(args: AuthorizationArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        AuthorizationCommand::List { client, service } => {
            let request = Request::get(["admin", "authorizations"]).with("clientId", client).with("service", service);
            server.print(request, show_authorizations).await?;
        }
        AuthorizationCommand::Put { client, service, roles, capacity, max_running, share } => {
            let roles = roles.into_iter().map(RoleName::from).collect();
            let declaration = AuthorizationDeclaration {
                client_id: client,
                service_name: service,
                roles,
                capacity,
                max_running,
                share,
            };
            let path = ["admin", "authorizations", &declaration.client_id, &declaration.service_name];
            server.print(Request::put(path, &declaration)?, show_report).await?;
        }
        AuthorizationCommand::Delete { client, service } => {
            server.print(Request::delete(["admin", "authorizations", &client, &service]), show_report).await?;
        }
    }
    Ok(())
}

fn show_authorizations(states: &AuthorizationStates) -> String {
    let rows = states.authorizations.iter().map(|entry| {
        let roles = entry.roles.iter().map(|role| match role {
            RoleName::Consume => "consume",
            RoleName::Work => "work",
        });
        let roles = roles.collect::<Vec<_>>().join(",");
        [
            entry.client_id.clone(),
            entry.service_name.clone(),
            roles,
            or_none(entry.capacity),
            or_none(entry.max_running),
            entry.share.unwrap_or(1).to_string(),
        ]
    });
    let columns =
        [Left("CLIENT"), Left("SERVICE"), Left("ROLES"), Right("CAPACITY"), Right("MAX RUNNING"), Right("SHARE")];
    table(columns, rows, "There are no authorizations. `relais authorization put CLIENT SERVICE` makes one.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorizations_are_listed_one_per_line() {
        let authorizations = vec![AuthorizationDeclaration {
            client_id: "web".to_owned(),
            service_name: "resize".to_owned(),
            roles: vec![RoleName::Consume, RoleName::Work],
            capacity: None,
            max_running: Some(3),
            share: None,
        }];
        assert_eq!(
            show_authorizations(&AuthorizationStates { authorizations }),
            "CLIENT  SERVICE  ROLES         CAPACITY  MAX RUNNING  SHARE\n\
             web     resize   consume,work         -            3      1"
        );
    }
}
