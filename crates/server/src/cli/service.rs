//! `relais service`

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use relais_protocol::{
    HumanDuration,
    admin::{
        ClientLoad, QueueDeclaration, QueueTypeName, RateLimitDeclaration, RetentionDeclaration, ServiceDeclaration,
        ServiceState, ServiceStates, TransportName,
    },
    retry::{RetryDeclaration, RetryName, RetryRule},
};

use super::{
    apply::show_report,
    args::{duration, rate, service_name},
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais service`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct ServiceArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// List the services and how full they are
    List,
    /// Show everything about a service
    Show {
        /// The service
        #[arg(value_parser = service_name)]
        name: String,
    },
    /// Create a service, or change it
    ///
    /// The service is then as this command says: what is not given gets its default. Whether it is paused stays as it is.
    Put(Box<PutArgs>),
    /// Pause a service: it takes tasks in, but hands none out
    Pause {
        /// The service
        #[arg(value_parser = service_name)]
        name: String,
    },
    /// Let a paused service go on
    Resume {
        /// The service
        #[arg(value_parser = service_name)]
        name: String,
    },
    /// Publish a service's unfinished tasks again, for a broker that has lost them
    Redispatch {
        /// The service
        #[arg(value_parser = service_name)]
        name: String,
    },
    /// Delete a service that has no unfinished tasks
    Delete {
        /// The service
        #[arg(value_parser = service_name)]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct PutArgs {
    /// The service's name, as it stands in URLs
    #[arg(value_parser = service_name)]
    name: String,
    /// Prefix of its queues on a broker; its name by default
    #[arg(long, value_name = "NAME")]
    queue_name: Option<String>,
    /// How its tasks reach its workers: builtin, rabbitmq; by default, the broker where the server has one
    #[arg(long, value_parser = transport)]
    transport: Option<TransportName>,
    /// The kind of its queues on the broker, where there are none yet: classic, quorum
    #[arg(long, value_parser = queue_type)]
    queue_type: Option<QueueTypeName>,
    /// How long a task may wait in the broker's queue before it fails, e.g. 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    message_ttl: Option<HumanDuration>,
    /// How many tasks may wait in the broker's queue; the others wait in the database
    #[arg(long, value_name = "N")]
    max_length: Option<u32>,
    /// Refuse tasks while this many are pending; no limit by default
    #[arg(long, value_name = "N")]
    capacity: Option<u32>,
    /// File with the JSON schema that tasks must conform to; anything is taken by default
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// How long a worker may keep silent before its task is given to another, e.g. 60s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<HumanDuration>,
    /// How many workers a task may lose before it fails
    #[arg(long, value_name = "N")]
    delivery_limit: Option<u32>,
    /// How often a task that failed is tried again: none, never (nor if a task asks for it), classic (10 times, 1, 2, 4, …
    /// 512 minutes apart), or a rule such as
    /// limit=5,base=10s,factor=3,cap=1h,jitter=0.2,within=1d,except=paper
    #[arg(long, value_name = "POLICY", value_parser = retry)]
    retry: Option<RetryDeclaration>,
    /// How long an attempt may take before it fails, e.g. 10m; for ever by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<HumanDuration>,
    /// How much earlier a task goes for each level of its priority, e.g. 1m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    priority_step: Option<HumanDuration>,
    /// Have at most this many of its tasks running at once, over all workers; no limit by default
    #[arg(long, value_name = "N")]
    max_running: Option<u32>,
    /// The same, of each client whose authorization does not say otherwise
    #[arg(long, value_name = "N")]
    max_running_per_client: Option<u32>,
    /// Have at most this many of its tasks start in a time, e.g. 100/1s; no limit by default
    #[arg(long, value_name = "N/DURATION", value_parser = rate)]
    rate_limit: Option<RateLimitDeclaration>,
    /// As many may start at once after a pause; as many as the rate's number by default
    #[arg(long, value_name = "N", requires = "rate_limit")]
    rate_burst: Option<u32>,
    /// Have clients with tasks that wait take turns
    #[arg(long)]
    fair_share: bool,
    /// With a broker: have at most this many tasks published and unfinished at once; no limit by default. The limits above need it
    /// there
    #[arg(long, value_name = "N")]
    dispatch_window: Option<u32>,
    /// How long to wait before each new try of a callback, e.g. 10s,1m,1h,1d; the server's setting by default
    #[arg(long = "callback-retry", value_name = "DURATION", value_delimiter = ',', value_parser = duration)]
    callback_retries: Vec<HumanDuration>,
    /// How long tasks are kept after their end, e.g. 7d; the server's setting by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep_finished: Option<HumanDuration>,
    /// How long tasks are kept after their submission, e.g. 90d; the server's setting by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep_any: Option<HumanDuration>,
}

impl PutArgs {
    fn declaration(self) -> Result<ServiceDeclaration> {
        let queue = QueueDeclaration {
            kind: self.queue_type.unwrap_or_default(),
            message_ttl: self.message_ttl,
            max_length: self.max_length,
        };
        let retention = RetentionDeclaration { finished: self.keep_finished, any: self.keep_any };
        Ok(ServiceDeclaration {
            service_name: self.name,
            queue_name: self.queue_name,
            transport: self.transport,
            queue: (queue != QueueDeclaration::default()).then_some(queue),
            capacity: self.capacity,
            json_schema: self.json_schema.as_deref().map(read_schema).transpose()?,
            paused: None,
            lease: self.lease,
            delivery_limit: self.delivery_limit,
            retention: (retention != RetentionDeclaration::default()).then_some(retention),
            callback_retries: (!self.callback_retries.is_empty()).then_some(self.callback_retries),
            retry: self.retry,
            timeout: self.timeout,
            priority_step: self.priority_step,
            max_running: self.max_running,
            max_running_per_client: self.max_running_per_client,
            rate_limit: self.rate_limit.map(|rate| RateLimitDeclaration { burst: self.rate_burst, ..rate }),
            fair_share: self.fair_share.then_some(true),
            dispatch_window: self.dispatch_window,
        })
    }
}

fn transport(text: &str) -> Result<TransportName, String> {
    match text {
        "builtin" => Ok(TransportName::Builtin),
        "rabbitmq" => Ok(TransportName::Rabbitmq),
        _ => Err("must be builtin or rabbitmq".to_owned()),
    }
}

/// Reads `none`, `classic`, `never` or `limit=5,base=10s,…`.
pub(super) fn retry(text: &str) -> Result<RetryDeclaration, String> {
    match text {
        "none" => return Ok(RetryDeclaration::Named(RetryName::None)),
        "classic" => return Ok(RetryDeclaration::Named(RetryName::Classic)),
        "never" => return Ok(RetryDeclaration::Named(RetryName::Never)),
        _ => {}
    }
    let mut rule = RetryRule {
        limit: 0,
        base: None,
        factor: None,
        cap: None,
        jitter: None,
        within: None,
        except_kinds: Vec::new(),
    };
    let mut limited = false;
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or("must be none, classic, never, or like limit=5,base=10s")?;
        let number = || value.parse::<f64>().map_err(|_| format!("{name} must be a number"));
        let span = || duration(value).map(Some);
        match name.trim() {
            "limit" => {
                rule.limit = value.parse().map_err(|_| "limit must be a whole number".to_owned())?;
                limited = true;
            }
            "base" => rule.base = span()?,
            "factor" => rule.factor = Some(number()?),
            "cap" => rule.cap = span()?,
            "jitter" => rule.jitter = Some(number()?),
            "within" => rule.within = span()?,
            "except" => rule.except_kinds.push(value.to_owned()),
            other => {
                return Err(format!("{other} is unknown: limit, base, factor, cap, jitter, within and except are not"));
            }
        }
    }
    if limited { Ok(RetryDeclaration::Rule(rule)) } else { Err("limit is missing".to_owned()) }
}

/// A policy as `--retry` takes it.
pub(super) fn retry_text(declared: &RetryDeclaration) -> String {
    let rule = match declared {
        RetryDeclaration::Named(RetryName::None) => return "none".to_owned(),
        RetryDeclaration::Named(RetryName::Classic) => return "classic".to_owned(),
        RetryDeclaration::Named(RetryName::Never) => return "never".to_owned(),
        RetryDeclaration::Rule(rule) => rule,
    };
    let mut parts = vec![format!("limit={}", rule.limit)];
    parts.extend(rule.base.map(|base| format!("base={base}")));
    parts.extend(rule.factor.map(|factor| format!("factor={factor}")));
    parts.extend(rule.cap.map(|cap| format!("cap={cap}")));
    parts.extend(rule.jitter.map(|jitter| format!("jitter={jitter}")));
    parts.extend(rule.within.map(|within| format!("within={within}")));
    parts.extend(rule.except_kinds.iter().map(|kind| format!("except={kind}")));
    parts.join(",")
}

fn transport_name(transport: TransportName) -> &'static str {
    match transport {
        TransportName::Builtin => "builtin",
        TransportName::Rabbitmq => "rabbitmq",
    }
}

fn queue_type(text: &str) -> Result<QueueTypeName, String> {
    match text {
        "classic" => Ok(QueueTypeName::Classic),
        "quorum" => Ok(QueueTypeName::Quorum),
        _ => Err("must be classic or quorum".to_owned()),
    }
}

fn read_schema(path: &Path) -> Result<serde_json::Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// Runs `relais service`.
pub async fn run(args: ServiceArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        ServiceCommand::List => {
            server.print(Request::get(["admin", "services"]), show_services).await?;
        }
        ServiceCommand::Show { name } => {
            server.print(Request::get(["admin", "services", &name]), show_service).await?;
        }
        ServiceCommand::Put(put) => {
            let declaration = put.declaration()?;
            let path = ["admin", "services", &declaration.service_name];
            server.print(Request::put(path, &declaration)?, show_report).await?;
        }
        ServiceCommand::Pause { name } => {
            server.print(Request::call(["admin", "services", &name, "pause"]), show_service).await?;
        }
        ServiceCommand::Resume { name } => {
            server.print(Request::call(["admin", "services", &name, "resume"]), show_service).await?;
        }
        ServiceCommand::Redispatch { name } => {
            server.print(Request::call(["admin", "services", &name, "redispatch"]), show_service).await?;
        }
        ServiceCommand::Delete { name, yes } => {
            if !yes {
                confirm(&format!("Delete service {name}, its finished tasks and its authorizations?"))?;
            }
            server.print(Request::delete(["admin", "services", &name]), show_report).await?;
        }
    }
    Ok(())
}

/// Asks whoever sits there; without a yes nothing is done.
pub(super) fn confirm(question: &str) -> Result<()> {
    if !io::stdin().is_terminal() {
        bail!("there is nobody to ask; say --yes to go on");
    }
    output::note(&format!("{question} [y/N]"));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was done"),
    }
}

fn show_services(states: &ServiceStates) -> String {
    let columns = [
        Left("SERVICE"),
        Left("STATE"),
        Right("PENDING"),
        Right("CAPACITY"),
        Right("WAITING"),
        Right("IN PROGRESS"),
        Right("SUCCESS"),
        Right("FAILURE"),
        Right("CANCELLED"),
        Left("OLDEST PENDING"),
    ];
    let rows = states.services.iter().map(|state| {
        [
            state.declaration.service_name.clone(),
            condition(state).to_owned(),
            state.pending.to_string(),
            or_none(state.declaration.capacity),
            state.waiting.to_string(),
            state.in_progress.to_string(),
            state.success.to_string(),
            state.failure.to_string(),
            state.cancelled.to_string(),
            or_none(state.oldest_pending_date.as_deref()),
        ]
    });
    table(columns, rows, "There are no services. `relais service put NAME` makes one.")
}

fn condition(state: &ServiceState) -> &'static str {
    if state.declaration.paused == Some(true) { "paused" } else { "running" }
}

fn in_progress(state: &ServiceState) -> String {
    let running = state.in_progress;
    state.declaration.max_running.map_or(running.to_string(), |most| format!("{running} of at most {most}"))
}

/// One line for each.
fn clients(loads: &[ClientLoad]) -> String {
    let line = |load: &ClientLoad| {
        let most = load.max_running.map_or(String::new(), |most| format!(" of at most {most}"));
        format!("{}: {} pending, {}{most} in progress", load.client_id, load.pending, load.in_progress)
    };
    loads.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn rate_limit(rate: RateLimitDeclaration) -> String {
    let burst = rate.burst.unwrap_or(rate.count);
    format!("{} starts per {}, at most {burst} at once", rate.count, rate.per)
}

fn show_service(state: &ServiceState) -> String {
    let declaration = &state.declaration;
    let retention = declaration.retention.unwrap_or_default();
    let kept =
        |value: Option<HumanDuration>| Some(value.map_or("server's setting".to_owned(), |kept| kept.to_string()));
    card([
        ("service", Some(declaration.service_name.clone())),
        ("state", Some(condition(state).to_owned())),
        ("transport", declaration.transport.map(|transport| transport_name(transport).to_owned())),
        ("queue name", declaration.queue_name.clone()),
        ("capacity", Some(declaration.capacity.map_or("no limit".to_owned(), |capacity| capacity.to_string()))),
        ("lease", declaration.lease.map(|lease| lease.to_string())),
        ("delivery limit", declaration.delivery_limit.map(|limit| limit.to_string())),
        ("retry", declaration.retry.as_ref().map(retry_text)),
        ("timeout", declaration.timeout.map(|timeout| timeout.to_string())),
        ("priority step", declaration.priority_step.map(|step| step.to_string())),
        ("keep finished", kept(retention.finished)),
        ("keep any", kept(retention.any)),
        ("pending", Some(state.pending.to_string())),
        ("oldest pending", state.oldest_pending_date.clone()),
        ("waiting", (state.waiting > 0).then(|| state.waiting.to_string())),
        ("in progress", Some(in_progress(state))),
        ("of each client", declaration.max_running_per_client.map(|most| format!("at most {most} in progress"))),
        ("rate limit", declaration.rate_limit.map(rate_limit)),
        ("fair share", (declaration.fair_share == Some(true)).then(|| "clients take turns".to_owned())),
        ("success", Some(state.success.to_string())),
        ("failure", Some(state.failure.to_string())),
        ("cancelled", Some(state.cancelled.to_string())),
        ("dispatch window", declaration.dispatch_window.map(|most| format!("at most {most} at the broker"))),
        ("clients", (!state.clients.is_empty()).then(|| clients(&state.clients))),
        ("json schema", declaration.json_schema.as_ref().map(|schema| format!("{schema:#}"))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ServiceState {
        serde_json::from_value(serde_json::json!({
            "serviceName": "resize", "capacity": 100, "paused": true, "lease": "60s", "deliveryLimit": 20,
            "retention": {"finished": "7d"}, "jsonSchema": {"type": "object"},
            "pending": 12, "inProgress": 3, "success": 1024, "failure": 0, "cancelled": 1,
        }))
        .unwrap()
    }

    #[test]
    fn services_are_listed_one_per_line() {
        assert_eq!(
            show_services(&ServiceStates { services: vec![state()] }),
            "SERVICE  STATE   PENDING  CAPACITY  WAITING  IN PROGRESS  SUCCESS  FAILURE  CANCELLED  OLDEST PENDING\n\
             resize   paused       12       100        0            3     1024        0          1  -"
        );
        assert!(show_services(&ServiceStates { services: vec![] }).contains("relais service put"));
    }

    #[test]
    fn a_retry_policy_is_written_as_it_is_read() {
        for text in [
            "none",
            "classic",
            "never",
            "limit=5",
            "limit=5,base=10s,factor=3,cap=1h,jitter=0.2,within=1d,except=a,except=b",
        ] {
            assert_eq!(retry_text(&retry(text).unwrap()), text);
        }
        for wrong in ["", "always", "base=1s", "limit=x", "limit=1,base=x", "limit=1,bse=1s"] {
            assert!(retry(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_service_is_shown_with_what_holds_for_it() {
        let text = show_service(&state());
        for line in
            ["in progress:    3", "keep finished:  7d", "keep any:       server's setting", "state:          paused"]
        {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
        assert!(
            text.ends_with("json schema:    {\n                  \"type\": \"object\"\n                }"),
            "{text}"
        );
    }

    #[test]
    fn running_tasks_are_shown_with_their_limit() {
        let mut limited = state();
        limited.declaration.max_running = Some(10);
        limited.declaration.max_running_per_client = Some(2);
        limited.declaration.rate_limit = rate("100/1s").ok();
        limited.declaration.fair_share = Some(true);
        let load = |client: &str, most| ClientLoad {
            client_id: client.to_owned(),
            pending: 7,
            in_progress: 1,
            max_running: most,
        };
        limited.clients = vec![load("batch", None), load("web", Some(2))];
        let text = show_service(&limited);
        for line in [
            "clients:        batch: 7 pending, 1 in progress",
            "                web: 7 pending, 1 of at most 2 in progress",
            "in progress:    3 of at most 10",
            "of each client: at most 2 in progress",
            "rate limit:     100 starts per 1s, at most 100 at once",
            "fair share:     clients take turns",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
    }
}
