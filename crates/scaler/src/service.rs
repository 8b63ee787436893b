//! The answers to KEDA's questions.

use std::pin::Pin;

use futures::{Stream, StreamExt as _, stream};
use relais_core::StoreError;
use relais_engine::{Engine, EngineError};
use tonic::{Request, Response, Status};

use crate::{
    Question,
    proto::{
        GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
        ScaledObjectRef, external_scaler_server::ExternalScaler,
    },
};

/// Answers KEDA.
#[derive(Clone)]
pub struct Scaler {
    engine: Engine,
}

impl Scaler {
    /// One that speaks for this engine.
    pub const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    async fn count(&self, question: &Question) -> Result<(u64, bool), Status> {
        let depth = self.engine.queue_depth(&question.service).await.map_err(|error| refusal(&error, question))?;
        Ok((question.count(&depth), question.is_active(&depth)))
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream = Answers<IsActiveResponse>;
    type StreamMetricSpecStream = Answers<GetMetricSpecResponse>;

    async fn is_active(&self, request: Request<ScaledObjectRef>) -> Result<Response<IsActiveResponse>, Status> {
        let question = Question::read(request.get_ref())?;
        let (_, result) = self.count(&question).await?;
        Ok(Response::new(IsActiveResponse { result }))
    }

    /// Tells the present state, then every change of it, as it happens.
    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let question = Question::read(request.get_ref())?;
        let watch = self.engine.watch_queue(&question.service).map_err(|error| refusal(&error, &question))?;
        let answers = stream::unfold((watch, question, None), |(mut watch, question, told)| async move {
            loop {
                let Some(depth) = watch.next().await else {
                    // Told in so many words, so that KEDA opens another stream, at another process perhaps.
                    return None;
                };
                let result = question.is_active(&depth);
                if told != Some(result) {
                    return Some((Ok(IsActiveResponse { result }), (watch, question, Some(result))));
                }
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let question = Question::read(request.get_ref())?;
        // A trigger that names no service of ours is told so here, where whoever wrote it sees it first.
        self.count(&question).await?;
        Ok(Response::new(spec(&question)))
    }

    async fn get_metrics(&self, request: Request<GetMetricsRequest>) -> Result<Response<GetMetricsResponse>, Status> {
        let request = request.into_inner();
        let object = request.scaled_object_ref.ok_or_else(|| Status::invalid_argument("scaledObjectRef is missing"))?;
        let question = Question::read(&object)?;
        let (count, _) = self.count(&question).await?;
        // KEDA asks under the name that it was given; whatever it says is meant.
        let name = match request.metric_name.is_empty() {
            true => question.metric_name(),
            false => request.metric_name,
        };
        let value = MetricValue {
            metric_name: name,
            metric_value: i64::try_from(count).unwrap_or(i64::MAX),
            metric_value_float: count as f64,
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }

    /// The metadata says it all, and new metadata is a new stream: one answer, then silence until the end.
    async fn stream_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        let question = Question::read(request.get_ref())?;
        self.count(&question).await?;
        let stopping = self.engine.stopping();
        let silence = stream::once(stopping.cancelled_owned()).filter_map(|()| std::future::ready(None));
        Ok(Response::new(stream::iter([Ok(spec(&question))]).chain(silence).boxed()))
    }
}

fn spec(question: &Question) -> GetMetricSpecResponse {
    let spec = MetricSpec {
        metric_name: question.metric_name(),
        // Whole numbers only: rounded up, and never 0, which would be a division by it.
        target_size: question.target.ceil().max(1.0) as i64,
        target_size_float: question.target,
    };
    GetMetricSpecResponse { metric_specs: vec![spec] }
}

fn refusal(error: &EngineError, question: &Question) -> Status {
    match error {
        EngineError::ServiceNotFound => {
            Status::not_found(format!("there is no service `{}`: is it declared?", question.service))
        }
        EngineError::Stopping => Status::unavailable("Relais is about to stop"),
        EngineError::Store(cause) if matches!(**cause, StoreError::Unavailable(_)) => {
            Status::unavailable("the store of Relais is away")
        }
        other => {
            tracing::error!(error = %relais_engine::chain(other), service = question.service, "KEDA could not be answered");
            Status::internal("Relais could not do it; its log says why")
        }
    }
}
