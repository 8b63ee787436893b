//! The callback sender over HTTP: one `POST` for each try, to the URL of the client.
//!
//! One deadline covers everything, from the lookup of the name to the last byte of the answer that is read. Once there
//! is a status, it decides: a body that is slow, endless or cut off changes nothing, because nobody acts on it. Nothing
//! is tried again here, no redirect is followed, no proxy is asked, no cookie is kept, nothing is decompressed, and
//! nothing of an answer is logged.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_core::{CallbackDelivery, CallbackSender, CallbackType, Client, NotAllowed, Reply, ReplyOutcome};
use reqwest::{
    Certificate, ClientBuilder, Response,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::{
    answer,
    guard::{Guard, RuleError},
    gzip::gzip,
    resolve::{JudgingResolver, Resolver, SystemResolver},
    signature,
    trouble::{SendError, trouble},
};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

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

/// Why a callback sender cannot be created.
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

/// Sends callbacks of the types `https` and `http`.
#[derive(Debug)]
pub struct HttpSender {
    client: reqwest::Client,
    guard: Arc<Guard>,
    timeout: Duration,
    answer_limit: usize,
    excerpt_limit: usize,
}

impl HttpSender {
    /// Creates a callback sender with the system's resolver.
    pub fn new(options: HttpSenderOptions) -> Result<Self, HttpSenderError> {
        Self::with_resolver(options, Arc::new(SystemResolver::default()))
    }

    /// Creates a callback sender with this resolver. Its answers are checked like those of any other.
    pub fn with_resolver(options: HttpSenderOptions, resolver: Arc<dyn Resolver>) -> Result<Self, HttpSenderError> {
        if options.timeout.is_zero() || options.timeout > MAX_TIMEOUT {
            return Err(HttpSenderError::Timeout(options.timeout));
        }
        let HttpSenderOptions { allow_http, allow_hosts, allow_networks, ports, .. } = &options;
        let guard = Arc::new(Guard::new(*allow_http, allow_hosts, allow_networks, ports)?);
        let client = client(&options, &guard, &resolver)?;
        let HttpSenderOptions { timeout, answer_limit, excerpt_limit, .. } = options;
        Ok(Self { client, guard, timeout, answer_limit, excerpt_limit })
    }

    fn judge_target(&self, kind: CallbackType, target: &str) -> Result<Url, NotAllowed> {
        let url = self.guard.judge_url(target)?;
        if url.scheme() != kind.as_str() {
            return Err(NotAllowed(format!("a callback of type {} needs a URL of that scheme", kind.as_str())));
        }
        Ok(url)
    }

    async fn send(&self, delivery: &CallbackDelivery, deadline: Instant) -> Result<Response, Reply> {
        let url = self.judge_target(delivery.kind, &delivery.target).map_err(|NotAllowed(why)| forbidden(why))?;
        let headers = headers(delivery).map_err(forbidden)?;
        let sent = timeout_at(deadline, async {
            let body = match delivery.gzip {
                true => gzip(&delivery.body)
                    .await
                    .map_err(|_| SendError::Unwell("the body could not be compressed".to_owned()))?,
                false => delivery.body.clone().into_bytes(),
            };
            self.client.post(url).headers(headers).body(body).send().await.map_err(|error| trouble(&error))
        });
        let no_answer = || unwell(format!("no answer within {:?}", self.timeout));
        match sent.await {
            Err(_) | Ok(Err(SendError::Late)) => Err(no_answer()),
            Ok(Err(SendError::Unwell(why))) => Err(unwell(why)),
            Ok(Err(SendError::Forbidden(why))) => Err(forbidden(why)),
            Ok(Ok(response)) => Ok(response),
        }
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

#[async_trait]
impl CallbackSender for HttpSender {
    fn judge(&self, kind: CallbackType, target: &str, _client: &Client) -> Result<String, NotAllowed> {
        let url = self.judge_target(kind, target)?;
        let port = url.port_or_known_default().unwrap_or_default();
        Ok(format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or_default()))
    }

    async fn send(&self, delivery: &CallbackDelivery) -> Reply {
        let deadline = Instant::now() + self.timeout;
        let response = match self.send(delivery, deadline).await {
            Ok(response) => response,
            Err(reply) => return reply,
        };
        let status = response.status();
        let (outcome, error) = answer::outcome(status, response.headers(), delivery.now);
        let text = self.read(response, deadline).await;
        let answer = Some(text).filter(|text| !text.is_empty());
        Reply { outcome, status: Some(status.as_u16()), error, answer }
    }
}

/// The headers and the body of a callback; or why it cannot be sent.
fn headers(delivery: &CallbackDelivery) -> Result<HeaderMap, String> {
    let signed =
        signature::sign_all(&delivery.client.signing_secrets, &delivery.id, delivery.now, delivery.body.as_bytes());
    let signature = signed.map_err(|error| format!("the callback can not be signed: {error}"))?;
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| "the callback's id can not be sent".to_owned());
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(WEBHOOK_ID, value(&delivery.id)?);
    headers.insert(WEBHOOK_TIMESTAMP, signature::seconds(delivery.now).into());
    if let Some(signature) = signature {
        headers.insert(WEBHOOK_SIGNATURE, value(&signature)?);
    }
    if let Some(trace) = &delivery.trace {
        headers.insert(TRACEPARENT, value(trace.traceparent())?);
        if let Some(state) = trace.tracestate() {
            headers.insert(TRACESTATE, value(state)?);
        }
    }
    if delivery.gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
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

fn forbidden(why: String) -> Reply {
    Reply { outcome: ReplyOutcome::Forbidden, status: None, error: Some(why), answer: None }
}

fn unwell(why: String) -> Reply {
    Reply { outcome: ReplyOutcome::Unwell { retry_after: None }, status: None, error: Some(why), answer: None }
}
