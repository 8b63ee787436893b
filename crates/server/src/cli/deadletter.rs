//! `relais deadletter`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_protocol::broker::{DeadLetterView, DeadLetters, LettersAnswer, LettersRequest};

use super::{
    args::service_name,
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais deadletter`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct DeadLetterArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: DeadLetterCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLetterCommand {
    /// List messages of workers that could not be understood, the oldest first
    List {
        /// Only of this service
        #[arg(long, value_parser = service_name)]
        service: Option<String>,
        /// How many at most, 1 to 200
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
    },
    /// Show one of them, whole
    Show {
        /// The service
        #[arg(value_parser = service_name)]
        service: String,
        /// The message
        id: String,
    },
    /// Put them back to be understood once more, e.g. after an upgrade, or once the task is there
    Replay(WhichArgs),
    /// Forget them
    Discard(WhichArgs),
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["ids", "all"])))]
struct WhichArgs {
    /// The service
    #[arg(value_parser = service_name)]
    service: String,
    /// The messages
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All of the service
    #[arg(long)]
    all: bool,
}

impl WhichArgs {
    fn request<'a>(&'a self, verb: &'a str) -> Result<Request<'a>> {
        let asked = LettersRequest { ids: (!self.all).then(|| self.ids.clone()) };
        Request::post(["admin", "deadletters", &self.service, verb], Some(&asked))
    }
}

/// Runs `relais deadletter`.
pub async fn run(args: DeadLetterArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        DeadLetterCommand::List { service, limit } => {
            let request = Request::get(["admin", "deadletters"]).with("service", service).with("limit", Some(limit));
            server.print(request, show_letters).await?;
        }
        DeadLetterCommand::Show { service, id } => {
            server.print(Request::get(["admin", "deadletters", &service, &id]), show_letter).await?;
        }
        DeadLetterCommand::Replay(which) => {
            let said = |answer: &LettersAnswer| format!("{} put back", answer.count);
            server.print(which.request("replay")?, said).await?;
        }
        DeadLetterCommand::Discard(which) => {
            let said = |answer: &LettersAnswer| format!("{} forgotten", answer.count);
            server.print(which.request("discard")?, said).await?;
        }
    }
    Ok(())
}

fn show_letters(letters: &DeadLetters) -> String {
    let columns = [Left("ID"), Left("SERVICE"), Left("SET ASIDE"), Left("REASON"), Left("MESSAGE")];
    let rows = letters.dead_letters.iter().map(|letter| {
        let line: String = letter.message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
        [letter.id.clone(), letter.service.clone(), or_none(letter.date.as_deref()), letter.reason.clone(), line]
    });
    table(columns, rows, "There are no dead letters.")
}

fn show_letter(letter: &DeadLetterView) -> String {
    let head = card([
        ("Message", Some(letter.id.clone())),
        ("Service", Some(letter.service.clone())),
        ("Set aside", letter.date.clone()),
        ("Reason", Some(letter.reason.clone())),
        ("Bytes", Some(letter.bytes.to_string())),
    ]);
    format!("{head}\n\n{}", output::printable(&letter.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_a_list_whatever_it_says() {
        let letter = DeadLetterView {
            id: "a".to_owned(),
            service: "resize".to_owned(),
            reason: "not a message".to_owned(),
            date: None,
            bytes: 3,
            message: "a\nb".to_owned(),
        };
        let shown = show_letters(&DeadLetters { dead_letters: vec![letter.clone()] });
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(show_letter(&letter).ends_with("a\nb"));
    }
}
