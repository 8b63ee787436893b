//! A caller of the HTTP API that takes every answer, good or bad, as it is.

use std::{sync::Once, time::Duration};

use anyhow::{Context, Result, bail};
use reqwest::{Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;

/// Longer than any answer may take: the store's own deadline is 15 s, and a long poll asks for 30 s at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody who calls one server.
#[derive(Debug, Clone)]
pub struct Api {
    http: reqwest::Client,
    url: String,
    credentials: Option<(String, String)>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, where it is JSON.
    pub body: Value,
}

impl Answer {
    /// What was asked for; an error shows the answer.
    pub fn data(self) -> Result<Value> {
        match self.body {
            Value::Object(mut fields) if (200..300).contains(&self.status) => {
                fields.remove("data").context("an answer without data")
            }
            body => bail!("answered {}: {body}", self.status),
        }
    }

    /// The number of a refusal; 0 if it is none.
    pub fn number(&self) -> u64 {
        self.body["error"]["number"].as_u64().unwrap_or(0)
    }
}

impl Api {
    /// An operator on the same machine.
    pub fn admin(url: impl Into<String>) -> Result<Self> {
        // Without one, the client's constructor panics, though nothing here is encrypted.
        static CRYPTOGRAPHY: Once = Once::new();
        CRYPTOGRAPHY.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let http = reqwest::Client::builder()
            .tls_certs_only([])
            .no_proxy()
            .timeout(PATIENCE)
            .build()
            .context("set up the HTTP client")?;
        Ok(Self { http, url: url.into(), credentials: None })
    }

    /// The same caller, as a client.
    pub fn with(&self, client_id: &str, secret: &str) -> Self {
        Self { credentials: Some((client_id.to_owned(), secret.to_owned())), ..self.clone() }
    }

    /// A request that can still be changed.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.credentials {
            Some((client_id, secret)) => request.basic_auth(client_id, Some(secret)),
            None => request,
        }
    }

    /// Sends a request; fails only if there is no answer.
    pub async fn send(request: RequestBuilder) -> Result<Answer, reqwest::Error> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = serde_json::from_slice(&response.bytes().await?).unwrap_or(Value::Null);
        Ok(Answer { status, headers, body })
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        Self::send(self.request(Method::GET, path)).await
    }

    /// POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, reqwest::Error> {
        Self::send(self.request(Method::POST, path).json(body)).await
    }

    /// PUT of JSON.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer, reqwest::Error> {
        Self::send(self.request(Method::PUT, path).json(body)).await
    }
}
