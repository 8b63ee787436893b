//! RabbitMQ's management API, as much of it as a service needs: policies, and what is in a queue.
//!
//! Policies are what AMQP can not set: where dead letters go, how long and how many messages a queue keeps.

use std::time::Duration;

use reqwest::{Method, StatusCode, redirect::Policy};
use serde_json::{Value, json};
use url::Url;

/// How long it may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The management API of a node, for one virtual host. Clones are cheap.
#[derive(Clone)]
pub struct Management {
    http: reqwest::Client,
    /// Without user and password.
    url: Url,
    user: String,
    password: String,
    vhost: String,
}

/// What is known of a queue. Nodes collect this every few seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    /// How many messages wait.
    pub ready: u64,
    /// How many are handed out and not acknowledged.
    pub unacknowledged: u64,
    /// How many consume it.
    pub consumers: u64,
    /// What it is made of, as the broker calls it: `classic`, `quorum`, `stream`.
    pub kind: String,
}

/// Why the management API did not do as asked. The password is never in it.
#[derive(Debug, thiserror::Error)]
pub enum ManagementError {
    /// The URL can not be read.
    #[error("the URL of the management API is not acceptable: {0}")]
    Url(String),
    /// HTTP can not be set up.
    #[error("failed to set up HTTP for the management API")]
    Setup(#[source] reqwest::Error),
    /// Nobody answers, or not in time.
    #[error(
        "the management API at {url} does not answer; is the plugin rabbitmq_management enabled, and the port right?"
    )]
    Away {
        /// Where it should be.
        url: String,
        /// What happened.
        source: reqwest::Error,
    },
    /// The user is not known.
    #[error(
        "the management API at {url} does not let the user {user:?} in: the password is wrong, or the user has no tag (rabbitmqctl set_user_tags {user} policymaker)"
    )]
    Login {
        /// Where.
        url: String,
        /// Who.
        user: String,
    },
    /// The user may not do this.
    #[error(
        "the user {user:?} may not do this in the virtual host {vhost:?}: it needs the tag policymaker and permissions there ({why})"
    )]
    Forbidden {
        /// Who.
        user: String,
        /// Where.
        vhost: String,
        /// The broker's reason.
        why: String,
    },
    /// There is no such virtual host.
    #[error("there is no virtual host {vhost:?}")]
    NoVhost {
        /// The virtual host.
        vhost: String,
    },
    /// The broker does not accept what was asked.
    #[error("the management API refused ({status}): {why}")]
    Refused {
        /// The status.
        status: u16,
        /// The broker's reason.
        why: String,
    },
    /// The answer is not what this API says.
    #[error("{url} answered, but not as the management API of RabbitMQ does ({status})")]
    Strange {
        /// Where.
        url: String,
        /// The status.
        status: u16,
    },
}

impl std::fmt::Debug for Management {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url, user, vhost, .. } = self;
        f.debug_struct("Management")
            .field("url", &url.as_str())
            .field("user", user)
            .field("vhost", vhost)
            .finish_non_exhaustive()
    }
}

