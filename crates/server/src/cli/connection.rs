//! How commands reach a running server: its admin API over HTTP.
//!
//! An answer is kept as the text it came in, for `--json`; it is understood only where a command shows it otherwise.
//! Nothing is tried twice: whoever typed the command can see what happened, and type it again.

use std::{fmt::Display, sync::Once, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use relais_protocol::{ErrorBody, ErrorNumber, Failure, Success};
use reqwest::{Method, StatusCode, Url, redirect::Policy};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::output;

/// A purge or a large declaration may take its time; a server that is not there is known at once.
const TIMEOUT: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For what has no end of its own.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Where the server is, and how to print what it says.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionArgs {
    /// Where the server is
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "RELAIS_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080"
    )]
    pub url: Url,
    /// The admin API's token; none is needed on the server's own machine if it has none
    #[arg(long, global = true, value_name = "TOKEN", env = "RELAIS_ADMIN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Print the answer as JSON, as it came
    #[arg(long, global = true)]
    pub json: bool,
}

/// Why a request got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server said no.
    #[error("{}", refusal(.0))]
    Refused(ErrorBody),
    /// Nobody answered.
    #[error(
        "no answer from {url}: {reason}\nhint: is the server running there? `--url` or RELAIS_URL says where it is"
    )]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// Why, down to the last cause.
        reason: String,
    },
    /// Somebody answered, but it was not Relais, or not one of this version.
    #[error(
        "{url} answered {status}, and not as Relais does\nhint: does `--url` or RELAIS_URL point at the server itself?"
    )]
    Strange {
        /// Who was asked.
        url: String,
        /// What it answered.
        status: StatusCode,
    },
}

fn refusal(body: &ErrorBody) -> String {
    let mut text = format!("{} ({})", body.description.trim_end_matches('.'), body.number);
    for detail in &body.details {
        let place = if detail.path.is_empty() { String::new() } else { format!("{}: ", detail.path) };
        text.push_str(&format!("\n  {place}{}", detail.message));
    }
    if let Some(hint) = hint(body.number) {
        text.push_str(&format!("\nhint: {hint}"));
    }
    text
}

/// What to do next, where it is known.
fn hint(number: u32) -> Option<&'static str> {
    let number = ErrorNumber::ALL.iter().find(|known| known.number() == number)?;
    match number {
        ErrorNumber::AdminForbidden => Some("give the server's admin token with `--token` or RELAIS_ADMIN_TOKEN"),
        ErrorNumber::ServiceNotFound => Some("`relais service list` shows what there is"),
        ErrorNumber::ClientNotFound => Some("`relais client list` shows what there is"),
        ErrorNumber::AuthorizationNotFound => Some("`relais authorization list` shows what there is"),
        ErrorNumber::ScheduleNotFound => Some("`relais schedule list` shows what there is"),
        ErrorNumber::CaptureNotFound => Some("`relais capture list` shows what there is"),
        ErrorNumber::OutboxNotFound => Some("`relais outbox list` shows what there is"),
        ErrorNumber::NotificationNotFound => {
            Some("it may have been purged; `relais notification list` shows what there is")
        }
        ErrorNumber::NoMembers => Some("`relais audience add` declares members"),
        ErrorNumber::InstanceNotFound => Some("`relais instance list` shows what there is"),
        ErrorNumber::TaskNotFound => Some("it may have been purged; `relais task list` shows what there is"),
        ErrorNumber::BusUnavailable => Some("`relais events stats` says how the server's event bus does"),
        ErrorNumber::Internal => Some("the server's log says more"),
        ErrorNumber::StoreUnavailable => Some("the server can not reach its database; its log says more"),
        _ => None,
    }
}

