//! Where settings came from, and why they were refused. Errors say the key, the value and what was expected.

use std::{collections::BTreeMap, fmt, io, path::PathBuf};

use relais_engine::CredentialsError;

/// Where a setting came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag of the command.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Where the settings came from that are not the default.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// The configuration file, if there was one.
    pub file: Option<PathBuf>,
    pub(super) by_key: BTreeMap<String, Origin>,
}

impl Origins {
    /// Where the setting came from, e.g. `database.url`; none for the default.
    pub fn of(&self, key: &str) -> Option<&Origin> {
        self.by_key.get(key)
    }

    /// Where a setting came from that is not the default.
    pub(super) fn written(&self, key: &str) -> Origin {
        self.of(key).cloned().unwrap_or(Origin::Flag("default"))
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file can not be read.
    #[error("cannot read {path}, which {named_by} names")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Who wants it.
        named_by: String,
        /// Why.
        source: io::Error,
    },
    /// The file is not TOML. The line itself is not shown: it may have a secret in it.
    #[error("{path}:{line}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// There is no such setting.
    #[error("unknown key `{key}` in {path}{hint}")]
    UnknownKey {
        /// As it is written.
        key: String,
        /// The file.
        path: PathBuf,
        /// What was meant.
        hint: String,
    },
    /// There is no such setting.
    #[error("unknown environment variable {name}{hint} (`relais config default` lists what can be set)")]
    UnknownVariable {
        /// As it is written.
        name: String,
        /// What was meant.
        hint: String,
    },
    /// The setting can not have this value.
    #[error("`{key}` = {value} ({origin}): {expected}")]
    Invalid {
        /// The setting.
        key: String,
        /// The value, masked where it is a secret.
        value: String,
        /// Where it came from.
        origin: Origin,
        /// What was expected instead.
        expected: String,
    },
    /// A secret and a file with it, and nobody can say which one was meant.
    #[error("both `{key}` ({origin}) and `{key}_file` ({file}) are set: remove one of them")]
    Both {
        /// The setting that has the secret.
        key: &'static str,
        /// Where it came from.
        origin: Origin,
        /// Where the file's name came from.
        file: Origin,
    },
    /// An operator can not be told from `admin`.
    #[error("`admin.operators` ({operators}) can not be used beside the token of `admin` ({token})")]
    Operators {
        /// Where the operators came from.
        operators: Origin,
        /// Where the token came from: `admin.token` or `admin.token_file`.
        token: Origin,
        /// Which operators, and why.
        source: CredentialsError,
    },
}
