//! `relais audience`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_notify::{
    AudienceKey,
    wire::{MembersAnswer, MembersPage, MembersRequest, TargetName},
};

use relais_protocol::audience::{AudienceDeclaration, AudienceState, AudienceStates};

use super::{
    apply::show_report,
    connection::{Connection, ConnectionArgs, Request},
    service::confirm,
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais audience`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct AudienceArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: AudienceCommand,
}

#[derive(Debug, Subcommand)]
enum AudienceCommand {
    /// List the declared audiences: types, and targets whose members a declaration decides
    List,
    /// Show a declared type or a declared audience, with its members
    Show {
        #[command(flatten)]
        audience: DeclaredArgs,
    },
    /// Delete a declared type, or a declared audience with its members
    Delete {
        #[command(flatten)]
        audience: DeclaredArgs,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// List the members of an audience, in the order of their names
    Members {
        #[command(flatten)]
        audience: WhichArgs,
        /// How many at most, 1 to 10000
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Go on where the last listing ended; it says with what
        #[arg(long, value_name = "MEMBER")]
        after: Option<String>,
    },
    /// Give an audience exactly these members
    Set {
        #[command(flatten)]
        audience: WhichArgs,
        /// The members: ann for a user, TYPE:TARGET for an audience with all its members
        #[arg(value_name = "MEMBER", required_unless_present = "none", value_parser = member)]
        members: Vec<AudienceKey>,
        /// No members at all
        #[arg(long, conflicts_with = "members")]
        none: bool,
    },
    /// Add members to an audience
    Add {
        #[command(flatten)]
        audience: WhichArgs,
        /// The members: ann for a user, TYPE:TARGET for an audience with all its members
        #[arg(value_name = "MEMBER", required = true, value_parser = member)]
        members: Vec<AudienceKey>,
    },
    /// Remove members from an audience
    Remove {
        #[command(flatten)]
        audience: WhichArgs,
        /// The members: ann for a user, TYPE:TARGET for an audience
        #[arg(value_name = "MEMBER", required = true, value_parser = member)]
        members: Vec<AudienceKey>,
    },
}

#[derive(Debug, Args)]
struct DeclaredArgs {
    /// The type of audience, e.g. GROUP
    #[arg(value_name = "TYPE", value_parser = name)]
    kind: String,
    /// The target, e.g. teachers; none for the type itself
    #[arg(value_parser = name)]
    target: Option<String>,
}

impl DeclaredArgs {
    fn get(&self) -> Request<'_> {
        match &self.target {
            Some(target) => Request::get(["admin", "audiences", &self.kind, target]),
            None => Request::get(["admin", "audiences", &self.kind]),
        }
    }

    fn delete(&self) -> Request<'_> {
        match &self.target {
            Some(target) => Request::delete(["admin", "audiences", &self.kind, target]),
            None => Request::delete(["admin", "audiences", &self.kind]),
        }
    }

    fn question(&self) -> String {
        match &self.target {
            Some(target) => format!("Delete audience {}:{target}, with its declared members?", self.kind),
            None => format!("Delete the type of audience {}?", self.kind),
        }
    }
}

#[derive(Debug, Args)]
struct WhichArgs {
    /// The type of audience, e.g. GROUP
    #[arg(value_name = "TYPE", value_parser = name)]
    kind: String,
    /// The target, e.g. teachers
    #[arg(value_parser = name)]
    target: String,
}

impl WhichArgs {
    fn path(&self) -> [&str; 5] {
        ["admin", "audiences", &self.kind, &self.target, "members"]
    }
}

/// Reads a part of an address.
fn name(text: &str) -> Result<String, String> {
    match text {
        "" => Err("is empty".to_owned()),
        "." | ".." => Err(format!("{text} can not be a part of an address")),
        _ => Ok(text.to_owned()),
    }
}

/// Reads `TYPE:TARGET`. A target may have colons in it.
pub(super) fn target(text: &str) -> Result<AudienceKey, String> {
    match text.split_once(':') {
        Some((kind, target)) if !kind.is_empty() && !target.is_empty() => {
            Ok(AudienceKey::new(name(kind)?, name(target)?))
        }
        _ => Err("write it like USER:ann or GROUP:teachers".to_owned()),
    }
}

/// Reads a member: a user's name, or `TYPE:TARGET`. A user whose name has a colon in it is written with the type.
fn member(text: &str) -> Result<AudienceKey, String> {
    if text.is_empty() {
        return Err("write it like ann or GROUP:1b".to_owned());
    }
    if text.contains(':') { target(text) } else { Ok(AudienceKey::user(name(text)?)) }
}

/// Runs `relais audience`.
pub async fn run(args: AudienceArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        AudienceCommand::List => {
            server.print(Request::get(["admin", "audiences"]), show_audiences).await?;
        }
        AudienceCommand::Show { audience } => {
            server.print(audience.get(), show_audience).await?;
        }
        AudienceCommand::Delete { audience, yes } => {
            if !yes {
                confirm(&audience.question())?;
            }
            server.print(audience.delete(), show_report).await?;
        }
        AudienceCommand::Members { audience, limit, after } => {
            let request = Request::get(audience.path()).with("limit", Some(limit)).with("after", after);
            let page: Option<MembersPage> = server.print(request, show_members).await?;
            if let Some(next) = page.and_then(|page| page.next) {
                let next = next.replace('\'', r"'\''");
                output::note(&format!("There may be more: --after '{}'", output::printable(&next)));
            }
        }
        AudienceCommand::Set { audience, members, none: _ } => {
            server.print(Request::put(audience.path(), &wanted(members))?, show_change).await?;
        }
        AudienceCommand::Add { audience, members } => {
            server.print(Request::post(audience.path(), Some(&wanted(members)))?, show_change).await?;
        }
        AudienceCommand::Remove { audience, members } => {
            let [admin, audiences, kind, target, route] = audience.path();
            server
                .print_each(
                    &members,
                    |member| Request::delete([admin, audiences, kind, target, route, &member.kind, &member.target]),
                    show_change,
                )
                .await?;
        }
    }
    Ok(())
}

fn wanted(members: Vec<AudienceKey>) -> MembersRequest {
    MembersRequest { members: members.into_iter().map(TargetName::from).collect() }
}

fn show_audiences(states: &AudienceStates) -> String {
    let rows = states.audiences.iter().map(|state| {
        let AudienceDeclaration { kind, target, .. } = &state.declaration;
        [
            kind.clone(),
            or_none(target.as_deref()),
            or_none(target.as_ref().map(|_| state.declared_members)),
            or_none(trouble(state)),
        ]
    });
    let columns = [Left("TYPE"), Left("TARGET"), Right("MEMBERS"), Left("TROUBLE")];
    table(columns, rows, "No audiences are declared. `relais apply` declares them.")
}

fn trouble(state: &AudienceState) -> Option<&str> {
    let removing = || state.removing.then_some("its members are being removed");
    state.trouble.as_deref().or_else(removing)
}

fn show_audience(state: &AudienceState) -> String {
    let AudienceDeclaration { kind, target, members } = &state.declaration;
    let head = card([
        ("type", Some(kind.clone())),
        ("target", target.clone()),
        ("trouble", trouble(state).map(str::to_owned)),
    ]);
    if target.is_none() {
        return head;
    }
    let rows = members.iter().map(|member| [member.kind.clone(), member.target.clone()]);
    format!("{head}\n\n{}", table([Left("TYPE"), Left("TARGET")], rows, "It has no members."))
}

fn show_members(page: &MembersPage) -> String {
    let rows = page.members.iter().map(|member| [member.kind.clone(), member.target.clone()]);
    table([Left("TYPE"), Left("TARGET")], rows, "It has no members.")
}

fn show_change(answer: &MembersAnswer) -> String {
    format!("{} joined, {} left", answer.joined, answer.left)
}

#[cfg(test)]
mod tests {
    use relais_notify::USER;

    use super::*;

    #[test]
    fn a_member_is_a_user_or_another_audience() {
        assert_eq!(member("ann"), Ok(AudienceKey::new(USER, "ann")));
        assert_eq!(member("GROUP:1b"), Ok(AudienceKey::new("GROUP", "1b")));
        assert_eq!(member("USER:urn:ann"), Ok(AudienceKey::new(USER, "urn:ann")));
        for wrong in ["", ":", "GROUP:", ":ann", "..", "GROUP:."] {
            assert!(member(wrong).is_err(), "{wrong:?} was read");
        }
        assert!(target("ann").is_err(), "a target has a type");
    }

    #[test]
    fn members_are_listed_one_per_line() {
        let members = vec![AudienceKey::new("GROUP", "1b").into(), AudienceKey::user("ann").into()];
        let text = show_members(&MembersPage { members, next: None });
        assert_eq!(text, "TYPE   TARGET\nGROUP  1b\nUSER   ann");
    }
}
