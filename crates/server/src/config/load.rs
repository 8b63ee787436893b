//! Puts the configuration together: compiled-in default, file, environment, flags; the last one wins.
//!
//! Whatever is not known is refused with the nearest name, and whatever has a wrong value is named with its key, its
//! value and what was expected. Nothing is logged here, since the configuration says how to log.

use std::{
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use super::{Config, ConfigError, DEFAULT, Origin, Origins, Secret, events, values};
use crate::nearest::did_you_mean;

/// The file that is read when none is named.
const USUAL_FILE: &str = "relais.toml";

/// Variables that are not settings: the CLI's own, and those of the project's tests.
const OTHER_VARIABLES: [&str; 3] = ["RELAIS_CONFIG", "RELAIS_URL", "RELAIS_BIN"];
const TEST_PREFIX: &str = "RELAIS_TEST_";

/// A setting that a flag gives.
#[derive(Debug, Clone)]
pub struct Setting {
    flag: &'static str,
    key: &'static str,
    text: String,
}

impl Setting {
    /// The flag, the key it sets, and its text, written as in an environment variable.
    pub fn flag(flag: &'static str, key: &'static str, text: impl Into<String>) -> Self {
        Self { flag, key, text: text.into() }
    }
}

/// The variables of this process that may be settings.
pub fn environment() -> Vec<(String, String)> {
    // Not `vars`, which panics when any variable at all is not UTF-8.
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os()
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, _)| name.starts_with("RELAIS_") || alias(name).is_some())
        .collect()
}

/// Puts the configuration together. `file` is what `--config` says, `environment` is [`environment()`] save in tests.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: &[Setting],
) -> Result<Config, ConfigError> {
    let mut environment: Vec<(String, String)> =
        environment.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    environment.sort_unstable();
    let mut loader = Loader::new();
    if let Some((path, named_by)) = choose_file(file, &environment) {
        loader.add_file(path, named_by)?;
    }
    // Names that others gave first: ours are more exact.
    let (ours, others): (Vec<_>, Vec<_>) = environment.into_iter().partition(|(name, _)| alias(name).is_none());
    for (name, text) in others {
        let Some(key) = alias(&name) else { continue };
        if let Some(text) = events::alias_value(key, &text) {
            loader.add_text(key, &text, Origin::Variable(name))?;
        }
    }
    for (name, text) in ours {
        loader.add_variable(name, &text)?;
    }
    for Setting { flag, key, text } in flags {
        loader.add_text(key, text, Origin::Flag(flag))?;
    }
    loader.finish()
}

/// The setting that a variable is under a name that others gave it.
fn alias(name: &str) -> Option<&'static str> {
    events::ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, key)| *key)
}

fn choose_file(flag: Option<&Path>, environment: &[(String, String)]) -> Option<(PathBuf, &'static str)> {
    if let Some(path) = flag {
        return Some((path.to_owned(), "--config"));
    }
    if let Some((_, path)) = environment.iter().find(|(name, _)| name == "RELAIS_CONFIG") {
        return Some((path.into(), "RELAIS_CONFIG"));
    }
    Path::new(USUAL_FILE).exists().then(|| (USUAL_FILE.into(), "the working directory"))
}

struct Loader {
    default: Table,
    /// Every `section.key` there is.
    known: Vec<String>,
    merged: Table,
    origins: Origins,
}

impl Loader {
    fn new() -> Self {
        let default = default_table();
        let known = keys(&default);
        Self { merged: default.clone(), default, known, origins: Origins::default() }
    }

