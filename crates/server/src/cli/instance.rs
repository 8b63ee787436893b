//! `relais instance`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_protocol::instance::{DecisionName, Instances, ResolveAnswer, ResolveRequest};

use super::{
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, or_none, table},
};

/// `relais instance`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct InstanceArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: InstanceCommand,
}

#[derive(Debug, Subcommand)]
enum InstanceCommand {
    /// List the instances on the store, their last heartbeats and how many tasks they have leased
    List,
    /// Decide what becomes of the tasks of an instance that died
    ///
    /// Only for one whose crash policy is `refuse`: its tasks wait for this, and so does its next start.
    Resolve {
        /// The instance's name
        name: String,
        #[command(flatten)]
        decision: DecisionArgs,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct DecisionArgs {
    /// Its tasks are done again
    #[arg(long)]
    restart: bool,
    /// Its tasks fail
    #[arg(long)]
    fail: bool,
}

/// Runs `relais instance`.
pub async fn run(args: InstanceArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        InstanceCommand::List => {
            server.print(Request::get(["admin", "instances"]), show_instances).await?;
        }
        InstanceCommand::Resolve { name, decision } => {
            let decision = if decision.fail { DecisionName::Fail } else { DecisionName::Restart };
            let request = Request::post(["admin", "instances", &name, "resolve"], Some(&ResolveRequest { decision }))?;
            let said = move |answer: &ResolveAnswer| match decision {
                DecisionName::Fail => format!("{} tasks have failed.", answer.tasks),
                DecisionName::Restart => format!("{} tasks are done again.", answer.tasks),
            };
            server.print(request, said).await?;
        }
    }
    Ok(())
}

fn show_instances(known: &Instances) -> String {
    let columns = [
        Left("INSTANCE"),
        Left("STATUS"),
        Left("HOST"),
        Left("VERSION"),
        Left("IF IT DIES"),
        Right("LEASED"),
        Left("STARTED"),
        Left("LAST SEEN"),
    ];
    let rows = known.instances.iter().map(|instance| {
        [
            instance.name.clone(),
            instance.status.clone(),
            or_none(instance.host_name.as_deref()),
            instance.version.clone(),
            instance.crash_policy.clone(),
            instance.in_hand.to_string(),
            instance.start_date.clone(),
            instance.last_seen_date.clone(),
        ]
    });
    table(columns, rows, "There are no instances.")
}
