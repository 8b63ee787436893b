//! `relais callback`

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use relais_core::CallbackId;
use relais_protocol::{
    HumanDuration,
    callback::{CallbackAttemptView, CallbackPageView, CallbackView, RedeliverAnswer, RedeliverRequest},
};

use super::{
    args::{client_id, service_name, task_id},
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais callback`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct CallbackArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: CallbackCommand,
}

#[derive(Debug, Subcommand)]
enum CallbackCommand {
    /// List callbacks, the newest first
    List(ListArgs),
    /// Show a callback and every try to send it
    Show {
        /// The callback: the webhook-id that its receiver saw
        #[arg(value_parser = callback_id)]
        callback_id: String,
    },
    /// Send a callback again, or all that failed since a time
    ///
    /// Receivers see the same webhook-id as before, so those that drop doubles do nothing twice.
    Redeliver(RedeliverArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only of this service
    #[arg(long, value_parser = service_name)]
    service: Option<String>,
    /// Only of this client
    #[arg(long, value_parser = client_id)]
    client: Option<String>,
    /// Only of this task
    #[arg(long, value_parser = task_id)]
    task: Option<String>,
    /// Only with this status: pending, success, failure
    #[arg(long, value_parser = status)]
    status: Option<String>,
    /// Only those that came to be at this time or later: 2026-01-31T12:00:00Z, or 2h for the last two hours
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// How many at most, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Go on where the last listing ended; it says with what
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["callback_id", "failed_since"])))]
struct RedeliverArgs {
    /// The callback: the webhook-id that its receiver saw
    #[arg(value_parser = callback_id)]
    callback_id: Option<String>,
    /// All that failed since then: 2026-01-31T12:00:00Z, or 2h for the last two hours
    #[arg(long, value_name = "TIME", value_parser = moment)]
    failed_since: Option<Timestamp>,
    /// Of those, only of this service
    #[arg(long, value_parser = service_name, requires = "failed_since")]
    service: Option<String>,
    /// Of those, only of this client
    #[arg(long, value_parser = client_id, requires = "failed_since")]
    client: Option<String>,
}

/// Runs `relais callback`.
pub async fn run(args: CallbackArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        CallbackCommand::List(list) => {
            let request = Request::get(["admin", "callbacks"])
                .with("service", list.service)
                .with("clientId", list.client)
                .with("taskId", list.task)
                .with("status", list.status)
                .with("from", list.since)
                .with("limit", Some(list.limit))
                .with("cursor", list.cursor);
            let page: Option<CallbackPageView> = server.print(request, show_callbacks).await?;
            if let Some(cursor) = page.and_then(|page| page.next_cursor) {
                output::note(&format!("There may be more: --cursor {cursor}"));
            }
        }
        CallbackCommand::Show { callback_id } => {
            server.print(Request::get(["admin", "callbacks", &callback_id]), show_callback).await?;
        }
        CallbackCommand::Redeliver(RedeliverArgs { callback_id: Some(id), .. }) => {
            let request = Request::call(["admin", "callbacks", &id, "redeliver"]);
            server.print(request, show_callback).await?;
        }
        CallbackCommand::Redeliver(RedeliverArgs { failed_since, service, client, .. }) => {
            let Some(since) = failed_since else { bail!("say which one, or --failed-since TIME") };
            let asked = RedeliverRequest { failed_since: since.to_string(), service, client_id: client };
            let request = Request::post(["admin", "callbacks", "redeliver"], Some(&asked))?;
            server
                .print(request, |answer: &RedeliverAnswer| format!("{} to be sent again", answer.redelivered))
                .await?;
        }
    }
    Ok(())
}

fn status(text: &str) -> Result<String, String> {
    let text = text.trim().to_uppercase();
    match text.as_str() {
        "PENDING" | "SUCCESS" | "FAILURE" => Ok(text),
        _ => Err("expected pending, success or failure".to_owned()),
    }
}

fn callback_id(text: &str) -> Result<String, String> {
    CallbackId::parse(text)
        .map(|id| id.to_string())
        .ok_or_else(|| "a callback's id is like 01890a5d-ac96-774b-bcce-b302099a8057-3".to_owned())
}

/// A moment, or how long ago it was.
fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = text.parse::<HumanDuration>() {
        return Timestamp::now().checked_sub(ago.0).map_err(|_| "that is too long ago".to_owned());
    }
    text.parse().map_err(|_| "expected a time like 2026-01-31T12:00:00Z, or how long ago, like 2h".to_owned())
}

fn show_callbacks(page: &CallbackPageView) -> String {
    let columns = [
        Left("CALLBACK"),
        Left("SERVICE"),
        Left("CLIENT"),
        Left("EVENT"),
        Left("STATUS"),
        Right("ATTEMPTS"),
        Left("TARGET"),
        Left("NEXT ATTEMPT"),
    ];
    let rows = page.callbacks.iter().map(|view| {
        [
            view.callback_id.clone(),
            view.service.clone(),
            view.client_id.clone(),
            view.event.clone(),
            view.notification_status.clone(),
            view.attempts.to_string(),
            view.target.clone(),
            or_none(view.next_attempt_date.as_deref()),
        ]
    });
    table(columns, rows, "There are no such callbacks.")
}

fn show_callback(view: &CallbackView) -> String {
    let head = card([
        ("Callback", Some(view.callback_id.clone())),
        ("Task", Some(view.task_id.clone())),
        ("Service", Some(view.service.clone())),
        ("Client", Some(view.client_id.clone())),
        ("Event", Some(view.event.clone())),
        ("Status", Some(view.notification_status.clone())),
        ("Type", Some(view.kind.clone())),
        ("Target", Some(view.target.clone())),
        ("Created", Some(view.created_date.clone())),
        ("Next attempt", view.next_attempt_date.clone()),
        ("Ended", view.end_date.clone()),
    ]);
    let tries = view.tries.as_deref().unwrap_or_default();
    let columns = [Right("TRY"), Left("BEGAN"), Right("MS"), Left("ANSWER"), Left("WHAT WAS WRONG")];
    let rows = tries.iter().map(|CallbackAttemptView { number, date, duration_ms, status, error, answer }| {
        let answered = match (status, answer.as_deref().filter(|answer| !answer.is_empty())) {
            (Some(status), Some(answer)) => Some(format!("{status} {}", answer.chars().take(40).collect::<String>())),
            (Some(status), None) => Some(status.to_string()),
            (None, _) => None,
        };
        [number.to_string(), date.clone(), duration_ms.to_string(), or_none(answered), or_none(error.as_deref())]
    });
    format!("{head}\n\n{}", table(columns, rows, "It was not tried yet."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_how_long_ago() {
        assert!(moment("2026-01-31T12:00:00Z").is_ok());
        let ago = Timestamp::now().duration_since(moment("2h").unwrap());
        assert!((7199..7260).contains(&ago.as_secs()));
        assert!(moment("yesterday").is_err());
    }

    #[test]
    fn every_try_is_a_line() {
        let view = CallbackView {
            callback_id: "01890a5d-ac96-774b-bcce-b302099a8057-3".to_owned(),
            task_id: "01890a5d-ac96-774b-bcce-b302099a8057".to_owned(),
            service: "resize".to_owned(),
            client_id: "web".to_owned(),
            event: "success".to_owned(),
            notification_status: "PENDING".to_owned(),
            kind: "https".to_owned(),
            target: "https://example.org/done".to_owned(),
            attempts: 1,
            created_date: "2026-01-31T12:00:00.000Z".to_owned(),
            next_attempt_date: None,
            end_date: None,
            tries: Some(vec![CallbackAttemptView {
                number: 1,
                date: "2026-01-31T12:00:00.001Z".to_owned(),
                duration_ms: 12,
                status: Some(500),
                error: Some("the receiver answered 500".to_owned()),
                answer: Some("out of order".to_owned()),
            }]),
        };
        let shown = show_callback(&view);
        let last = shown.lines().last().unwrap();
        for part in ["1", "12", "500 out of order", "the receiver answered 500"] {
            assert!(last.contains(part), "{shown}");
        }
    }
}
