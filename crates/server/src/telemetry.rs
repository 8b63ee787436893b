//! Traces over OTLP, in builds that have the feature `otlp`.
//!
//! Spans are made by the parts themselves (`tracing`); this only says where they go.

use tracing_subscriber::{Layer, Registry};

use crate::config::TelemetryConfig;

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The layer that sends spans, if an endpoint is configured.
#[cfg(feature = "otlp")]
pub fn layer(config: &TelemetryConfig) -> anyhow::Result<Option<BoxedLayer>> {
    exporter::layer(config)
}

/// Sends what is left.
#[cfg(feature = "otlp")]
pub fn flush() {
    exporter::flush();
}

/// Refuses an endpoint that this build could not use, rather than losing traces in silence.
#[cfg(not(feature = "otlp"))]
pub fn layer(config: &TelemetryConfig) -> anyhow::Result<Option<BoxedLayer>> {
    anyhow::ensure!(
        config.otlp_endpoint.is_empty(),
        "telemetry.otlp_endpoint is set, but this binary was built without traces: build it with --features otlp"
    );
    Ok(None)
}

/// There is nothing to send.
#[cfg(not(feature = "otlp"))]
pub fn flush() {}

#[cfg(feature = "otlp")]
mod exporter {
    use std::{collections::HashMap, sync::OnceLock};

    use anyhow::Context as _;
    use opentelemetry::{propagation::TextMapPropagator as _, trace::TracerProvider as _};
    use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
    use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
    use relais_engine::trace::{Tracer, Trail};
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _};

    use super::BoxedLayer;
    use crate::{cli::install_tls_provider, config::TelemetryConfig};

    static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

    pub(super) fn layer(config: &TelemetryConfig) -> anyhow::Result<Option<BoxedLayer>> {
        if config.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        install_tls_provider();
        let endpoint = format!("{}/v1/traces", config.otlp_endpoint.trim_end_matches('/'));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()
            .context("telemetry.otlp_endpoint can not be used")?;
        let resource = Resource::builder().with_service_name(config.service_name.clone()).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
        let tracer = provider.tracer("relais");
        let _ = PROVIDER.set(provider);
        relais_engine::trace::install(W3c(TraceContextPropagator::new()));
        // Spans of ours, whatever the log's level is; the exporter's own requests must not make new ones.
        let filter =
            EnvFilter::try_new("off,relais_api=debug,relais_engine=debug,relais_store=debug,relais_worker=debug")?;
        Ok(Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter).boxed()))
    }

    /// Puts spans into the traces of tasks.
    struct W3c(TraceContextPropagator);

    impl Tracer for W3c {
        fn go_on(&self, span: &tracing::Span, from: &Trail) {
            let named = [("traceparent", &from.traceparent), ("tracestate", &from.tracestate)];
            let headers: HashMap<String, String> =
                named.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.clone()?))).collect();
            // A span that is not exported has no parent either.
            let _ = span.set_parent(self.0.extract(&headers));
        }

        fn trail(&self, span: &tracing::Span) -> Option<Trail> {
            let mut headers = HashMap::new();
            self.0.inject_context(&span.context(), &mut headers);
            let traceparent = headers.remove("traceparent")?;
            let tracestate = headers.remove("tracestate").filter(|state| !state.is_empty());
            Some(Trail { traceparent: Some(traceparent), tracestate })
        }
    }

    pub(super) fn flush() {
        if let Some(provider) = PROVIDER.get()
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(error = %error, "the last traces were not sent");
        }
    }
}
