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
    pub(crate) root_certificates: Option<PathBuf>,
}

impl Address {
    /// Reads a URL: `postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=file`. What it does not say
    /// comes from the environment (`PGPASSWORD` and the like), as with other clients.
    pub fn parse(url: &str) -> Result<Self, CaptureError> {
        let options = PgConnectOptions::from_str(url).map_err(|error| CaptureError::Url(error.to_string()))?;
        let parsed = Url::parse(url).map_err(|error| CaptureError::Url(error.to_string()))?;
        let query = |names: &[&str]| {
            parsed.query_pairs().find(|(name, _)| names.contains(&name.as_ref())).map(|(_, value)| value.into_owned())
        };
        // sqlx keeps the password to itself.
        let password = match parsed.password() {
            Some(encoded) => Some(decode(encoded)?),
            None => query(&["password"]).or_else(|| std::env::var("PGPASSWORD").ok()),
        };
        let user = options.get_username().to_owned();
        let roots = query(&["sslrootcert", "ssl-root-cert", "ssl-ca"]).or_else(|| std::env::var("PGSSLROOTCERT").ok());
        Ok(Self {
            host: options.get_host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: options.get_port(),
            socket: options.get_socket().cloned(),
            database: options.get_database().map_or_else(|| user.clone(), str::to_owned),
            user,
            password,
            tls: options.get_ssl_mode(),
            root_certificates: roots.map(PathBuf::from),
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
            Some(socket) => write!(f, "{}", socket.display()),
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
    fn the_database_is_named_like_the_user_by_default() {
        assert_eq!(Address::parse("postgres://shop@localhost").unwrap().database(), "shop");
    }
}