    fn add_file(&mut self, path: PathBuf, named_by: &str) -> Result<(), ConfigError> {
        let text = fs::read_to_string(&path).map_err(|source| ConfigError::Unreadable {
            path: path.clone(),
            named_by: named_by.to_owned(),
            source,
        })?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
            ConfigError::Malformed { path: path.clone(), line, message: error.message().to_owned() }
        })?;
        for (section, settings) in table {
            match settings {
                Value::Table(settings) if self.default.contains_key(&section) => {
                    for (key, value) in settings {
                        self.add_from_file(&path, format!("{section}.{key}"), value)?;
                    }
                }
                // Of an unknown section, its first key says best what was meant.
                Value::Table(settings) => {
                    let first = settings.keys().next().map(|key| format!("{section}.{key}"));
                    return Err(self.unknown_key(&path, first.unwrap_or(section)));
                }
                _ => return Err(self.unknown_key(&path, section)),
            }
        }
        self.origins.file = Some(path);
        Ok(())
    }

    fn add_from_file(&mut self, path: &Path, key: String, value: Value) -> Result<(), ConfigError> {
        if !self.known.contains(&key) {
            return Err(self.unknown_key(path, key));
        }
        self.set(&key, value, Origin::File(path.to_owned()))
    }

    fn unknown_key(&self, path: &Path, key: String) -> ConfigError {
        // A key in the wrong section is far from the right one by its letters, but its name gives it away.
        let name = key.rsplit('.').next().unwrap_or(&key);
        let mut same_name = self.known.iter().filter(|known| known.split('.').nth(1) == Some(name));
        let hint = match (same_name.next(), same_name.next()) {
            (Some(only), None) => format!(": did you mean `{only}`?"),
            _ if self.default.contains_key(&key) => {
                format!(": it is a section, write [{key}] on a line of its own")
            }
            _ => did_you_mean(&key, self.known.iter().map(String::as_str)),
        };
        ConfigError::UnknownKey { key, path: path.to_owned(), hint }
    }

    fn add_variable(&mut self, name: String, text: &str) -> Result<(), ConfigError> {
        if let Some(key) = self.known.iter().find(|key| variable(key) == name).cloned() {
            if events::is_service_link(&key, text) {
                return Ok(());
            }
            return self.add_text(&key, text, Origin::Variable(name));
        }
        let other = OTHER_VARIABLES.contains(&name.as_str()) || name.starts_with(TEST_PREFIX) || is_service_link(&name);
        if other {
            return Ok(());
        }
        let known: Vec<String> = self.known.iter().map(|key| variable(key)).collect();
        let hint = did_you_mean(&name, known.iter().map(String::as_str));
        Err(ConfigError::UnknownVariable { name, hint })
    }

    /// Environment and flags have texts only; the default says of which type the value is.
    fn add_text(&mut self, key: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let as_text = || Value::String(text.to_owned());
        let value = match self.default_of(key) {
            // What can not be read as the type stays a text, and is refused as one.
            Some(Value::Integer(_)) => text.trim().parse().map_or_else(|_| as_text(), Value::Integer),
            Some(Value::Boolean(_)) => text.trim().parse().map_or_else(|_| as_text(), Value::Boolean),
            Some(Value::Array(_)) => Value::Array(
                text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| part.into()).collect(),
            ),
            _ => as_text(),
        };
        self.set(key, value, origin)
    }

    fn default_of(&self, key: &str) -> Option<&Value> {
        let (section, name) = key.split_once('.')?;
        self.default.get(section)?.get(name)
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) -> Result<(), ConfigError> {
        if let Err(expected) = self.try_alone(key, &value) {
            return Err(ConfigError::Invalid { key: key.to_owned(), value: shown(key, &value), origin, expected });
        }
        put(&mut self.merged, key, value);
        self.origins.by_key.insert(key.to_owned(), origin);
        Ok(())
    }

    /// Tries the setting alone on top of the default, so that an error is known to be its own.
    fn try_alone(&self, key: &str, value: &Value) -> Result<(), String> {
        if let Some(default) = self.default_of(key) {
            let fits = match (default, value) {
                (Value::Integer(_), Value::Integer(number)) => *number >= 0,
                (Value::Array(_), Value::Array(values)) => values.iter().all(Value::is_str),
                _ => default.same_type(value),
            };
            if !fits {
                return Err(format!("expected {}", kind(default)));
            }
        }
        let mut table = self.default.clone();
        put(&mut table, key, value.clone());
        let config: Config = table.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
        config.check()
    }

    fn finish(self) -> Result<Config, ConfigError> {
        let mut config: Config = match self.merged.try_into() {
            Ok(config) => config,
            Err(error) => {
                unreachable!("settings that were each taken are not taken together: {error}")
            }
        };
        config.origins = self.origins;
        // Each role counts once, however often it was named.
        config.server.roles.sort_unstable();
        config.server.roles.dedup();
        read_secrets(&mut config)?;
        check_operators(&config)?;
        Ok(config)
    }
}

