//! Serves routes on a TCP listener: a bounded number of connections, a deadline for whoever keeps us waiting, and a
//! graceful end.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::ConnectInfo,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer, ServiceExt};
use tower_http::normalize_path::{NormalizePath, NormalizePathLayer};

use crate::{
    body::Carrying,
    connection::{Arriving, Deadlines, IdleAfter, Socket},
    connections::{Connections, Place},
    handover::{Handover, TakenSocket},
    openings::Openings,
    peer::{Peer, TrustedProxies},
    state::{Phase, State},
};

/// How connections are served.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// As many at once. Then one that keeps the server waiting makes room, or others wait to be accepted.
    pub max_connections: usize,
    /// As many from one address; more are closed. Never more than three quarters of all, so that others find a place.
    pub max_connections_per_peer: usize,
    /// Reverse proxies: they have as many as they like, and are believed whom they speak for.
    pub trusted_proxies: TrustedProxies,
    /// How long a request's head may take to arrive.
    pub head_timeout: Duration,
    /// How long a connection is kept between two requests.
    pub idle_timeout: Duration,
    /// How long a part of an answer may wait to be read.
    pub write_timeout: Duration,
    /// How long requests under way may go on after the end was asked for.
    pub grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_connections_per_peer: 2_500,
            trusted_proxies: TrustedProxies::default(),
            head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(30),
        }
    }
}

/// Accepting fails when the process has too many files open; trying again at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// As many connections wait to be accepted, if the system allows it (`net.core.somaxconn`).
const BACKLOG: u32 = 16_384;

/// How often it is said that an address has too many connections.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The largest head of a request, in bytes: strangers send them too.
const LARGEST_HEAD: usize = 64 * 1024;

/// A quiet connection is asked after this time whether its other end is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Listens at an address. All pages of a server may come back at once: as many connections wait to be accepted as the system
/// allows, where others would be told to try again a second later.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Elsewhere it means something else.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown`, then lets what is under way finish within the grace period.
pub async fn serve(listener: TcpListener, router: Router, options: ServeOptions, shutdown: CancellationToken) {
    let service = NormalizePathLayer::trim_trailing_slash().layer(router);
    let most_per_peer = options
        .max_connections_per_peer
        .min(options.max_connections / 4 * 3 + options.max_connections % 4 * 3 / 4)
        .max(1);
    let connections = Connections::new(options.max_connections, most_per_peer);
    let (tracker, options) = (TaskTracker::new(), Arc::new(options));
    let (mut openings, mut warned) = (Openings::new(), None);
    loop {
        let accepted = async {
            let opening = openings.wait().await;
            let (stream, address) = listener.accept().await?;
            let is_limited = !options.trusted_proxies.contains(address.ip());
            let place = connections.admit(Peer::of(address.ip()), is_limited).await;
            if let Some(place) = &place {
                openings.open(&place.state, opening);
            }
            Ok::<_, io::Error>((stream, address, place))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, address, Some(place))) => {
                let connection = connection(stream, address, &place.state, service.clone(), &options);
                let (shutdown, write_timeout, others) = (shutdown.clone(), options.write_timeout, tracker.clone());
                tracker.spawn(async move {
                    match run(connection, &place.state, &shutdown).await {
                        End::Ended(Ok(())) => {}
                        End::Ended(Err(error)) => {
                            tracing::debug!(peer = %address, error = %error, "a connection ended badly");
                        }
                        End::NoRoom => tracing::debug!(
                            peer = %address,
                            "a connection is closed: it kept the server waiting, and its place is needed"
                        ),
                        End::HandedOver => go_on(place, write_timeout, &others),
                    }
                });
            }
            Ok((_, address, None)) => {
                if warned.is_none_or(|at: Instant| at.elapsed() >= WARN_EVERY) {
                    warned = Some(Instant::now());
                    tracing::warn!(
                        peer = %address.ip(), most_per_peer,
                        "an address has as many connections as it may have, and more are closed; if it is a proxy of \
                         yours, name it in server.trusted_proxies"
                    );
                }
                closed("peer_limit");
            }
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    if tokio::time::timeout(options.grace, tracker.wait()).await.is_err() {
        tracing::warn!("some requests did not end within the grace period and are cut off");
    }
}

/// How a connection ends.
enum End {
    Ended(hyper::Result<()>),
    /// Its place is needed.
    NoRoom,
    /// An answer goes on with the socket alone.
    HandedOver,
}

/// Serves a connection to its end, and drops it.
async fn run<S>(
    connection: http1::UpgradeableConnection<TokioIo<Socket>, S>,
    state: &State,
    shutdown: &CancellationToken,
) -> End
where
    S: hyper::service::HttpService<Incoming, ResBody = Carrying<IdleAfter>, Error = Infallible>,
{
    let (mut connection, mut told) = (std::pin::pin!(connection), false);
    loop {
        tokio::select! {
            ended = connection.as_mut() => return End::Ended(ended),
            () = state.close.notified() => return End::NoRoom,
            () = state.head_sent.notified() => return End::HandedOver,
            () = shutdown.cancelled(), if !told => {
                // It ends with the answer that is under way. One that was upgraded belongs to its handler.
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Lets the answer that has taken the socket go on, in a task that is as small as it.
fn go_on(place: Place, write_timeout: Duration, tracker: &TaskTracker) {
    if let Some((driver, stream)) = place.state.take_over() {
        // What is left is an answer, for however long.
        place.state.enter(Phase::Answering);
        place.state.opened();
        tracker.spawn(driver(TakenSocket { stream, place, write_timeout }));
    }
}

fn closed(reason: &'static str) {
    metrics::counter!("relais_http_connections_closed_total", "reason" => reason).increment(1);
}

fn connection(
    stream: TcpStream,
    address: SocketAddr,
    state: &Arc<State>,
    service: NormalizePath<Router>,
    options: &Arc<ServeOptions>,
) -> http1::UpgradeableConnection<
    TokioIo<Socket>,
    impl hyper::service::HttpService<Incoming, ResBody = Carrying<IdleAfter>, Error = Infallible, Future: Send>
    + Send
    + use<>,
> {
    tune(&stream, options);
    let deadlines = Deadlines { head: options.head_timeout, idle: options.idle_timeout, write: options.write_timeout };
    let socket = Socket::new(stream, Arc::clone(state), deadlines);
    let (state, options) = (Arc::clone(state), Arc::clone(options));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        state.enter(Phase::Answering);
        let is_whole = request.body().is_end_stream();
        let mut request = request.map(|body| match is_whole {
            true => Body::empty(),
            false => Body::new(Arriving(body, Arc::clone(&state))),
        });
        let peer = options.trusted_proxies.peer(address, request.headers());
        request.extensions_mut().insert(ConnectInfo(address));
        request.extensions_mut().insert(peer);
        let handover = Handover::new(Arc::clone(&state), request.version());
        request.extensions_mut().insert(handover);
        let (answer, state) = (service.clone().oneshot(request), Arc::clone(&state));
        async move { answer.await.map(|answer| answer.map(|body| Carrying { body, _kept: IdleAfter(state) })) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades()
}

/// Small answers leave at once, and an other end that is gone is noticed.
fn tune(stream: &TcpStream, options: &ServeOptions) {
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 4);
    let tuned = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let tuned = tuned.and_then(|()| socket.set_tcp_user_timeout(Some(options.write_timeout.max(KEEP_ALIVE))));
    #[cfg(not(target_os = "linux"))]
    let _ = options;
    if let Err(error) = tuned {
        tracing::debug!(%error, "a connection keeps the system's own timeouts");
    }
}