impl Management {
    /// The API at `http://user:password@host:15672`, or `https://`; user and password are `guest` unless they are
    /// named, and percent-encoded where they must be. Asks nothing yet.
    pub fn new(url: &str, vhost: &str) -> Result<Self, ManagementError> {
        let wrong = |why: &str| ManagementError::Url(why.to_owned());
        let mut url = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(wrong("it is like http://user:password@host:15672"));
        }
        let decoded = |text: &str| super::options::decoded(text).map_err(|error| wrong(&error.to_string()));
        let login = |text: &str| if text.is_empty() { Ok("guest".to_owned()) } else { decoded(text) };
        let (user, password) = (login(url.username())?, login(url.password().unwrap_or_default())?);
        url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| wrong("it takes no user"))?;
        url.set_query(None);
        url.set_fragment(None);
        if url.port().is_none() {
            url.set_port(Some(if url.scheme() == "http" { 15672 } else { 15671 })).map_err(|()| wrong("its port"))?;
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may be faster; then there is one, which is all that is wanted.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("relais/", env!("CARGO_PKG_VERSION")))
            .timeout(ANSWER_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            // A password is for whom it was meant.
            .redirect(Policy::none());
        if url.scheme() == "http" {
            // The system's certificates are not needed, and a minimal container image has none.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(ManagementError::Setup)?;
        Ok(Self { http, url, user, password, vhost: vhost.to_owned() })
    }

    /// Sets a policy for all queues (`apply_to` is `queues`, `exchanges` or `all`) whose names match the regular
    /// expression `pattern`. Of several that match, the one with the highest priority counts, alone.
    pub async fn put_policy(
        &self,
        name: &str,
        pattern: &str,
        apply_to: &str,
        definition: Value,
        priority: i64,
    ) -> Result<(), ManagementError> {
        let body = json!({"pattern": pattern, "apply-to": apply_to, "definition": definition, "priority": priority});
        match self.ask(Method::PUT, "policies", &[name], Some(body)).await? {
            Some(_) => Ok(()),
            None => Err(ManagementError::NoVhost { vhost: self.vhost.clone() }),
        }
    }

    /// Removes a policy. One that does not exist is not an error.
    pub async fn delete_policy(&self, name: &str) -> Result<(), ManagementError> {
        self.ask(Method::DELETE, "policies", &[name], None).await.map(drop)
    }

    /// What is known of a queue, if there is one.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueInfo>, ManagementError> {
        let Some(answer) = self.get("queues", &[name]).await? else { return Ok(None) };
        // A queue of which nothing was collected yet has no numbers.
        let number = |field: &str| answer[field].as_u64().unwrap_or_default();
        Ok(Some(QueueInfo {
            ready: number("messages_ready"),
            unacknowledged: number("messages_unacknowledged"),
            consumers: number("consumers"),
            kind: answer["type"].as_str().unwrap_or("classic").to_owned(),
        }))
    }

    /// What is known of something in the virtual host. `None` if it is not there.
    pub(super) async fn get(&self, kind: &str, names: &[&str]) -> Result<Option<Value>, ManagementError> {
        self.ask(Method::GET, kind, names, None).await
    }

    /// Deletes something in the virtual host. What is not there is not an error.
    pub(super) async fn delete(&self, kind: &str, names: &[&str]) -> Result<(), ManagementError> {
        self.ask(Method::DELETE, kind, names, None).await.map(drop)
    }

    /// One request about something in the virtual host. `None` is a 404.
    async fn ask(
        &self,
        method: Method,
        kind: &str,
        names: &[&str],
        body: Option<Value>,
    ) -> Result<Option<Value>, ManagementError> {
        let mut url = self.url.clone();
        let segments = ["api", kind, &self.vhost].into_iter().chain(names.iter().copied());
        // A segment that is a dot or two would be left out, and something else asked.
        if let Some(wrong) = segments.clone().find(|name| matches!(*name, "" | "." | "..")) {
            return Err(ManagementError::Refused { status: 400, why: format!("{wrong:?} is not a name") });
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        let mut request = self.http.request(method, url).basic_auth(&self.user, Some(&self.password));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let away =
            |source: reqwest::Error| ManagementError::Away { url: self.url.to_string(), source: source.without_url() };
        let response = request.send().await.map_err(away)?;
        let status = response.status();
        let answer = response.bytes().await.map_err(away)?;
        let answer = if answer.is_empty() { Some(Value::Null) } else { serde_json::from_slice(&answer).ok() };
        let strange = || ManagementError::Strange { url: self.url.to_string(), status: status.as_u16() };
        let answer = answer.ok_or_else(strange)?;
        if status.is_success() {
            return Ok(Some(answer));
        }
        // The API says `{"error": …, "reason": …}`; anybody else's 404 says that this is not the API.
        let why = match (&answer["reason"], &answer["error"]) {
            (Value::String(why), _) | (_, Value::String(why)) => why.clone(),
            _ => return Err(strange()),
        };
        let (user, vhost) = (self.user.clone(), self.vhost.clone());
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED if why.contains("authorised") || why.contains("ot_authorised") => {
                Err(ManagementError::Forbidden { user, vhost, why })
            }
            StatusCode::UNAUTHORIZED => Err(ManagementError::Login { url: self.url.to_string(), user }),
            StatusCode::FORBIDDEN => Err(ManagementError::Forbidden { user, vhost, why }),
            _ => Err(ManagementError::Refused { status: status.as_u16(), why }),
        }
    }
}
