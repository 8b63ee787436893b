//! Somebody who calls: a consumer, a worker, an operator, a stranger.

use reqwest::{
    Client, Method, RequestBuilder,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::{Value, json};

use super::{Answer, Events};

/// Calls a [`TestApp`](super::TestApp) with the same credentials and headers each time.
#[derive(Debug, Clone)]
pub struct Caller {
    http: Client,
    url: String,
    basic: Option<(String, String)>,
    headers: HeaderMap,
}

impl Caller {
    pub(super) fn new(http: Client, url: String) -> Self {
        Self { http, url, basic: None, headers: HeaderMap::new() }
    }

    /// The same with other Basic credentials.
    #[must_use]
    pub fn basic(mut self, client_id: &str, secret: &str) -> Self {
        self.basic = Some((client_id.to_owned(), secret.to_owned()));
        self
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap_or_else(|_| panic!("{name:?} is not a header's name"));
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| panic!("{value:?} can not be sent"));
        self.headers.append(name, value);
        self
    }

    /// Reads.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// Removes.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Sends JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    /// Declares JSON.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        let request = self.request(Method::PUT, path).header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    /// Sends a text that says it is JSON.
    pub async fn post_text(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        self.send(self.request(Method::POST, path).header("content-type", "application/json").body(body)).await
    }

    /// Sends no body at all.
    pub async fn post_nothing(&self, path: &str) -> Answer {
        self.send(self.request(Method::POST, path)).await
    }

    /// Any request.
    pub async fn call(&self, method: Method, path: &str) -> Answer {
        self.send(self.request(method, path)).await
    }

    /// Any request that says it is JSON.
    pub async fn call_text(&self, method: Method, path: &str, content_type: &str, body: &str) -> Answer {
        self.send(self.request(method, path).header("content-type", content_type).body(body.to_owned())).await
    }

    /// Submits a task, which must be accepted, and returns its id.
    pub async fn submit(&self, service: &str, body: Value) -> String {
        let answer = self.post(&format!("/v1/services/{service}/tasks"), &json!({"body": body})).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        text(&answer.data()["taskId"])
    }

    /// Polls a task, which is expected to be there.
    pub async fn poll(&self, service: &str, task_id: &str) -> Value {
        let answer = self.get(&format!("/v1/services/{service}/tasks/{task_id}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.data()
    }

    /// Polls a task, and returns the HTTP status.
    pub async fn poll_status(&self, service: &str, task_id: &str) -> u16 {
        self.get(&format!("/v1/services/{service}/tasks/{task_id}")).await.status
    }

    /// Claims tasks, and gives them as they were handed out.
    pub async fn claim(&self, service: &str, request: Value) -> Vec<Value> {
        let answer = self.post(&format!("/v1/services/{service}/claims"), &request).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.data()["tasks"].as_array().cloned().unwrap_or_default()
    }

    /// Claims one task, which is expected to be there within 20 seconds.
    pub async fn claim_one(&self, service: &str) -> Value {
        let mut tasks = self.claim(service, json!({"wait": "20s"})).await;
        assert_eq!(tasks.len(), 1, "no task came");
        tasks.remove(0)
    }

    /// Sends one message about a task and returns its outcome.
    pub async fn report(&self, service: &str, task_id: &str, data: Value) -> String {
        self.message(service, json!({"taskId": task_id, "data": data})).await
    }

    /// Sends one message and returns its outcome.
    pub async fn message(&self, service: &str, message: Value) -> String {
        outcome(&self.post(&format!("/v1/services/{service}/messages"), &message).await)
    }

    /// Sends a heartbeat for a task, and returns its outcome.
    pub async fn heartbeat(&self, service: &str, task_id: &str, attempt: u64) -> String {
        let body = json!({"tasks": [{"taskId": task_id, "attempt": attempt}]});
        outcome(&self.post(&format!("/v1/services/{service}/heartbeats"), &body).await)
    }

    /// Returns a task, and returns the outcome.
    pub async fn give_back(&self, service: &str, task_id: &str, attempt: u64) -> String {
        let body = json!({"tasks": [{"taskId": task_id, "attempt": attempt}]});
        outcome(&self.post(&format!("/v1/services/{service}/returns"), &body).await)
    }

    /// Follows a task, which is expected to be there.
    pub async fn follow(&self, service: &str, task_id: &str) -> Events {
        let request = self.request(Method::GET, &format!("/v1/services/{service}/tasks/{task_id}/events"));
        let response = request.send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"));
        Events::new(response)
    }

    /// Opens a stream that ends when it is dropped.
    pub async fn open(&self, path: &str) -> reqwest::Response {
        let request = self.request(Method::GET, path).timeout(std::time::Duration::from_secs(600));
        request.send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url)).headers(self.headers.clone());
        match &self.basic {
            Some((client_id, secret)) => request.basic_auth(client_id, Some(secret)),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Answer {
        Answer::read(request.send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"))).await
    }
}

/// What became of the one entry of a request.
fn outcome(answer: &Answer) -> String {
    let data = answer.data();
    assert_eq!(data["outcomes"].as_array().map(Vec::len), Some(1), "{data}");
    text(&data["outcomes"][0]["outcome"])
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}