/// Makes `ring` the process's cryptography. Without one, the first HTTPS client panics.
pub fn install_tls_provider() {
    static ONCE: Once = Once::new();
    // It fails only if there is one already, and then that one does as well.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// A server, ready to be asked.
pub struct Connection {
    http: reqwest::Client,
    url: Url,
    token: Option<String>,
    /// Whether answers are printed as they come.
    pub json: bool,
}

impl Connection {
    /// Prepares requests. Nothing is sent yet.
    pub fn new(args: ConnectionArgs) -> Result<Self> {
        install_tls_provider();
        let ConnectionArgs { url, token, json } = args;
        let mut http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("relais/", env!("CARGO_PKG_VERSION")))
            // A token is for the server it was meant for.
            .redirect(Policy::none());
        // A proxy of the network knows nothing of this machine.
        if matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            http = http.no_proxy();
        }
        let http = http.build().context("cannot prepare HTTP")?;
        Ok(Self { http, url, token: token.filter(|token| !token.is_empty()), json })
    }

    /// Asks, and gives the answer's data as it came.
    pub async fn data(&self, request: Request<'_>) -> Result<Box<RawValue>> {
        let (url, status, text) = self.send(request).await?;
        if status.is_success()
            && let Ok(answer) = serde_json::from_str::<Success<Box<RawValue>>>(&text)
        {
            return Ok(answer.data);
        }
        Err(match serde_json::from_str::<Failure>(&text) {
            Ok(failure) => RequestError::Refused(failure.error),
            Err(_) => RequestError::Strange { url: url.to_string(), status },
        }
        .into())
    }

    /// Asks, and prints the answer: as it came with `--json`, and as `show` says otherwise.
    pub async fn print<T: DeserializeOwned>(
        &self,
        request: Request<'_>,
        show: impl FnOnce(&T) -> String,
    ) -> Result<Option<T>> {
        let data = self.data(request).await?;
        if self.json {
            output::data(&output::printable_json(data.get()))?;
            return Ok(None);
        }
        let answer: T = understand(&data)?;
        output::data(&show(&answer))?;
        Ok(Some(answer))
    }

    /// Asks about one thing after the other, and prints each answer like [`Self::print`]. What is refused does not hold up the
    /// others, and is an error in the end.
    pub async fn print_each<'a, I: Display, T: DeserializeOwned>(
        &self,
        things: &'a [I],
        request: impl Fn(&'a I) -> Request<'a>,
        show: impl Fn(&T) -> String,
    ) -> Result<()> {
        let mut refused = 0;
        for thing in things {
            match self.print(request(thing), &show).await {
                Ok(_) => {}
                Err(error) if things.len() > 1 && matches!(error.downcast_ref(), Some(RequestError::Refused(_))) => {
                    output::error(&error.context(thing.to_string()));
                    refused += 1;
                }
                Err(error) => return Err(error),
            }
        }
        if refused > 0 {
            bail!("{refused} of {} were refused", things.len());
        }
        Ok(())
    }

    /// Asks for something that goes on for as long as it likes.
    pub async fn stream(&self, request: Request<'_>) -> Result<reqwest::Response> {
        let url = request.url(&self.url);
        let response = self.begin(request, Some(FOR_EVER)).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.unwrap_or_default();
        Err(match serde_json::from_str::<Failure>(&text) {
            Ok(failure) => RequestError::Refused(failure.error),
            Err(_) => RequestError::Strange { url: url.to_string(), status },
        }
        .into())
    }

    /// Asks, and gives status and text, whatever they are.
    pub async fn send(&self, request: Request<'_>) -> Result<(Url, StatusCode, String), RequestError> {
        let url = request.url(&self.url);
        let answer = self.begin(request, None).await?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| self.unreachable(&error))?;
        Ok((url, status, text))
    }

    fn unreachable(&self, error: &reqwest::Error) -> RequestError {
        RequestError::Unreachable { url: self.url.to_string(), reason: last_cause(error) }
    }

    async fn begin(&self, request: Request<'_>, timeout: Option<Duration>) -> Result<reqwest::Response, RequestError> {
        let mut builder = self.http.request(request.method.clone(), request.url(&self.url));
        if let Some(timeout) = timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(token) = &self.token {
            builder = builder.bearer_auth(token);
        }
        if let Some(body) = request.body {
            builder = builder.header("content-type", "application/json").body(body);
        }
        builder.send().await.map_err(|error| self.unreachable(&error))
    }
}

