//! `relais notification`

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use relais_notify::{
    AckStatus, AudienceKey, LedgerLine, Notification,
    wire::{AckAnswer, AckForRequest, EmittedId, LinkViews, NotificationView, NotificationViews, TargetName},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use super::{
    args::client_id,
    audience::target,
    connection::{Connection, ConnectionArgs, Request},
    notification_source::{self, SourceArgs},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais notification`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct NotificationArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: NotificationCommand,
}

#[derive(Debug, Subcommand)]
enum NotificationCommand {
    /// List notifications, the newest first
    List(ListArgs),
    /// Show everything about a notification, with its ledger: who is awaited, whom it was sent to, who acknowledged
    Show {
        /// The notification
        #[arg(value_name = "ID", value_parser = notification_id)]
        id: String,
    },
    /// List the error log: notifications that were sent as often as their limit allows, and who has not acknowledged
    Errors(PageArgs),
    /// Send notifications of the error log again, to those who have not acknowledged
    Resend(WhichArgs),
    /// Withdraw notifications: they are not sent any more, and pages that show them are told
    Withdraw(WhichArgs),
    /// Acknowledge a notification on behalf of a user
    Ack {
        /// The notification
        #[arg(value_name = "ID", value_parser = notification_id)]
        id: String,
        /// The user
        #[arg(long, value_name = "USER")]
        user: String,
    },
    /// List the open links of the process that answers
    Links,
    /// Send a notification, e.g. as a test; prints its id
    Send(SendArgs),
    /// See what events become notifications, pause and resume
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Source(SourceArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only those in this status: OPEN, ACKNOWLEDGED, FAILED, EXPIRED or WITHDRAWN
    #[arg(long, value_parser = status)]
    status: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
struct PageArgs {
    /// Only those of this client
    #[arg(long, value_parser = client_id)]
    client: Option<String>,
    /// How many at most, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Go on where the last listing ended; it says with what
    #[arg(long, value_name = "PAGE")]
    before: Option<String>,
}

impl PageArgs {
    fn request(self) -> Request<'static> {
        Request::get(["admin", "notifications"])
            .with("clientId", self.client)
            .with("limit", Some(self.limit))
            .with("before", self.before)
    }
}

#[derive(Debug, Args)]
struct WhichArgs {
    /// The notifications
    #[arg(value_name = "ID", required = true, value_parser = notification_id)]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
struct SendArgs {
    /// Who gets it, as TYPE:TARGET, e.g. USER:ann or GROUP:teachers; may be repeated with the same type
    #[arg(long, value_name = "TYPE:TARGET", required = true, value_parser = target)]
    to: Vec<AudienceKey>,
    /// The field `title` of its payload
    #[arg(long)]
    title: Option<String>,
    /// The field `body` of its payload
    #[arg(long)]
    body: Option<String>,
    /// The payload: any JSON; an object, if there is a title or a body as well
    #[arg(long, value_name = "JSON", value_parser = payload)]
    payload: Option<Box<RawValue>>,
    /// What it is for: REALTIME, SYSTEM or NOTIFICATION, which it is if this is absent
    #[arg(long = "type", value_name = "TYPE", value_parser = kind)]
    kind: Option<String>,
    /// Each member must acknowledge it; it is sent again to those who do not
    #[arg(long)]
    ack_required: bool,
}

/// What is sent, in the order of its fields.
#[derive(Serialize)]
struct Draft<'a> {
    metadata: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    routing: Value,
}

impl SendArgs {
    fn request(self) -> Result<Request<'static>> {
        let kind = one_type(&self.to)?;
        let targets: Vec<&str> = self.to.iter().map(|key| key.target.as_str()).collect();
        let payload = self.payload()?;
        let draft = Draft {
            metadata: self.kind.as_ref().map_or_else(|| json!({}), |kind| json!({"type": kind})),
            payload: payload.as_deref(),
            routing: json!({
                "audience": {"type": kind, "targets": targets},
                "retry": {"ack_required": self.ack_required},
            }),
        };
        Request::post(["admin", "notifications"], Some(&draft))
    }

    fn payload(&self) -> Result<Option<Box<RawValue>>> {
        let said: Vec<(&str, &String)> = [("title", &self.title), ("body", &self.body)]
            .into_iter()
            .filter_map(|(n, v)| Some((n, v.as_ref()?)))
            .collect();
        if said.is_empty() {
            return Ok(self.payload.clone());
        }
        let given = self.payload.as_ref().map_or("{}", |payload| payload.get());
        let Ok(mut fields) = serde_json::from_str::<serde_json::Map<String, Value>>(given) else {
            bail!("--payload must be an object if there is --title or --body as well");
        };
        fields.extend(said.into_iter().map(|(name, text)| (name.to_owned(), Value::from(text.as_str()))));
        Ok(Some(serde_json::value::to_raw_value(&fields)?))
    }
}

/// The type of the targets.
fn one_type(targets: &[AudienceKey]) -> Result<&str> {
    let mut types: Vec<&str> = targets.iter().map(|key| key.kind.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    match types[..] {
        [one] => Ok(one),
        _ => bail!(
            "a notification has targets of one type, and --to names {}\nhint: send one notification for each type",
            types.join(" and ")
        ),
    }
}

fn notification_id(text: &str) -> Result<String, String> {
    let id: Result<Uuid, _> = text.parse();
    id.map(|id| id.to_string())
        .map_err(|_| "a notification's id is a UUID, like 01890a5d-ac96-774b-bcce-b302099a8057".to_owned())
}

fn status(text: &str) -> Result<String, String> {
    let name = text.trim().to_uppercase();
    let status = AckStatus::parse(&name).ok_or("expected OPEN, ACKNOWLEDGED, FAILED, EXPIRED or WITHDRAWN")?;
    Ok(status.as_str().to_owned())
}

fn kind(text: &str) -> Result<String, String> {
    let name = text.trim().to_uppercase();
    let known = ["REALTIME", "SYSTEM", "NOTIFICATION"].contains(&name.as_str());
    if known { Ok(name) } else { Err("expected REALTIME, SYSTEM or NOTIFICATION".to_owned()) }
}

fn payload(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))
}

/// Runs `relais notification`.
pub async fn run(args: NotificationArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        NotificationCommand::Source(args) => notification_source::run(&server, args).await?,
        NotificationCommand::List(ListArgs { status, page }) => {
            list(&server, page.request().with("status", status), show_notifications).await?;
        }
        NotificationCommand::Errors(page) => {
            let request = page.request().with("status", Some("FAILED")).with("ledger", Some(true));
            list(&server, request, show_errors).await?;
        }
        NotificationCommand::Show { id } => {
            server.print(Request::get(["admin", "notifications", &id]), show_notification).await?;
        }
        NotificationCommand::Resend(WhichArgs { ids }) => {
            let said = |sent: &EmittedId| format!("{} is sent again", sent.id);
            server.print_each(&ids, |id| Request::call(["admin", "notifications", id, "resend"]), said).await?;
        }
        NotificationCommand::Withdraw(WhichArgs { ids }) => {
            let said = |withdrawn: &EmittedId| format!("{} is withdrawn", withdrawn.id);
            server.print_each(&ids, |id| Request::delete(["admin", "notifications", id]), said).await?;
        }
        NotificationCommand::Ack { id, user } => {
            let request =
                Request::post(["admin", "notifications", &id, "ack"], Some(&AckForRequest { user: user.clone() }))?;
            server.print(request, |answer: &AckAnswer| show_acknowledged(&user, answer)).await?;
        }
        NotificationCommand::Links => {
            server.print(Request::get(["admin", "notification-links"]), show_links).await?;
        }
        NotificationCommand::Send(send) => {
            server.print(send.request()?, |sent: &EmittedId| sent.id.to_string()).await?;
        }
    }
    Ok(())
}

async fn list(server: &Connection, request: Request<'_>, show: fn(&NotificationViews) -> String) -> Result<()> {
    let page: Option<NotificationViews> = server.print(request, show).await?;
    if let Some(next) = page.and_then(|page| page.next) {
        output::note(&format!("There may be more: --before {next}"));
    }
    Ok(())
}

fn show_notifications(page: &NotificationViews) -> String {
    let columns = [
        Left("ID"),
        Left("STATUS"),
        Left("TYPE"),
        Left("AUDIENCE"),
        Right("ATTEMPTS"),
        Left("EMITTED"),
        Left("CLIENT"),
        Left("PAYLOAD"),
    ];
    let rows = page.notifications.iter().map(|view| {
        let Notification { metadata, payload, routing } = &view.message;
        [
            metadata.id.to_string(),
            view.status.clone(),
            wire_name(&metadata.kind),
            short(&routing.audience.to_string()),
            attempts(&view.message),
            metadata.timestamp.to_string(),
            or_none(view.client_id.as_deref()),
            short(payload.get()),
        ]
    });
    table(columns, rows, "There are no notifications.")
}

fn show_errors(page: &NotificationViews) -> String {
    let columns = [
        Left("ID"),
        Right("NOT ACKNOWLEDGED"),
        Left("AUDIENCE"),
        Right("ATTEMPTS"),
        Left("EMITTED"),
        Left("CLIENT"),
        Left("PAYLOAD"),
    ];
    let rows = page.notifications.iter().map(|view| {
        let Notification { metadata, payload, routing } = &view.message;
        [
            metadata.id.to_string(),
            missing(view.ledger.as_deref().unwrap_or_default()),
            short(&routing.audience.to_string()),
            attempts(&view.message),
            metadata.timestamp.to_string(),
            or_none(view.client_id.as_deref()),
            short(payload.get()),
        ]
    });
    table(columns, rows, "The error log is empty.")
}

/// A ledger comes with so many lines at most: first of those who have not acknowledged.
const LEDGER_LINES: usize = 1000;

/// How many have not acknowledged, though they must.
fn missing(ledger: &[LedgerLine]) -> String {
    let missing = ledger.iter().filter(|line| line.awaited && line.acknowledged.is_none()).count();
    let more = if missing >= LEDGER_LINES { "+" } else { "" };
    format!("{missing}{more}")
}

/// How often it was sent again, of how often it is.
fn attempts(message: &Notification) -> String {
    let retry = &message.routing.retry;
    if retry.ack_required && retry.enabled { format!("{}/{}", retry.attempts, retry.limit) } else { String::new() }
}

/// The beginning, on one line.
fn short(text: &str) -> String {
    const MOST: usize = 40;
    let mut shown: String = text.chars().take(MOST).collect();
    if shown.len() < text.len() {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// How a value is written on the wire.
fn wire_name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        _ => String::new(),
    }
}

fn show_notification(view: &NotificationView) -> String {
    let Notification { metadata, payload, routing } = &view.message;
    let retry = &routing.retry;
    let again = match (retry.ack_required, retry.enabled) {
        (false, _) => "no".to_owned(),
        (true, false) => "yes; it is not sent again".to_owned(),
        (true, true) => {
            let backoff = wire_name(&retry.backoff).to_lowercase();
            format!("yes; sent again {} of {} times, {backoff} pauses", retry.attempts, retry.limit)
        }
    };
    let head = card([
        ("notification", Some(metadata.id.to_string())),
        ("status", Some(view.status.clone())),
        ("replaced by", view.replaced_by.map(|id| id.to_string())),
        ("type", Some(wire_name(&metadata.kind))),
        ("priority", Some(wire_name(&metadata.priority))),
        ("emitter", Some(metadata.emitter.clone())),
        ("client", view.client_id.clone()),
        ("source", metadata.source.clone()),
        ("topic", metadata.topic.clone()),
        ("operation", metadata.operation.as_ref().map(wire_name)),
        ("audience", Some(routing.audience.to_string())),
        ("emitted", Some(metadata.timestamp.to_string())),
        ("expires", Some(metadata.expiration.to_string())),
        ("acknowledgement", Some(again)),
        ("payload", Some(output::printable_json(payload.get()).into_owned())),
    ]);
    let columns = [Left("USER"), Left("AWAITED"), Right("SENT"), Left("LAST SENT"), Left("ACKNOWLEDGED")];
    let ledger = view.ledger.as_deref().unwrap_or_default();
    let rows = ledger.iter().map(|line| {
        [
            line.user.clone(),
            if line.awaited { "yes" } else { "no" }.to_owned(),
            line.deliveries.to_string(),
            or_none(line.delivered),
            or_none(line.acknowledged),
        ]
    });
    let more = if ledger.len() >= LEDGER_LINES { "\n(there may be more users)" } else { "" };
    format!("{head}\n\n{}{more}", table(columns, rows, "It was sent to nobody yet, and nobody is awaited."))
}

fn show_acknowledged(user: &str, answer: &AckAnswer) -> String {
    let before = if answer.acknowledged == 0 { " already" } else { "" };
    format!(
        "acknowledged{before} for {}; {} left to acknowledge",
        output::printable(user),
        answer.counts.unacknowledged
    )
}

fn show_links(views: &LinkViews) -> String {
    let rows = views.links.iter().map(|link| {
        let audiences: Vec<String> = link.audiences.iter().cloned().map(key).collect();
        [link.link.to_string(), link.user.clone(), audiences.join(", ")]
    });
    table([Left("LINK"), Left("USER"), Left("AUDIENCES")], rows, "There are no open links to this process.")
}

/// A target as it is typed.
fn key(name: TargetName) -> String {
    AudienceKey::from(name).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn view(payload: Value) -> NotificationView {
        serde_json::from_value(json!({
            "message": {
                "metadata": {"id": ID, "priority": "HIGH", "type": "SYSTEM", "emitter": "shop",
                    "timestamp": "2025-03-05T12:34:56Z", "expiration": "2025-03-15T12:34:56Z"},
                "payload": payload,
                "routing": {"audience": {"type": "USER", "targets": ["ann", "bob"]},
                    "retry": {"ack_required": true, "enabled": true, "attempts": 3, "limit": 5, "backoff": "LINEAR"}},
            },
            "status": "FAILED", "clientId": "shop",
            "ledger": [
                {"user": "bob", "awaited": true, "deliveries": 4, "delivered": "2025-03-05T12:40:00Z"},
                {"user": "ann", "awaited": true, "deliveries": 1, "acknowledged": "2025-03-05T12:35:00Z"},
            ],
        }))
        .unwrap()
    }

    fn send(line: &[&str]) -> SendArgs {
        use clap::Parser as _;
        let words = ["relais", "notification", "send"].iter().chain(line);
        let crate::cli::Command::Notification(args) = crate::cli::Cli::try_parse_from(words).unwrap().command else {
            panic!("not a notification")
        };
        let NotificationCommand::Send(send) = args.command else { panic!("not sent") };
        send
    }

    #[test]
    fn notifications_are_listed_one_per_line() {
        let page = NotificationViews { notifications: vec![view(json!({"text": "x".repeat(100)}))], next: None };
        let text = show_notifications(&page);
        assert_eq!(text.lines().count(), 2, "{text}");
        for part in ["FAILED", "SYSTEM", "USER:ann,bob", "3/5", "shop", "xx…"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let errors = show_errors(&page);
        let words: Vec<&str> = errors.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[..4], [ID, "1", "USER:ann,bob", "3/5"], "one has not acknowledged");
    }

    #[test]
    fn a_notification_is_shown_with_its_ledger() {
        let text = show_notification(&view(json!({"n": 1})));
        assert!(text.contains("sent again 3 of 5 times, linear pauses") && text.contains(r#"{"n":1}"#), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().rev().take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["bob", "yes", "4", "2025-03-05T12:40:00Z", "-"]);
        assert_eq!(lines[0], ["ann", "yes", "1", "-", "2025-03-05T12:35:00Z"]);
    }

    #[test]
    fn what_a_message_says_can_not_steer_a_terminal() {
        let mut view = view(json!("\u{1b}[2J\u{9b}2J\u{202e}\u{7f}evil"));
        view.message.metadata.emitter = "\u{1b}]0;x\u{7}\u{2066}".to_owned();
        view.client_id = Some("\u{200f}".to_owned());
        let card = show_notification(&view);
        let page = NotificationViews { notifications: vec![view], next: None };
        for text in [card, show_notifications(&page), show_errors(&page)] {
            assert_eq!(output::printable(&text), text);
            assert!(text.contains("evil"), "{text}");
        }
    }

    #[test]
    fn the_targets_of_a_message_are_of_one_type() {
        let mixed = send(&["--to", "USER:ann", "--to", "GROUP:1b"]).request().err().unwrap().to_string();
        assert!(mixed.contains("--to names GROUP and USER"), "{mixed}");
        assert!(send(&["--to", "USER:ann", "--to", "USER:urn:bob"]).request().is_ok());
    }

    #[test]
    fn a_title_and_a_body_are_fields_of_the_payload() {
        let payload = |line: &[&str]| {
            let words: Vec<&str> = ["--to", "USER:ann"].iter().chain(line).copied().collect();
            send(&words).payload().map(|payload| payload.map(|payload| payload.get().to_owned()))
        };
        assert_eq!(payload(&[]).unwrap(), None);
        assert_eq!(payload(&["--payload", "[1.0]"]).unwrap().as_deref(), Some("[1.0]"));
        let both = payload(&["--title", "T", "--body", "B", "--payload", r#"{"url":"/x"}"#]).unwrap().unwrap();
        let both: Value = serde_json::from_str(&both).unwrap();
        assert_eq!(both, json!({"title": "T", "body": "B", "url": "/x"}));
        assert!(payload(&["--title", "T", "--payload", "1"]).unwrap_err().to_string().contains("object"));
    }
}
