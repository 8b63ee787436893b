//! Traces over OTLP, in builds that have the feature `otlp`.
//!
//! Spans are made by the parts themselves (`tracing`); this only says where they go.

use relais_api::ContinueTrace;
use tracing_subscriber::{Layer, Registry};

use crate::config::TelemetryConfig;

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The layer that sends spans, if an endpoint is configured.
#[cfg(feature = "otlp")]
pub fn layer(config: &TelemetryConfig) -> anyhow::Result<Option<BoxedLayer>> {
    exporter::layer(config)
}

/// What makes a request's span part of its caller's trace.
#[cfg(feature = "otlp")]
pub fn continue_trace() -> Option<ContinueTrace> {
    Some(ContinueTrace(std::sync::Arc::new(exporter::go_on)))
}

/// There are no traces to continue.
#[cfg(not(feature = "otlp"))]
pub fn continue_trace() -> Option<ContinueTrace> {
    None
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
        // Spans of ours, whatever the log's level is; the exporter's own requests must not make new ones.
        let filter = EnvFilter::try_new("off,relais_api=debug,relais_engine=debug,relais_store=debug")?;
        Ok(Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter).boxed()))
    }

    /// The span becomes a child of the one that the headers name.
    pub(super) fn go_on(span: &tracing::Span, traceparent: &str, tracestate: Option<&str>) {
        let mut headers = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
        headers.extend(tracestate.map(|state| ("tracestate".to_owned(), state.to_owned())));
        let _ = span.set_parent(TraceContextPropagator::new().extract(&headers));
    }

    pub(super) fn flush() {
        if let Some(provider) = PROVIDER.get()
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(error = %error, "the last traces were not sent");
        }
    }
}