/// Refuses operators that share a token with `admin`, whose token is another setting.
fn check_operators(config: &Config) -> Result<(), ConfigError> {
    let Err(source) = config.admin.credentials() else { return Ok(()) };
    let token = if config.admin.token_file.is_empty() { "admin.token" } else { "admin.token_file" };
    let origins = &config.origins;
    Err(ConfigError::Operators { operators: origins.written("admin.operators"), token: origins.written(token), source })
}

/// Reads the files that have secrets in them, in place of the settings themselves.
fn read_secrets(config: &mut Config) -> Result<(), ConfigError> {
    let Config { admin, database, origins, .. } = config;
    if let Some(text) = secret_file("admin.token", !admin.token.is_empty(), &admin.token_file, origins)? {
        admin.token = Secret::new(text.trim_end_matches(['\r', '\n']));
    }
    let (path, given) = (&database.encryption_keys_file, !database.encryption_keys.is_empty());
    if let Some(text) = secret_file("database.encryption_keys", given, path, origins)? {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let keys = lines.map(|(number, line)| {
            let wrong = |error| format!("line {number} of the file: {error}");
            line.parse()
                .map_err(wrong)
                .map_err(|expected| invalid_file("database.encryption_keys", path, origins, expected))
        });
        database.encryption_keys = keys.collect::<Result<_, _>>()?;
    }
    Ok(())
}

/// The text of the file that has the secret of the setting `key`; none if no file is named.
fn secret_file(key: &'static str, given: bool, path: &str, origins: &Origins) -> Result<Option<String>, ConfigError> {
    if path.is_empty() {
        return Ok(None);
    }
    let file = origins.written(&format!("{key}_file"));
    if given {
        return Err(ConfigError::Both { key, origin: origins.written(key), file });
    }
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.into(),
        named_by: format!("`{key}_file` ({file})"),
        source,
    })?;
    match text.trim().is_empty() {
        true => Err(invalid_file(key, path, origins, "the file is empty; write the secret into it".to_owned())),
        false => Ok(Some(text)),
    }
}

fn invalid_file(key: &str, path: &str, origins: &Origins, expected: String) -> ConfigError {
    let key = format!("{key}_file");
    ConfigError::Invalid { value: format!("{path:?}"), origin: origins.written(&key), key, expected }
}

fn default_table() -> Table {
    match DEFAULT.parse() {
        Ok(table) => table,
        Err(error) => unreachable!("the compiled-in default is not TOML: {error}"),
    }
}

fn keys(table: &Table) -> Vec<String> {
    let sections = table.iter().filter_map(|(section, settings)| Some((section, settings.as_table()?)));
    sections.flat_map(|(section, settings)| settings.keys().map(move |key| format!("{section}.{key}"))).collect()
}

fn put(table: &mut Table, key: &str, value: Value) {
    if let Some((section, name)) = key.split_once('.')
        && let Some(settings) = table.get_mut(section).and_then(Value::as_table_mut)
    {
        settings.insert(name.to_owned(), value);
    }
}

fn variable(key: &str) -> String {
    format!("RELAIS_{}", key.replace('.', "_").to_uppercase())
}

/// Kubernetes gives every pod such variables for every service of its namespace, and one is likely to be called
/// `relais` or `relais-something`: they are nobody's typing error.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_PORT")
        || ["_SERVICE_PORT_", "_TCP", "_UDP", "_SCTP"].iter().any(|part| name.contains(part) && name.contains("_PORT_"))
}

fn kind(default: &Value) -> &'static str {
    match default {
        Value::Integer(_) => "a whole number, not negative",
        Value::Boolean(_) => "true or false",
        Value::Array(_) => "a list of texts",
        _ => "a text in quotes",
    }
}

fn shown(key: &str, value: &Value) -> String {
    match (key, value) {
        ("admin.token" | "admin.operators" | "database.encryption_keys" | "redis.password", _) => {
            values::MASK.to_owned()
        }
        (
            "database.url" | "broker.url" | "broker.management_url" | "redis.url" | "notifications.redis_url",
            Value::String(url),
        ) => {
            format!("{:?}", values::mask_url(url))
        }
        (_, value) => value.to_string(),
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
