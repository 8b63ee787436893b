//! Spans in the traces that tasks belong to.
//!
//! Code that handles a task makes a span and calls [`go_on`] with the W3C headers of the task: the span becomes part of
//! that trace, and the returned headers are for the next step. If no spans are exported, nothing happens and the same
//! headers are returned. The exporter is installed once per process, as for `tracing` itself: [`install`].

use std::sync::OnceLock;

use tracing::Span;

/// The W3C's headers of a trace context. Those who have none belong to no trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trail {
    /// `traceparent`: version, trace, parent span, flags.
    pub traceparent: Option<String>,
    /// `tracestate`: what vendors add.
    pub tracestate: Option<String>,
}

/// Knows the traces that spans are part of.
pub trait Tracer: Send + Sync {
    /// Makes a span that has not begun part of the trace that the headers name.
    fn go_on(&self, span: &Span, from: &Trail);

    /// The headers for whoever goes on from a span; none if it is not exported.
    fn trail(&self, span: &Span) -> Option<Trail>;
}

static TRACER: OnceLock<Box<dyn Tracer>> = OnceLock::new();

/// Spans are exported from now on. Once for a process: false if that was said before.
pub fn install(tracer: impl Tracer + 'static) -> bool {
    TRACER.set(Box::new(tracer)).is_ok()
}

/// Whether spans are exported.
pub fn is_installed() -> bool {
    TRACER.get().is_some()
}

/// Makes a new span part of a trace; tells from where others go on.
pub fn go_on(span: &Span, from: Trail) -> Trail {
    let Some(tracer) = TRACER.get() else { return from };
    if from.traceparent.is_some() {
        tracer.go_on(span, &from);
    }
    tracer.trail(span).unwrap_or(from)
}

/// From where others go on who are told something by the current span; none where spans are not exported.
pub fn here() -> Option<Trail> {
    TRACER.get()?.trail(&Span::current())
}
