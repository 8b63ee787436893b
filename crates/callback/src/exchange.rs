//! One exchange over HTTP: a `POST` and its answer. Callbacks and the sink share it.
//!
//! One deadline covers everything, from the lookup of the name to the last byte of the answer that is read. Once there
//! is a status, it decides: a body that is slow, endless or cut off changes nothing, because nobody acts on it. Nothing
//! is tried again here, no redirect is followed, no proxy is asked, no cookie is kept, nothing is decompressed, and
//! nothing of an answer is logged.

use std::{path::PathBuf, sync::Arc, time::Duration};

use relais_core::{NotAllowed, Timestamp};
use reqwest::{
    Certificate, ClientBuilder, Response, StatusCode,
    header::{CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::{
    answer,
    guard::{Guard, RuleError},
    gzip::gzip,
    resolve::{JudgingResolver, Resolver},
    signature::{self, SecretError},
    trouble::{SendError, trouble},
};

pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// How long a connection is kept for the next callback. Shorter than common servers keep theirs (5 s and more): a
/// callback on a closing connection would look like a failure of the endpoint.
const IDLE: Duration = Duration::from_secs(4);

/// How many idle connections are kept for each endpoint.
const MAX_IDLE: usize = 64;

/// The longest timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The settings of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSenderOptions {
    /// How long a try may take, from the lookup of the name to the end of the answer; an hour at most.
    pub timeout: Duration,
    /// How much of an answer is read, in bytes.
    pub answer_limit: usize,
    /// How much of an answer is kept, in bytes.
    pub excerpt_limit: usize,
    /// Whether plain `http` is allowed.
    pub allow_http: bool,
    /// Hosts that may be called although they are not public, whatever they resolve to: `name`, `*.name` or an address.
    pub allow_hosts: Vec<String>,
    /// Networks that may be called although they are not public: an address, or a CIDR.
    pub allow_networks: Vec<String>,
    /// The ports that may be called; none means 443, and 80 if `http` is allowed.
    pub ports: Vec<u16>,
    /// A PEM file with certificates of authorities that are trusted besides those of the system.
    pub root_certificates: Option<PathBuf>,
    /// The `User-Agent` of the callback sender.
    pub user_agent: String,
}

impl Default for HttpSenderOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            answer_limit: 64 * 1024,
            excerpt_limit: 1024,
            allow_http: false,
            allow_hosts: Vec::new(),
            allow_networks: Vec::new(),
            ports: Vec::new(),
            root_certificates: None,
            user_agent: concat!("relais/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// Why an HTTP sender cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum HttpSenderError {
    /// The allow lists are invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The timeout is invalid.
    #[error("a timeout is more than 0 and at most 1h, not {0:?}")]
    Timeout(Duration),
    /// The file with certificates cannot be read.
    #[error("failed to read the certificates in {path}")]
    RootCertificates {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file with certificates has none.
    #[error("there is no certificate in PEM in {path}")]
    NoRootCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The HTTP client cannot be set up: a certificate or the `User-Agent` is not acceptable.
    #[error("failed to set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}

/// What is sent, but for where to.
#[derive(Debug)]
pub(crate) struct Post {
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Whether the body is compressed on the way.
    pub gzip: bool,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The first bytes of the body, as text that does no harm.
    pub excerpt: String,
}

/// Sends `POST`s to URLs that the guard allows.
#[derive(Debug)]
pub(crate) struct Exchange {
    client: reqwest::Client,
    guard: Arc<Guard>,
    timeout: Duration,
    answer_limit: usize,
    excerpt_limit: usize,
}

impl Exchange {
    /// The resolver's answers are checked like those of any other.
    pub fn new(options: HttpSenderOptions, resolver: &Arc<dyn Resolver>) -> Result<Self, HttpSenderError> {
        if options.timeout.is_zero() || options.timeout > MAX_TIMEOUT {
            return Err(HttpSenderError::Timeout(options.timeout));
        }
        let HttpSenderOptions { allow_http, allow_hosts, allow_networks, ports, .. } = &options;
        let guard = Arc::new(Guard::new(*allow_http, allow_hosts, allow_networks, ports)?);
        let client = client(&options, &guard, resolver)?;
        let HttpSenderOptions { timeout, answer_limit, excerpt_limit, .. } = options;
        Ok(Self { client, guard, timeout, answer_limit, excerpt_limit })
    }

    /// Judges a URL without asking DNS.
    pub fn judge_url(&self, text: &str) -> Result<Url, NotAllowed> {
        self.guard.judge_url(text)
    }

    /// How long one may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends, and reads the answer.
    pub async fn post(&self, url: Url, post: Post) -> Result<Answer, SendError> {
        let deadline = Instant::now() + self.timeout;
        let Post { mut headers, body, gzip: compressed } = post;
        let sent = timeout_at(deadline, async {
            let body = match compressed {
                true => {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                    gzip(&body).await.map_err(|_| SendError::Unwell("the body could not be compressed".to_owned()))?
                }
                false => body,
            };
            self.client.post(url).headers(headers).body(body).send().await.map_err(|error| trouble(&error))
        });
        let mut response = sent.await.unwrap_or(Err(SendError::Late))?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let excerpt = self.read(response, deadline).await;
        Ok(Answer { status, headers, excerpt })
    }

    /// Asks for a document, and reads it up to one byte more than the limit.
    pub async fn get(&self, url: Url, limit: usize) -> Result<(StatusCode, Vec<u8>), SendError> {
        let deadline = Instant::now() + self.timeout;
        let sent = timeout_at(deadline, async { self.client.get(url).send().await.map_err(|error| trouble(&error)) });
        let mut response = sent.await.unwrap_or(Err(SendError::Late))?;
        let (status, mut body) = (response.status(), Vec::new());
        while body.len() <= limit {
            let chunk = timeout_at(deadline, response.chunk()).await.map_err(|_| SendError::Late)?;
            let Some(chunk) = chunk.map_err(|error| trouble(&error))? else { break };
            let room = (limit + 1).saturating_sub(body.len());
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
        Ok((status, body))
    }

    /// Reads what is kept of an answer, and a little more, so that the connection can be used again.
    async fn read(&self, mut response: Response, deadline: Instant) -> String {
        let (mut kept, mut seen) = (Vec::new(), 0);
        while seen < self.answer_limit {
            // The end, a cut and the deadline are all the same here: the status has been said.
            let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await else { break };
            seen += chunk.len();
            let room = self.excerpt_limit.saturating_sub(kept.len());
            kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
        answer::excerpt(&kept, self.excerpt_limit)
    }
}

/// The headers of Standard Webhooks: id, timestamp, and the signature if there is one; or what is wrong, as the end of a sentence.
pub(crate) fn webhook_headers(
    id: &str,
    now: Timestamp,
    sign: impl FnOnce() -> Result<Option<String>, SecretError>,
) -> Result<HeaderMap, String> {
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| "has an id that can not be sent".to_owned());
    let mut headers = HeaderMap::new();
    headers.insert(WEBHOOK_ID, value(id)?);
    headers.insert(WEBHOOK_TIMESTAMP, signature::seconds(now).into());
    if let Some(signature) = sign().map_err(|error| format!("can not be signed: {error}"))? {
        headers.insert(WEBHOOK_SIGNATURE, value(&signature)?);
    }
    Ok(headers)
}

fn client(
    options: &HttpSenderOptions,
    guard: &Arc<Guard>,
    resolver: &Arc<dyn Resolver>,
) -> Result<reqwest::Client, HttpSenderError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may be faster; then there is one, which is all that is wanted.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let builder = || -> ClientBuilder {
        reqwest::Client::builder()
            .user_agent(&options.user_agent)
            .http1_only()
            .redirect(Policy::none())
            .referer(false)
            .no_proxy()
            // Whatever another crate of the same program switches on in the client.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .retry(reqwest::retry::never())
            // Shared out among the addresses of a name, so that a dead one leaves time for the next.
            .connect_timeout(options.timeout)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .dns_resolver(JudgingResolver { guard: Arc::clone(guard), resolver: Arc::clone(resolver) })
    };
    let Some(path) = &options.root_certificates else {
        return builder().build().or_else(|error| {
            // A minimal container image has no certificates. It can still call `http`.
            let client = builder().tls_certs_only([]).build().map_err(|_| HttpSenderError::Setup(error))?;
            tracing::warn!("this system has no root certificates: no https callback will be trusted");
            Ok(client)
        });
    };
    let pem = std::fs::read(path).map_err(|source| HttpSenderError::RootCertificates { path: path.clone(), source })?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(HttpSenderError::Setup)?;
    if certificates.is_empty() {
        return Err(HttpSenderError::NoRootCertificate { path: path.clone() });
    }
    builder().tls_certs_merge(certificates).build().map_err(HttpSenderError::Setup)
}
