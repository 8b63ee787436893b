//! `relais demo`: a server, a service, a worker and three tasks, and a page with notifications, in one command.
//!
//! Nothing here is a short cut: the worker, the consumer and the page's backend are strangers to the server and talk to it
//! over HTTP, as yours will.

mod page;
mod show;

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use relais_engine::generate_secret;
use relais_protocol::admin::{
    AuthorizationDeclaration, ClientDeclaration, Declaration, NotificationRightsDeclaration, RoleName,
    SecretDeclaration, ServiceDeclaration, TicketDeclaration, TransportName,
};
use relais_worker::{Client, Context, Worker};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::page::Page;
use crate::{
    cli::{DemoArgs, install_tls_provider},
    config::{self, Setting},
    logging, output,
    serve::Server,
    signals,
};

const SERVICE: &str = "example";
const CONSUMER: &str = "demo";
const WORKER: &str = "example-worker";

/// What the example service takes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    sleep: f64,
    #[serde(default = "yes")]
    must_succeed: bool,
}

const fn yes() -> bool {
    true
}

/// What it answers.
#[derive(Serialize)]
struct Response {
    slept: f64,
}

/// Runs the demo.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    install_tls_provider();
    let folder = tempfile::tempdir().context("could not make a folder for the demo's database")?;
    let throwaway = format!("sqlite:{}", folder.path().join("demo.db").display());
    let database = args.database.clone().unwrap_or(throwaway);
    let config = config::load(None, Vec::new(), &[Setting::flag("--database", "database.url", &database)])?;
    logging::init_quiet()?;
    let listener = listen(args.listen)?;
    let url = format!("http://{}", listener.local_addr()?);
    let stop = signals::stop()?;
    let (secret, worker_secret) = (generate_secret()?, generate_secret()?);
    let page = Page::new(&url, CONSUMER, &secret)?;
    let server = Server::start_with(&config, listener, page.routes(), stop.clone()).await?;
    server
        .engine
        .apply(declaration(&secret, &worker_secret)?, false, false)
        .await
        .context("could not declare the example service")?;
    page.declare_group().await.context("could not declare the users of the demo's page")?;

    let store = if args.database.is_some() { "your database" } else { "a SQLite file that is thrown away" };
    show::welcome(&url, store)?;
    let worker_stop = stop.child_token();
    let worker = Worker::builder(&url, WORKER, worker_secret, SERVICE)
        .concurrency(4)
        .lease(Duration::from_secs(10))
        .host_name("relais-demo")
        .grace(Duration::from_secs(5))
        .build()?;
    let working = tokio::spawn(worker.run(work, worker_stop.clone()));
    let client = Client::new(&url, CONSUMER, &secret, SERVICE)?;
    let shown = tokio::select! {
        shown = show::three_tasks(&client) => shown,
        () = stop.cancelled() => Ok(()),
    };
    if shown.is_ok() && !stop.is_cancelled() {
        show::by_hand(&url, CONSUMER, &secret)?;
        if !args.exit {
            output::note("\nServing until Ctrl-C.");
            stop.cancelled().await;
        }
    }
    finish(server, working, worker_stop, stop).await?;
    shown
}

async fn finish(
    server: Server,
    working: tokio::task::JoinHandle<Result<relais_worker::WorkerReport, relais_worker::WorkerError>>,
    worker_stop: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // The worker first: it has results to hand in. Its claim that waits is answered as soon as the server stops.
    worker_stop.cancel();
    stop.cancel();
    working.await?.context("the example worker ended badly")?;
    server.finished().await;
    Ok(())
}

/// The example worker: sleeps, tells how far it is, and succeeds or fails as it is told.
async fn work(request: Request, context: Context) -> Result<Response, String> {
    const STEPS: u32 = 20;
    for step in 1..=STEPS {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(request.sleep / f64::from(STEPS))) => {}
            () = context.cancelled() => return Err("told to stop".to_owned()),
        }
        let progress = 100.0 * f64::from(step) / f64::from(STEPS);
        if !request.must_succeed && progress > 60.0 {
            return Err("mustSucceed was false".to_owned());
        }
        context.progress(progress);
    }
    Ok(Response { slept: request.sleep })
}

/// The default port may be taken; then any other will do.
fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    match relais_http::listen(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && address.port() == 8080 => {
            output::note("port 8080 is taken; using another one");
            Ok(relais_http::listen((address.ip(), 0).into())?)
        }
        other => other.with_context(|| format!("could not listen on {address} (choose another with --listen)")),
    }
}

fn declaration(secret: &str, worker_secret: &str) -> anyhow::Result<Declaration> {
    let schema = serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "sleep": { "type": "number", "minimum": 0, "maximum": 3600, "description": "Seconds" },
            "mustSucceed": { "type": "boolean", "description": "Whether the task is to succeed; it is if absent" }
        },
        "required": ["sleep"],
        "additionalProperties": false
    });
    let service = ServiceDeclaration {
        transport: Some(TransportName::Builtin),
        capacity: Some(1000),
        json_schema: Some(schema),
        ..ServiceDeclaration::named(SERVICE)
    };
    let client = |id: &str, secret: &str, notifications| ClientDeclaration {
        client_id: id.to_owned(),
        client_secret: Some(SecretDeclaration::Plain(secret.to_owned())),
        signing_secret: None,
        destinations: None,
        notifications,
    };
    let rights = NotificationRightsDeclaration {
        emit: vec!["USER".to_owned(), "GROUP".to_owned()],
        audience: vec!["GROUP".to_owned()],
        ticket: Some(TicketDeclaration::Allowed(true)),
    };
    let authorization = |id: &str, role: RoleName| AuthorizationDeclaration {
        client_id: id.to_owned(),
        service_name: SERVICE.to_owned(),
        roles: vec![role],
        capacity: None,
        max_running: None,
        share: None,
    };
    Ok(Declaration {
        services: vec![service],
        clients: vec![client(CONSUMER, secret, Some(rights)), client(WORKER, worker_secret, None)],
        authorizations: vec![authorization(CONSUMER, RoleName::Consume), authorization(WORKER, RoleName::Work)],
        schedules: Vec::new(),
        outboxes: Vec::new(),
        captures: Vec::new(),
        audiences: Vec::new(),
        notification_sources: Vec::new(),
    })
}
