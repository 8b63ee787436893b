//! The example of `docs/guides/traces.md`, run as it is told there: one trace from the consumer to the callback.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Instant,
};

use relais_testkit::free_port;
use serde_json::{Value, json};

use super::{PATIENCE, Running};

const DECLARATIONS: &str = r#"
services:
  - serviceName: shout
clients:
  - {clientId: me, clientSecret: "my secret"}
authorizations:
  - {clientId: me, serviceName: shout, roles: [consume, work]}
"#;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CONSUMER: &str = "00f067aa0ba902b7";

/// A span, as the collector of the example prints it.
#[derive(Debug, Clone, PartialEq)]
struct Span {
    trace: String,
    parent: String,
    id: String,
    service: String,
    name: String,
}

/// What the collector has printed.
#[derive(Default)]
struct Seen {
    spans: Vec<Span>,
    /// Callbacks: the `traceparent` that each came with, and its body.
    callbacks: Vec<(String, Value)>,
}

impl Seen {
    fn take(&mut self, line: &str) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["callback", traceparent, body] => {
                self.callbacks.push((traceparent.to_owned(), serde_json::from_str(body).unwrap()));
            }
            [trace, parent, id, service, name, _] => self.spans.push(Span {
                trace: trace.to_owned(),
                parent: parent.to_owned(),
                id: id.to_owned(),
                service: service.to_owned(),
                name: name.to_owned(),
            }),
            _ => panic!("the collector says {line:?}"),
        }
    }

    /// The span of this name in the trace.
    fn span(&self, name: &str) -> Option<Span> {
        self.spans.iter().find(|span| span.trace == TRACE && span.name == name).cloned()
    }

    /// Reads on until something is there.
    fn until<T>(&mut self, lines: &Receiver<String>, what: &str, found: impl Fn(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.take(&line),
                Err(RecvTimeoutError::Timeout) => panic!("no {what} in {:#?}", self.spans),
                Err(RecvTimeoutError::Disconnected) => panic!("the collector is gone"),
            }
        }
    }
}

fn relais(arguments: &[&str], collector: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relais"));
    command
        .args(arguments)
        .env("RELAIS_TELEMETRY_OTLP_ENDPOINT", collector)
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[tokio::test]
async fn consumer_server_worker_and_callback_are_one_trace() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let mut python = Command::new("python3");
    python.arg(examples.join("collector.py")).arg("0").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut collector = Running(python.spawn().expect("the example needs python3"));
    let mut printed = BufReader::new(collector.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let collecting = printed.next().unwrap();
    let endpoint = collecting.strip_prefix("collecting on ").unwrap().to_owned();
    let (line, lines) = channel();
    std::thread::spawn(move || printed.try_for_each(|printed| line.send(printed)));

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("services.yaml"), DECLARATIONS).unwrap();
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let callback_port = endpoint.rsplit(':').next().unwrap();
    let server = relais(&["serve", "--listen", &address, "--database", "sqlite:relais.db"], &endpoint)
        .current_dir(folder.path())
        .env("RELAIS_DECLARATIONS_FILE", "services.yaml")
        .env("RELAIS_CALLBACKS_ALLOW_HTTP", "true")
        .env("RELAIS_CALLBACKS_ALLOW_NETWORKS", "127.0.0.0/8")
        .env("RELAIS_CALLBACKS_PORTS", callback_port)
        .spawn();
    let _server = Running(server.unwrap());
    let url = format!("http://{address}");
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let begun = Instant::now();
    while !http.get(format!("{url}/readyz")).send().await.is_ok_and(|answer| answer.status() == 200) {
        assert!(begun.elapsed() < PATIENCE, "the server did not become ready");
        tokio::task::yield_now().await;
    }
    // The command says which context it was given.
    let command = r#"printf '{"traceparent": "%s"}' "$TRACEPARENT""#;
    let worker = relais(&["worker", "--service", "shout", "--client", "me", "--url", &url], &endpoint)
        .args(["--", "sh", "-c", command])
        .env("RELAIS_SECRET", "my secret")
        .spawn();
    let _worker = Running(worker.unwrap());

    let submission = json!({"body": {}, "callback": {"type": "http", "url": format!("{endpoint}/told")}});
    let answer = http
        .post(format!("{url}/v1/services/shout/tasks"))
        .basic_auth("me", Some("my secret"))
        .header("traceparent", format!("00-{TRACE}-{CONSUMER}-01"))
        .json(&submission);
    let answer: Value = answer.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["status"], "success", "{answer}");

    let mut seen = Seen::default();
    let submitted = seen.until(&lines, "submission", |seen| seen.span("POST /v1/services/{service}/tasks"));
    assert_eq!((submitted.parent.as_str(), submitted.service.as_str()), (CONSUMER, "relais"));
    let worked = seen.until(&lines, "work", |seen| seen.span("task"));
    assert_eq!((worked.parent, worked.service.as_str()), (submitted.id.clone(), "relais-worker"));
    let told = seen.until(&lines, "callback's span", |seen| seen.span("callback"));
    assert_eq!((told.parent, told.service.as_str()), (submitted.id, "relais"));
    let (traceparent, view) = seen.until(&lines, "callback", |seen| seen.callbacks.first().cloned());
    assert_eq!(traceparent, format!("00-{TRACE}-{}-01", told.id), "its receiver goes on from the callback's span");
    let given = &view["response"]["traceparent"];
    assert_eq!(given, &json!(format!("00-{TRACE}-{}-01", worked.id)), "the command goes on from the worker's span");
}
