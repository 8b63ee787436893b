//! The client of a consumer: submit, wait, read, cancel, list.
//!
//! Thin and typed. Only [`Client::wait`] retries; everything else is one call, and the caller decides.

use std::time::Duration;

use relais_protocol::{
    HumanDuration,
    callback::CallbackRequest,
    consumer::{AfterRequest, MAX_WAIT, SubmitAnswer, TaskPage, TaskStatus, TaskView},
};
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    CallError,
    backoff::Backoff,
    http::{ANSWER_TIMEOUT, Http, send},
};

/// How long one call waits for the end of a task before the next call. Proxies cut longer ones.
const WAIT: Duration = Duration::from_secs(30);

/// Calls one service of one server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) http: Http,
}

/// The options of a submission.
#[derive(Debug, Clone, Default)]
pub struct SubmitOptions {
    /// The idempotency key: a second submission with the same key gets the task of the first one.
    pub idempotency_key: Option<String>,
    /// The correlation id.
    pub correlation_id: Option<String>,
    /// The callback for the end of the task.
    pub callback: Option<CallbackRequest>,
    /// Its dependencies.
    pub after: Option<AfterRequest>,
    /// The parent: one's own task, or the one that is being run. The new task gets its correlation id and trace.
    pub parent_id: Option<String>,
    /// The open batch that it belongs to.
    pub batch_id: Option<String>,
    /// The trace context: a W3C `traceparent`, such as [`Context::traceparent`](crate::Context::traceparent).
    pub traceparent: Option<String>,
}

/// Which of one's tasks to list; all of them unless something is set.
#[derive(Debug, Clone, Default)]
pub struct TaskQuery {
    /// In one of these.
    pub statuses: Vec<TaskStatus>,
    /// Submitted at this time or later, RFC 3339.
    pub from: Option<String>,
    /// Submitted before this time, RFC 3339.
    pub before: Option<String>,
    /// With this correlation id.
    pub correlation_id: Option<String>,
    /// Parts of this task; not together with a correlation id.
    pub parent_id: Option<String>,
    /// At most so many on a page.
    pub limit: Option<u32>,
    /// The page after the one that gave this as `next_cursor`.
    pub cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Submission<'a, B: ?Sized> {
    body: &'a B,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback: Option<&'a CallbackRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a AfterRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_id: Option<&'a str>,
}

impl<'a, B: ?Sized> Submission<'a, B> {
    fn new(body: &'a B, options: &'a SubmitOptions) -> Self {
        Self {
            body,
            callback: options.callback.as_ref(),
            correlation_id: options.correlation_id.as_deref(),
            after: options.after.as_ref(),
            parent_id: options.parent_id.as_deref(),
            batch_id: options.batch_id.as_deref(),
        }
    }
}

impl Client {
    /// A client of a service of the server at `url`. It needs the role `consume` on it.
    ///
    /// # Errors
    ///
    /// If the address is not one, or the HTTP client can not be set up.
    pub fn new(url: &str, client_id: &str, client_secret: &str, service: &str) -> Result<Self, CallError> {
        Ok(Self { http: Http::new(url, client_id, client_secret, service)? })
    }

    /// The service's name.
    pub fn service_name(&self) -> &str {
        self.http.service_name()
    }

    /// Submits a task; its id comes back.
    pub async fn submit<B: Serialize + ?Sized>(&self, body: &B) -> Result<String, CallError> {
        Ok(self.submit_with(body, &SubmitOptions::default()).await?.task_id)
    }

    /// Submits a task with options.
    pub async fn submit_with<B: Serialize + ?Sized>(
        &self,
        body: &B,
        options: &SubmitOptions,
    ) -> Result<SubmitAnswer, CallError> {
        let request = self.http.post(&["tasks"], &Submission::new(body, options))?;
        let mut request = trace(request, options.traceparent.as_deref());
        if let Some(key) = &options.idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        send(request).await
    }

    /// A task as it is now.
    pub async fn task(&self, task_id: &str) -> Result<TaskView, CallError> {
        send(self.http.request(Method::GET, self.http.address(&["tasks", task_id]))).await
    }

    /// Waits until a task has ended, or the time is up: look at the status. Retries while the server is away.
    pub async fn wait(&self, task_id: &str, time: Duration) -> Result<TaskView, CallError> {
        let deadline = Instant::now() + time;
        let mut backoff = Backoff::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.wait_once(task_id, left.min(WAIT).min(MAX_WAIT.0)).await {
                Ok(view) if view.status.is_final() || Instant::now() >= deadline => {
                    return Ok(view);
                }
                Ok(_) => backoff.reset(),
                Err(error) => {
                    let wait = backoff.next();
                    if !error.is_passing() || Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    sleep(wait).await;
                }
            }
        }
    }

    /// Cancels a task. Once it has ended otherwise, this is refused with 409002.
    pub async fn cancel(&self, task_id: &str) -> Result<TaskView, CallError> {
        send(self.http.request(Method::DELETE, self.http.address(&["tasks", task_id]))).await
    }

    /// One's own tasks, the newest first, a page at a time.
    pub async fn list(&self, query: &TaskQuery) -> Result<TaskPage, CallError> {
        let mut url = self.http.address(&["tasks"]);
        let statuses: Vec<_> = query.statuses.iter().map(|status| wire_name(*status)).collect();
        let parameters = [
            ("status", (!statuses.is_empty()).then(|| statuses.join(","))),
            ("from", query.from.clone()),
            ("before", query.before.clone()),
            ("correlationId", query.correlation_id.clone()),
            ("parentId", query.parent_id.clone()),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("cursor", query.cursor.clone()),
        ];
        for (name, value) in parameters {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, &value);
            }
        }
        send(self.http.request(Method::GET, url)).await
    }

    async fn wait_once(&self, task_id: &str, wait: Duration) -> Result<TaskView, CallError> {
        let mut url = self.http.address(&["tasks", task_id]);
        url.query_pairs_mut().append_pair("wait", &HumanDuration(wait).to_string());
        send(self.http.request(Method::GET, url).timeout(wait + ANSWER_TIMEOUT)).await
    }
}

/// Says whose trace a request is part of.
pub(crate) fn trace(request: RequestBuilder, traceparent: Option<&str>) -> RequestBuilder {
    match traceparent {
        Some(parent) => request.header("traceparent", parent),
        None => request,
    }
}

fn wire_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Pending => "PENDING",
        TaskStatus::InProgress => "IN_PROGRESS",
        TaskStatus::Success => "SUCCESS",
        TaskStatus::Failure => "FAILURE",
        TaskStatus::Cancelled => "CANCELLED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_names_of_the_wire() {
        for status in [
            TaskStatus::Pending,
            TaskStatus::InProgress,
            TaskStatus::Success,
            TaskStatus::Failure,
            TaskStatus::Cancelled,
        ] {
            assert_eq!(serde_json::to_string(&status).unwrap(), format!("{:?}", wire_name(status)));
        }
    }

    #[test]
    fn a_submission_says_only_what_is_set() {
        let written = |options: &SubmitOptions| {
            serde_json::to_string(&Submission::new(&serde_json::json!({"n": 1}), options)).unwrap()
        };
        assert_eq!(written(&SubmitOptions::default()), r#"{"body":{"n":1}}"#);
        let options = SubmitOptions { correlation_id: Some("c".to_owned()), ..SubmitOptions::default() };
        assert_eq!(written(&options), r#"{"body":{"n":1},"correlationId":"c"}"#);
    }
}
