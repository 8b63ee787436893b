//! One service of one server, over HTTP: addresses, credentials, and answers taken out of their envelope.
//!
//! Nothing is tried again here, and nothing is logged: the callers know whether and when that makes sense.

use std::{fmt, time::Duration};

use relais_protocol::{Failure, Success};
use reqwest::{Method, RequestBuilder, redirect::Policy};
use serde::{Serialize, de::DeserializeOwned};
use url::Url;

use crate::CallError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A long poll is silent for long: this tells a slow server from one that has vanished.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// How long an answer may take, beyond the time that the server was asked to wait.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A service of a server, and who calls it.
#[derive(Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
    service: Url,
    name: String,
    client_id: String,
    client_secret: String,
}

impl fmt::Debug for Http {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.service, self.client_id)
    }
}

impl Http {
    pub fn new(url: &str, client_id: &str, client_secret: &str, service: &str) -> Result<Self, CallError> {
        let name = service.to_owned();
        let service = service_address(url, service)?;
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may be faster; then there is one, which is all that is wanted.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("relais-worker/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE)
            .redirect(Policy::none());
        if service.scheme() == "http" {
            // The system's certificates are not needed, and a minimal container image has none.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(CallError::Setup)?;
        let (client_id, client_secret) = (client_id.to_owned(), client_secret.to_owned());
        Ok(Self { client, service, name, client_id, client_secret })
    }

    /// The address of something of the service.
    pub fn address(&self, path: &[&str]) -> Url {
        let mut url = self.service.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        url
    }

    /// The address of something that is of no service: what comes after `/v1`.
    pub fn above(&self, path: &[&str]) -> Url {
        let mut url = self.service.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop().pop().extend(path);
        }
        url
    }

    /// The service's name.
    pub fn service_name(&self) -> &str {
        &self.name
    }

    /// A request with the caller's credentials.
    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.request(method, url).basic_auth(&self.client_id, Some(&self.client_secret)).timeout(ANSWER_TIMEOUT)
    }

    /// A request with a body.
    pub fn post(&self, path: &[&str], body: &impl Serialize) -> Result<RequestBuilder, CallError> {
        self.post_to(self.address(path), body)
    }

    /// The same, to any address.
    pub fn post_to(&self, url: Url, body: &impl Serialize) -> Result<RequestBuilder, CallError> {
        // Not `RequestBuilder::json`: its error could not be told from that of a server that is away.
        let body = serde_json::to_vec(body).map_err(CallError::Unwritable)?;
        let request = self.request(Method::POST, url);
        Ok(request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body))
    }
}

/// Sends a request and takes the answer out of its envelope.
pub(crate) async fn send<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, CallError> {
    let response = request.send().await.map_err(CallError::Unreachable)?;
    let status = response.status();
    let body = response.bytes().await.map_err(CallError::Unreachable)?;
    if status.is_success() {
        return serde_json::from_slice::<Success<T>>(&body).map(|answer| answer.data).map_err(CallError::Unreadable);
    }
    Err(refusal(status.as_u16(), &body))
}

/// A refusal of Relais, or of whatever stands before it and speaks no JSON.
fn refusal(status: u16, body: &[u8]) -> CallError {
    match serde_json::from_slice::<Failure>(body) {
        Ok(Failure { error, .. }) => {
            CallError::Refused { number: error.number, description: error.description, details: error.details }
        }
        Err(_) => CallError::Refused {
            number: u32::from(status) * 1000,
            description: format!("HTTP status {status}"),
            details: Vec::new(),
        },
    }
}

fn service_address(url: &str, service: &str) -> Result<Url, CallError> {
    let wrong = |source| CallError::Address { url: url.to_owned(), source };
    let mut address = Url::parse(url).map_err(|error| wrong(Some(error)))?;
    if !matches!(address.scheme(), "http" | "https") {
        return Err(wrong(None));
    }
    address.set_query(None);
    address.set_fragment(None);
    address.path_segments_mut().map_err(|()| wrong(None))?.pop_if_empty().extend(["v1", "services", service]);
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_the_prefix_and_escape_the_name() {
        for (url, address) in [
            ("http://h:8080", "http://h:8080/v1/services/a%20b%2Fc"),
            ("http://h:8080/", "http://h:8080/v1/services/a%20b%2Fc"),
            ("https://h/relais/", "https://h/relais/v1/services/a%20b%2Fc"),
        ] {
            assert_eq!(service_address(url, "a b/c").unwrap().as_str(), address);
        }
        let http = Http::new("http://h", "me", "hush", "s").unwrap();
        assert_eq!(http.address(&["tasks", "t"]).as_str(), "http://h/v1/services/s/tasks/t");
        assert_eq!(http.above(&["batches", "b"]).as_str(), "http://h/v1/batches/b");
    }

    #[test]
    fn an_invalid_server_url_is_refused() {
        for url in ["", "localhost:8080", "ftp://h", "http://"] {
            assert!(matches!(service_address(url, "s"), Err(CallError::Address { .. })), "{url}");
        }
    }

    #[test]
    fn the_secret_is_not_shown() {
        let http = Http::new("http://h", "me", "hush", "s").unwrap();
        assert_eq!(format!("{http:?}"), "http://h/v1/services/s as me");
    }

    #[test]
    fn a_refusal_without_an_envelope_is_known_by_its_status() {
        let error = refusal(502, b"<html>Bad Gateway</html>");
        assert_eq!(error.number(), Some(502_000));
        assert!(error.is_passing());
        let error = refusal(404, br#"{"status":"error","error":{"number":404001,"description":"Service not found."}}"#);
        assert_eq!(error.to_string(), "the server refused: Service not found. (404001)");
    }
}