/// The layers above the last cause only say that a request failed.
fn last_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Reads the data of an answer.
pub fn understand<T: DeserializeOwned>(data: &RawValue) -> Result<T> {
    // By way of a `Value`: numbers in a flattened field can not be read from text that keeps them as they are written.
    let value: serde_json::Value = serde_json::from_str(data.get())?;
    serde_json::from_value(value).context("the answer is not understood; is the server of another version?")
}

/// Something to ask.
pub struct Request<'a> {
    method: Method,
    path: Vec<&'a str>,
    query: Vec<(&'static str, String)>,
    body: Option<String>,
}

impl<'a> Request<'a> {
    fn new<const N: usize>(method: Method, path: [&'a str; N]) -> Self {
        Self { method, path: path.to_vec(), query: Vec::new(), body: None }
    }

    /// Asks for what is at the path.
    pub fn get<const N: usize>(path: [&'a str; N]) -> Self {
        Self::new(Method::GET, path)
    }

    /// Puts it there.
    pub fn put<const N: usize>(path: [&'a str; N], body: &impl Serialize) -> Result<Self> {
        Ok(Self { body: Some(serde_json::to_string(body)?), ..Self::new(Method::PUT, path) })
    }

    /// Has it done.
    pub fn post<const N: usize>(path: [&'a str; N], body: Option<&impl Serialize>) -> Result<Self> {
        let body = body.map(serde_json::to_string).transpose()?;
        Ok(Self { body, ..Self::new(Method::POST, path) })
    }

    /// Has it done; there is nothing to say about how.
    pub fn call<const N: usize>(path: [&'a str; N]) -> Self {
        Self::new(Method::POST, path)
    }

    /// Has it removed.
    pub fn delete<const N: usize>(path: [&'a str; N]) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Adds a parameter, if there is one.
    pub fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    fn url(&self, base: &Url) -> Url {
        let mut url = base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(&self.path);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use relais_protocol::{ErrorDetail, admin::ServiceState};

    use super::*;

    #[test]
    fn addresses_are_put_together_under_any_base() {
        let request = Request::get(["admin", "tasks"])
            .with("limit", Some(3))
            .with("cursor", Some("a&b"))
            .with("service", None::<&str>);
        for (base, url) in [
            ("http://h:1", "http://h:1/admin/tasks?limit=3&cursor=a%26b"),
            ("https://h/relais/", "https://h/relais/admin/tasks?limit=3&cursor=a%26b"),
            ("https://h/relais", "https://h/relais/admin/tasks?limit=3&cursor=a%26b"),
        ] {
            assert_eq!(request.url(&base.parse().unwrap()).as_str(), url);
        }
        let odd = Request::get(["admin", "services", "a/b"]).url(&"http://h".parse().unwrap());
        assert_eq!(odd.path(), "/admin/services/a%2Fb");
    }

    #[test]
    fn a_refusal_says_what_where_and_what_next() {
        let detail = ErrorDetail { path: "/services/0".to_owned(), message: "no name".to_owned() };
        let failure = Failure::new(ErrorNumber::AdminForbidden, vec![detail]);
        assert_eq!(
            RequestError::Refused(failure.error).to_string(),
            "The admin API needs its own credentials (403002)\n  /services/0: no name\nhint: give the server's admin \
             token with `--token` or RELAIS_ADMIN_TOKEN"
        );
    }

    #[test]
    fn numbers_of_a_service_are_understood() {
        let data = r#"{"serviceName":"s","capacity":3,"lease":"60s","pending":1,"inProgress":2,"success":3,"failure":4,"cancelled":5}"#;
        let state: ServiceState = understand(&RawValue::from_string(data.to_owned()).unwrap()).unwrap();
        assert_eq!((state.declaration.capacity, state.cancelled), (Some(3), 5));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named_with_what_to_do() {
        // Port 1 is reserved, and nobody listens on it.
        let args = ConnectionArgs { url: "http://127.0.0.1:1".parse().unwrap(), token: None, json: false };
        let error = Connection::new(args).unwrap().data(Request::get(["readyz"])).await.unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:1") && error.contains("`--url` or RELAIS_URL"), "{error}");
    }
}
