//! How commands reach RabbitMQ itself, without a server: by the settings that a server has for it.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use relais_messaging::rabbitmq::{Broker, BrokerState, Management};

use crate::config::{Setting, environment, load};

/// Where the broker is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Broker")]
pub struct BrokerArgs {
    /// Configuration file; if absent, the one RELAIS_CONFIG names, or ./relais.toml if there is one
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// RabbitMQ: amqp://… or amqps://… [setting: broker.url]
    ///
    /// Other users of the machine can see a command line. Give a password in RELAIS_BROKER_URL instead.
    #[arg(long, global = true, value_name = "URL")]
    pub broker: Option<String>,
    /// Its management API: http://… [setting: broker.management_url]
    #[arg(long, global = true, value_name = "URL")]
    pub management: Option<String>,
}

impl BrokerArgs {
    /// The broker, and its management API where one is named. The broker answers, when this returns.
    pub async fn connect(&self) -> Result<(Broker, Option<Management>)> {
        let mut flags = Vec::new();
        flags.extend(self.broker.as_ref().map(|url| Setting::flag("--broker", "broker.url", url)));
        flags.extend(self.management.as_ref().map(|url| Setting::flag("--management", "broker.management_url", url)));
        let config = load(self.config.as_deref(), environment(), &flags)?.broker;
        if config.url.is_empty() {
            bail!("no broker is named; give its URL in RELAIS_BROKER_URL, or with --broker");
        }
        let broker = Broker::new(config.url.expose(), config.options())
            .with_context(|| format!("the broker {} can not be used", config.url))?;
        let management = match config.management_url.expose() {
            "" => None,
            url => Some(Management::new(url, broker.vhost())?),
        };
        match broker.first_attempt().await {
            BrokerState::Away { why, .. } => bail!("the broker {} does not answer: {why}", config.url),
            _ => Ok((broker, management)),
        }
    }
}
