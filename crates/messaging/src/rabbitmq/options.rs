//! Which broker, and how patiently: the URL and the options.
//!
//! A URL is read here and not by the library: that one takes an IPv6 address for `localhost`, and keeps silent about
//! parameters that it does not know.

use std::{path::PathBuf, time::Duration};

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use url::Url;

use super::BrokerError;

/// How patiently a broker is talked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerOptions {
    /// How long a publish may take, from the first wait for a connection to the last confirmation; and any other
    /// request.
    pub publish_timeout: Duration,
    /// How long somebody who needs the broker waits while it is away. Counted from when it went, so that a short
    /// absence is not noticed and a long one is answered at once.
    pub patience: Duration,
    /// How long it may take to connect, up to the point where messages can be sent.
    pub connect_timeout: Duration,
    /// How often the two ends make sure of each other; `?heartbeat=` in the URL wins. A silent end is given up after
    /// about twice as long.
    pub heartbeat: Duration,
    /// The pause after the first attempt to connect that failed; twice as long after each further one.
    pub first_pause: Duration,
    /// The longest pause between two attempts.
    pub longest_pause: Duration,
    /// At most so many publishes are under way at once, a batch counted as one; others wait for their turn. Consumers
    /// and browsers have channels of their own.
    pub channels: usize,
    /// What the connection is called in the broker's own list.
    pub connection_name: String,
    /// A PEM file with certificates of authorities that are trusted besides those of the system.
    pub root_certificates: Option<PathBuf>,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            publish_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(10),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(15),
            channels: 64,
            connection_name: "relais".to_owned(),
            root_certificates: None,
        }
    }
}

/// What a URL says.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) uri: AMQPUri,
    /// Where to connect, and whom a certificate must name.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
}

impl std::fmt::Display for Target {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { uri, host, port, .. } = self;
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        write!(f, "{}://{bracketed}:{port}, virtual host {}", uri.scheme, uri.vhost)
    }
}

impl Target {
    pub(super) fn parse(url: &str, options: &BrokerOptions) -> Result<Self, BrokerError> {
        let wrong = |why: &str| BrokerError::Url(why.to_owned());
        let url = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        let (scheme, tls) = match url.scheme() {
            "amqp" => (AMQPScheme::AMQP, false),
            "amqps" => (AMQPScheme::AMQPS, true),
            _ => return Err(wrong("it begins with amqp:// or amqps://")),
        };
        let host = match url.host() {
            Some(url::Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
            None => return Err(wrong("it names no host")),
        };
        let port = url.port().unwrap_or_else(|| scheme.default_port());
        // `amqp://host/` would be the virtual host with the empty name. Nobody has one, and everybody means the
        // default.
        let vhost = match url.path().strip_prefix('/').filter(|path| !path.is_empty()) {
            Some(path) if path.contains('/') => return Err(wrong("a / in the name of a virtual host is written %2F")),
            Some(path) => decoded(path)?,
            None => "/".to_owned(),
        };
        let mut heartbeat = options.heartbeat.as_secs();
        for (name, value) in url.query_pairs() {
            match &*name {
                "heartbeat" => heartbeat = value.parse().map_err(|_| wrong("heartbeat is a number of seconds"))?,
                _ => return Err(wrong(&format!("it has a parameter {name}; the only one is heartbeat"))),
            }
        }
        let login = |text: &str| if text.is_empty() { Ok("guest".to_owned()) } else { decoded(text) };
        let userinfo =
            AMQPUserInfo { username: login(url.username())?, password: login(url.password().unwrap_or_default())? };
        let query = AMQPQueryString {
            // None at all (0) would leave dead connections unnoticed.
            heartbeat: Some(u16::try_from(heartbeat.max(1)).map_err(|_| wrong("the heartbeat is too long"))?),
            ..AMQPQueryString::default()
        };
        let authority = AMQPAuthority { userinfo, host: host.clone(), port };
        Ok(Self { uri: AMQPUri { scheme, authority, vhost, query }, host, port, tls })
    }
}

/// A part of a URL without its percent signs.
pub(super) fn decoded(text: &str) -> Result<String, BrokerError> {
    // Read as a form, which treats all but `+` the same way.
    let form = text.replace('+', "%2B");
    let value = url::form_urlencoded::parse(form.as_bytes()).next().map(|(name, _)| name.into_owned());
    // A `=` or a `&` would end the name; in a URL they stand for themselves.
    if text.contains(['=', '&']) {
        return Err(BrokerError::Url("= and & in names and passwords are written %3D and %26".to_owned()));
    }
    Ok(value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Target {
        Target::parse(url, &BrokerOptions::default()).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn refusal(url: &str) -> String {
        let Err(error) = Target::parse(url, &BrokerOptions::default()) else { panic!("{url} was accepted") };
        error.to_string()
    }

    #[test]
    fn everything_that_a_url_can_say_is_read() {
        let target = parse("amqps://rel%40ais:p%3A%2F+s@broker.example.org:1234/or%2Fders?heartbeat=7");
        assert!(target.tls);
        assert_eq!((target.host.as_str(), target.port), ("broker.example.org", 1234));
        let AMQPUserInfo { username, password } = &target.uri.authority.userinfo;
        assert_eq!((username.as_str(), password.as_str()), ("rel@ais", "p:/+s"));
        assert_eq!((target.uri.vhost.as_str(), target.uri.query.heartbeat), ("or/ders", Some(7)));
    }

    #[test]
    fn absent_url_parameters_have_defaults() {
        for url in ["amqp://broker", "amqp://broker/", "amqp://broker/%2f", "amqp://guest:guest@broker:5672"] {
            let target = parse(url);
            assert_eq!((target.tls, target.port, target.uri.vhost.as_str()), (false, 5672, "/"), "{url}");
            assert_eq!(target.uri.authority.userinfo, AMQPUserInfo::default(), "{url}");
            assert_eq!(target.uri.query.heartbeat, Some(10), "{url}");
        }
        assert_eq!(parse("amqps://broker").port, 5671);
        assert_eq!(parse("amqp://[::1]:5673").host, "::1");
        assert_eq!(parse("amqp://10.0.0.7").host, "10.0.0.7");
    }

    #[test]
    fn an_invalid_url_is_refused_with_a_reason() {
        assert!(refusal("http://broker").contains("amqp://"));
        assert!(refusal("amqp:///vhost").contains("host"));
        assert!(refusal("amqp://broker/a/b").contains("%2F"));
        assert!(refusal("amqp://broker?heartbeat=often").contains("heartbeat"));
        assert!(refusal("amqp://broker?prefetch=7").contains("prefetch"));
        assert!(refusal("broker:5672").contains("amqp://"));
    }

    #[test]
    fn the_password_is_not_shown() {
        let shown = parse("amqp://relais:hush@[::1]/orders").to_string();
        assert_eq!(shown, "amqp://[::1]:5672, virtual host orders");
    }
}
