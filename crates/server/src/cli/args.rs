//! Arguments of the commands that run a server, and the readers of values that several commands share.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use relais_core::{ClientId, RelayName, ScheduleName, ServiceName, TaskId};
use relais_protocol::{HumanDuration, admin::RateLimitDeclaration};

use crate::config::{Config, ConfigError, LogFormat, Role, Setting, environment, load};

/// `relais serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file; if absent, the one RELAIS_CONFIG names, or ./relais.toml if there is one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port to listen on [setting: server.listen]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where the store is: sqlite:FILE or postgres://… [setting: database.url]
    ///
    /// Other users of the machine can see a command line. Give a password in RELAIS_DATABASE_URL instead.
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// RabbitMQ, for tasks and for callbacks of the type amqp: amqp://… or amqps://… [setting: broker.url]
    ///
    /// Give a password in RELAIS_BROKER_URL instead.
    #[arg(long, value_name = "URL")]
    pub broker: Option<String>,
    /// What this process does, all of it by default [setting: server.roles]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',')]
    pub roles: Vec<Role>,
    /// File of services, clients, authorizations, schedules, outboxes, captures, audiences and notification sources to apply and to watch [setting: declarations.file]
    #[arg(long, value_name = "FILE")]
    pub declarations: Option<String>,
    /// How log lines look [setting: log.format]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Leave the database's schema as it is [setting: database.migrate]
    #[arg(long)]
    pub no_migrate: bool,
}

impl ServeArgs {
    /// The configuration with these flags on top.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut flags = Vec::new();
        flags.extend(self.listen.map(|listen| Setting::flag("--listen", "server.listen", listen.to_string())));
        flags.extend(self.database.as_ref().map(|url| Setting::flag("--database", "database.url", url)));
        flags.extend(self.broker.as_ref().map(|url| Setting::flag("--broker", "broker.url", url)));
        if !self.roles.is_empty() {
            let roles: Vec<&str> = self.roles.iter().map(|role| role.name()).collect();
            flags.push(Setting::flag("--role", "server.roles", roles.join(",")));
        }
        flags.extend(self.declarations.as_ref().map(|file| Setting::flag("--declarations", "declarations.file", file)));
        flags.extend(self.log_format.map(|format| Setting::flag("--log-format", "log.format", format.name())));
        if self.no_migrate {
            flags.push(Setting::flag("--no-migrate", "database.migrate", "false"));
        }
        load(self.config.as_deref(), environment(), &flags)
    }
}

/// `relais migrate`
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Configuration file; if absent, the one RELAIS_CONFIG names, or ./relais.toml if there is one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the store is: sqlite:FILE or postgres://… [setting: database.url]
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
}

impl MigrateArgs {
    /// The configuration with these flags on top.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let flags: Vec<Setting> =
            self.database.iter().map(|url| Setting::flag("--database", "database.url", url)).collect();
        load(self.config.as_deref(), environment(), &flags)
    }
}

/// `relais demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Stop when the first tasks are done, instead of staying up to be played with
    #[arg(long)]
    pub exit: bool,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where the store is; a SQLite file that is thrown away by default
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
}

/// Reads a service's name; a wrong one is a usage error, not a request.
pub(super) fn service_name(text: &str) -> Result<String, String> {
    ServiceName::new(text).map(String::from).map_err(|error| error.to_string())
}

/// Reads a client's name.
pub(super) fn client_id(text: &str) -> Result<String, String> {
    ClientId::new(text).map(String::from).map_err(|error| error.to_string())
}

/// Reads a schedule's name.
pub(super) fn schedule_name(text: &str) -> Result<String, String> {
    ScheduleName::new(text).map(String::from).map_err(|error| error.to_string())
}

/// Reads the name of an outbox or a capture.
pub(super) fn relay_name(text: &str) -> Result<String, String> {
    RelayName::new(text).map(String::from).map_err(|error| error.to_string())
}

/// Reads a task's name.
pub(super) fn task_id(text: &str) -> Result<String, String> {
    TaskId::parse(text)
        .map(|id| id.to_string())
        .ok_or_else(|| "a task's id is a UUID, like 01890a5d-ac96-774b-bcce-b302099a8057".to_owned())
}

/// Reads a duration.
pub(super) fn duration(text: &str) -> Result<HumanDuration, String> {
    text.parse().map_err(|error: relais_protocol::DurationError| error.to_string())
}

/// Reads a rate: so many in a time.
pub(super) fn rate(text: &str) -> Result<RateLimitDeclaration, String> {
    let (count, per) = text.split_once('/').ok_or("write it like 100/1s or 5/1m")?;
    let count = count.trim().parse().map_err(|_| format!("{count:?} is not a number: write it like 100/1s or 5/1m"))?;
    Ok(RateLimitDeclaration { count, per: duration(per)?, burst: None })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_rate_is_a_number_in_a_time() {
        let read = rate("100/1m30s").unwrap();
        assert_eq!((read.count, read.per.to_string().as_str(), read.burst), (100, "1m30s", None));
        for wrong in ["", "100", "100/", "/1s", "-1/1s", "1.5/1s", "100/second", "100 per 1s"] {
            assert!(rate(wrong).is_err(), "{wrong:?} was read");
        }
    }

    #[test]
    fn flags_become_settings() {
        let line = "relais serve --listen 127.0.0.1:9 --database sqlite:x.db --role purge --role api --declarations d.yaml \
                    --log-format json --no-migrate";
        let Command::Serve(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
            panic!("not serve")
        };
        let config = args.load().unwrap();
        assert_eq!(config.server.listen.port(), 9);
        assert_eq!(config.database.url.expose(), "sqlite:x.db");
        assert_eq!(config.server.roles, [Role::Api, Role::Purge]);
        assert_eq!(config.declarations.file, "d.yaml");
        assert_eq!(config.log.format, LogFormat::Json);
        assert!(!config.database.migrate);
    }
}
