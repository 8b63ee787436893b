//! `relais config`: what can be set, what is set, and whether it is fine. No server is needed.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::{
    config::{self, Config},
    output,
};

/// `relais config`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting with its default and what it means
    Default,
    /// Print the settings that `relais serve` would use and where they come from; secrets are masked
    Show(FileArgs),
    /// Say whether `relais serve` would start with these settings, and what is risky about them
    Check(FileArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// Configuration file; if absent, the one RELAIS_CONFIG names, or ./relais.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl FileArgs {
    fn load(&self) -> Result<Config> {
        Ok(config::load(self.config.as_deref(), config::environment(), &[])?)
    }
}

/// Runs `relais config`.
pub fn run(args: ConfigArgs) -> Result<()> {
    match args.command {
        ConfigCommand::Default => output::data(config::DEFAULT)?,
        ConfigCommand::Show(file) => output::data(&config::show(&file.load()?)?)?,
        ConfigCommand::Check(file) => {
            let config = file.load()?;
            for warning in config::warnings(&config) {
                output::note(&format!("warning: {warning}"));
            }
            let source = config.origins.file.as_ref().map(|path| path.display().to_string());
            output::note(&format!("{} is fine.", source.as_deref().unwrap_or("The configuration (no file)")));
        }
    }
    Ok(())
}
