//! Serves the routes on a TCP listener: a bounded number of connections, a bounded wait for each request's head, and a
//! graceful end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::ConnectInfo};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;
use tower::{Layer, ServiceExt};
use tower_http::normalize_path::{NormalizePath, NormalizePathLayer};

/// How connections are served.
#[derive(Debug, Clone, Copy)]
pub struct HttpOptions {
    /// As many at once; others wait to be accepted.
    pub max_connections: usize,
    /// How long a request's head may take to arrive. Also how long an idle connection is kept.
    pub head_timeout: Duration,
    /// How long requests under way may go on after the end was asked for.
    pub grace: Duration,
}

/// Accepting fails when the process has too many files open; trying again at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then lets what is under way finish within the grace period.
pub async fn serve(listener: TcpListener, router: Router, options: HttpOptions, shutdown: CancellationToken) {
    let service = NormalizePathLayer::trim_trailing_slash().layer(router);
    let places = Arc::new(Semaphore::new(options.max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = graceful.watch(connection(stream, peer, service.clone(), options.head_timeout));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%peer, error = %error, "a connection ended badly");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(options.grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end within the grace period and are cut off");
    }
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    service: NormalizePath<Router>,
    head_timeout: Duration,
) -> http1::Connection<
    TokioIo<TcpStream>,
    impl hyper::service::HttpService<Incoming, ResBody = Body, Error = std::convert::Infallible, Future: Send> + Send,
> {
    // Small answers should leave at once.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        service.clone().oneshot(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .serve_connection(TokioIo::new(stream), service)
}
