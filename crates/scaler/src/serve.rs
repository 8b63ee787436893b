//! Serves the scaler, and the usual health service beside it, on a listener.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::stream;
use relais_engine::Engine;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Identity, Server, ServerTlsConfig};

use crate::{Scaler, connection::ScalerConnection, proto::external_scaler_server::ExternalScalerServer};

/// A connection that says nothing for so long is asked whether it is still there: streams may be silent for days.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Accepting fails when the process has too many files open; trying again at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// KEDA may have a connection for each workload that it scales.
const MOST_CONNECTIONS: usize = 4_096;

/// One stream for each workload that is scaled.
const MOST_STREAMS: u32 = 1_000;

/// A question is a few hundred bytes.
const LARGEST_QUESTION: usize = 64 * 1024;

/// Certificate and key, as files.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate, with those that vouch for it (PEM).
    pub certificate: PathBuf,
    /// The key to it (PEM).
    pub key: PathBuf,
}

/// Why the scaler can not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file can not be read.
    #[error("{} can not be read", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The certificate or its key can not be used, or serving failed.
    #[error("the scaler can not be served")]
    Transport(#[from] tonic::transport::Error),
}

/// Gets ready to serve; what comes back serves until `shutdown`, after which streams end and questions under way are
/// answered. A certificate that can not be used is an error here, before anything is served.
pub async fn serve(
    engine: Engine,
    listener: TcpListener,
    tls: Option<&Tls>,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = Result<(), ServeError>> + Send + use<>, ServeError> {
    let mut server =
        Server::builder().http2_keepalive_interval(Some(KEEPALIVE)).http2_keepalive_timeout(Some(KEEPALIVE));
    server = server.max_concurrent_streams(Some(MOST_STREAMS));
    if let Some(tls) = tls {
        let identity = Identity::from_pem(read(&tls.certificate).await?, read(&tls.key).await?);
        server = server.tls_config(ServerTlsConfig::new().identity(identity))?;
    }
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ExternalScalerServer<Scaler>>().await;
    let scaler = ExternalScalerServer::new(Scaler::new(engine)).max_decoding_message_size(LARGEST_QUESTION);
    let router = server.add_service(scaler).add_service(health_service);
    Ok(async move {
        // The health service has streams too, which would never end.
        let stopped = async move {
            shutdown.cancelled().await;
            health.set_not_serving::<ExternalScalerServer<Scaler>>().await;
        };
        router.serve_with_incoming_shutdown(connections(listener), stopped).await?;
        Ok(())
    })
}

async fn read(path: &Path) -> Result<Vec<u8>, ServeError> {
    tokio::fs::read(path).await.map_err(|error| ServeError::File(path.to_owned(), error))
}

/// What is accepted: so many at once, others wait. Never ends, and never fails: one connection that could not be
/// accepted is no reason to stop.
fn connections(listener: TcpListener) -> impl futures::Stream<Item = std::io::Result<ScalerConnection>> {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    stream::unfold((listener, places), |(listener, places)| async move {
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _peer)) => {
                    let _: Result<(), std::io::Error> = stream.set_nodelay(true);
                    return Some((Ok(ScalerConnection::new(stream, place)), (listener, places)));
                }
                Err(error) => {
                    tracing::warn!(error = %error, "a connection of KEDA could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}
