//! Where the database is, and who asks. Read from the same URL that sqlx reads.

use std::{path::PathBuf, str::FromStr as _};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use crate::CaptureError;

/// Where the database is, and who asks.
#[derive(Clone)]
pub struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) database: String,
    pub(crate) tls: PgSslMode,
    /// PEM, or the file that has it. None: the system's.
    pub(crate) root_certificates: Option<String>,
    /// Certificate and key of the client; PEM, or files that have it.
    pub(crate) client_certificate: Option<(String, String)>,
    pub(crate) channel_binding: ChannelBindingMode,
}

/// Whether authentication is to be bound to the TLS connection, which nobody in between can pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelBindingMode {
    Disable,
    Prefer,
    Require,
}

/// What libpq takes to be safer, and this does not know. A connection without it would be less safe than its URL says.
const REFUSED: [&str; 5] = ["sslcrl", "sslcrldir", "sslpassword", "require_auth", "requirepeer"];

impl Address {
    /// Reads a URL: `postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=file`. What it does not say
    /// comes from the environment (`PGPASSWORD` and the like), as with other clients; but no `.pgpass` is read.
    pub fn parse(url: &str) -> Result<Self, CaptureError> {
        let options = PgConnectOptions::from_str(url).map_err(|error| CaptureError::Url(error.to_string()))?;
        let parsed = Url::parse(url).map_err(|error| CaptureError::Url(error.to_string()))?;
        let query = |names: &[&str]| {
            parsed.query_pairs().find(|(name, _)| names.contains(&name.as_ref())).map(|(_, value)| value.into_owned())
        };
        if let Some((name, _)) = parsed.query_pairs().find(|(name, _)| REFUSED.contains(&name.as_ref())) {
            return Err(CaptureError::Url(format!("a replication connection does not know {name}")));
        }
        let given = |names: &[&str], variable| query(names).or_else(|| std::env::var(variable).ok());
        let client_certificate =
            match (given(&["sslcert", "ssl-cert"], "PGSSLCERT"), given(&["sslkey", "ssl-key"], "PGSSLKEY")) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                _ => return Err(CaptureError::Url("sslcert and sslkey belong together".to_owned())),
            };
        let channel_binding = match given(&["channel_binding"], "PGCHANNELBINDING").as_deref() {
            Some("disable") => ChannelBindingMode::Disable,
            Some("require") => ChannelBindingMode::Require,
            Some("prefer") | None => ChannelBindingMode::Prefer,
            Some(_) => return Err(CaptureError::Url("channel_binding is disable, prefer or require".to_owned())),
        };
        // sqlx keeps the password to itself.
        let password = match parsed.password() {
            Some(encoded) => Some(decode(encoded)?),
            None => query(&["password"]).or_else(|| std::env::var("PGPASSWORD").ok()),
        };
        let user = options.get_username().to_owned();
        Ok(Self {
            host: options.get_host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: options.get_port(),
            socket: options.get_socket().cloned(),
            database: options.get_database().map_or_else(|| user.clone(), str::to_owned),
            user,
            password,
            tls: options.get_ssl_mode(),
            root_certificates: given(&["sslrootcert", "ssl-root-cert", "ssl-ca"], "PGSSLROOTCERT"),
            client_certificate,
            channel_binding,
        })
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        &self.database
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.socket {
            Some(socket) => write!(f, "{}:{}", socket.display(), self.port),
            None => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{self}/{}", self.user, self.database)
    }
}

fn decode(text: &str) -> Result<String, CaptureError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(digits.ok_or_else(|| CaptureError::Url("the password is not encoded well".to_owned()))?);
                after
            }
            _ => {
                bytes.push(*first);
                after
            }
        };
    }
    String::from_utf8(bytes).map_err(|_| CaptureError::Url("the password is not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_who() {
        let address = Address::parse("postgres://shop:p%40ss%25@db.example:5433/orders?sslmode=verify-full").unwrap();
        assert_eq!((address.host.as_str(), address.port, address.database()), ("db.example", 5433, "orders"));
        assert_eq!(address.password.as_deref(), Some("p@ss%"));
        assert!(matches!(address.tls, PgSslMode::VerifyFull));
        assert_eq!(format!("{address:?}"), "shop@db.example:5433/orders");
    }

    #[test]
    fn a_url_that_would_be_less_safe_than_it_says_is_refused() {
        for (query, said) in [
            ("sslcrl=revoked.pem", "does not know sslcrl"),
            ("require_auth=scram-sha-256", "does not know require_auth"),
            ("sslcert=client.pem", "belong together"),
            ("sslkey=client.key", "belong together"),
            ("channel_binding=yes", "disable, prefer or require"),
            ("sslmode=verify", "verify"),
        ] {
            let refused = Address::parse(&format!("postgres://shop@db/orders?{query}")).unwrap_err().to_string();
            assert!(refused.contains(said), "{query}: {refused}");
        }
        let bound = Address::parse("postgres://shop@db/orders?channel_binding=require&sslcert=a&sslkey=b").unwrap();
        assert_eq!(bound.channel_binding, ChannelBindingMode::Require);
        assert_eq!(bound.client_certificate, Some(("a".to_owned(), "b".to_owned())));
    }

    #[test]
    fn the_database_is_named_like_the_user_by_default() {
        assert_eq!(Address::parse("postgres://shop@localhost").unwrap().database(), "shop");
    }
}
