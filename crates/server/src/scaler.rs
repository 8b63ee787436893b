//! KEDA's external scaler, in builds that have the feature `keda`.
//!
//! The scaler itself is `relais-scaler`; this only gives it a listener, the engine, and its end.

#[cfg(feature = "keda")]
pub use with::{listen, serve};
#[cfg(not(feature = "keda"))]
pub use without::{listen, serve};

#[cfg(feature = "keda")]
mod with {
    use std::time::Duration;

    use anyhow::Context as _;
    use relais_engine::Engine;
    use relais_scaler::{ServeError, Tls};
    use tokio::{net::TcpListener, task::JoinHandle};
    use tokio_util::sync::CancellationToken;

    use crate::{cli::install_tls_provider, config::ScalerConfig};

    /// A scaler that is served, if one is configured.
    pub struct Scaling(Option<JoinHandle<Result<(), ServeError>>>);

    /// Takes its port, before anything else is begun.
    pub async fn listen(config: &ScalerConfig) -> anyhow::Result<Option<TcpListener>> {
        if config.listen.is_empty() {
            return Ok(None);
        }
        let listener = TcpListener::bind(&config.listen).await;
        Ok(Some(listener.with_context(|| format!("could not listen on {} (scaler.listen)", config.listen))?))
    }

    /// Serves it until the server is told to stop.
    pub async fn serve(
        listener: Option<TcpListener>,
        engine: &Engine,
        config: &ScalerConfig,
        stop: &CancellationToken,
    ) -> anyhow::Result<Scaling> {
        let Some(listener) = listener else { return Ok(Scaling(None)) };
        let tls = match (config.certificate.is_empty(), config.key.is_empty()) {
            (true, true) => None,
            (false, false) => {
                install_tls_provider();
                Some(Tls { certificate: (&config.certificate).into(), key: (&config.key).into() })
            }
            _ => anyhow::bail!("scaler.certificate and scaler.key belong together: set both, or none"),
        };
        let address = listener.local_addr()?;
        let serving = relais_scaler::serve(engine.clone(), listener, tls.as_ref(), stop.clone())
            .await
            .context("scaler.certificate and scaler.key can not be used")?;
        tracing::info!(%address, tls = tls.is_some(), "KEDA's external scaler is served");
        Ok(Scaling(Some(tokio::spawn(serving))))
    }

    impl Scaling {
        /// Waits until it has ended, no longer than the grace.
        pub async fn finished(self, grace: Duration) {
            let Some(mut serving) = self.0 else { return };
            match tokio::time::timeout(grace, &mut serving).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => {
                    tracing::error!(error = %relais_engine::chain(&error), "the scaler ended badly");
                }
                Ok(Err(error)) => tracing::error!(error = %error, "the scaler ended badly"),
                Err(_) => {
                    tracing::warn!("some of KEDA's questions did not end within the grace period and are cut off");
                    serving.abort();
                }
            }
        }
    }
}

#[cfg(not(feature = "keda"))]
mod without {
    use std::time::Duration;

    use relais_engine::Engine;
    use tokio_util::sync::CancellationToken;

    use crate::config::ScalerConfig;

    /// No scaler.
    pub struct Scaling;

    /// Refuses an address that this build could not serve, rather than leaving KEDA without an answer.
    pub async fn listen(config: &ScalerConfig) -> anyhow::Result<()> {
        anyhow::ensure!(
            config.listen.is_empty(),
            "scaler.listen is set, but this binary was built without KEDA's scaler: build it with --features keda"
        );
        Ok(())
    }

    /// There is nothing to serve.
    pub async fn serve((): (), _: &Engine, _: &ScalerConfig, _: &CancellationToken) -> anyhow::Result<Scaling> {
        Ok(Scaling)
    }

    impl Scaling {
        /// There is nothing to wait for.
        pub async fn finished(self, _: Duration) {}
    }
}
