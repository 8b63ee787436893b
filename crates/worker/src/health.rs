//! What an orchestrator asks: whether the process is alive, whether it can work, what it has done.
//!
//! `/livez` is answered for as long as the process can answer. `/readyz` is not OK while the server can not be reached
//! or refuses, and once the worker is stopping. `/metrics` is Prometheus' text form. There is nothing to configure, and
//! nothing to protect: it tells no names and takes no input.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Bytes, header, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{WorkerError, run::Shared};

/// A probe is short; who takes longer is no probe.
const LIMIT: Duration = Duration::from_secs(10);

/// So many are answered at once; the others wait.
const CONNECTIONS: usize = 32;

/// The listener, bound.
pub(crate) struct Health(TcpListener);

/// Takes the address, or says at once that it can not be had.
pub(crate) async fn listen(address: SocketAddr) -> Result<Health, WorkerError> {
    TcpListener::bind(address).await.map(Health).map_err(|source| WorkerError::Health { address, source })
}

impl Health {
    /// Answers until it is dropped.
    pub async fn serve(self, shared: Arc<Shared>) {
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
            let stream = match self.0.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a health check could not be taken");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let shared = Arc::clone(&shared);
            connections.spawn(async move {
                let answer = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&shared, &request))));
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), answer);
                // Whoever hung up needs no answer.
                let _ = timeout(LIMIT, connection).await;
                drop(permit);
            });
        }
    }
}

fn answer<B>(shared: &Shared, request: &Request<B>) -> Response<Full<Bytes>> {
    let (status, text) = match request.uri().path() {
        "/livez" => (StatusCode::OK, "alive\n".to_owned()),
        "/readyz" => match shared.trouble() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, format!("{trouble}\n")),
        },
        "/metrics" => (StatusCode::OK, metrics(shared)),
        _ => (StatusCode::NOT_FOUND, "there is /livez, /readyz and /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

impl Shared {
    /// Why the worker can not work now.
    fn trouble(&self) -> Option<&'static str> {
        if self.stopping.is_cancelled() {
            Some("stopping")
        } else if self.outage.is_on() || !self.transport.is_connected() {
            Some("the server or the broker does not answer as it should")
        } else {
            None
        }
    }
}

fn metrics(shared: &Shared) -> String {
    let report = shared.report();
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("running", "gauge", "Tasks being done.", shared.slots.running() as u64),
        ("unsent", "gauge", "Results that the server does not have yet.", shared.slots.unsent() as u64),
        ("done_total", "counter", "Tasks that ended well.", report.done),
        ("failed_total", "counter", "Tasks that ended badly.", report.failed),
        ("returned_total", "counter", "Tasks given back unfinished.", report.returned),
        ("lost_total", "counter", "Tasks that were taken away.", report.lost),
        ("ready", "gauge", "Whether tasks can be taken.", u64::from(shared.trouble().is_none())),
    ] {
        text.push_str(&format!(
            "# HELP relais_worker_{name} {help}\n# TYPE relais_worker_{name} {kind}\nrelais_worker_{name} {value}\n"
        ));
    }
    text
}
