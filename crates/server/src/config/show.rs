//! What came of file, environment and flags, for people to look at. Secrets are masked.

use std::fmt::Write as _;

use super::Config;

/// The configuration as TOML; behind each setting that is not the default stands where it came from.
pub fn show(config: &Config) -> Result<String, toml::ser::Error> {
    let table = toml::Table::try_from(config)?;
    let mut text = String::new();
    for (section, settings) in &table {
        let Some(settings) = settings.as_table() else {
            continue;
        };
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{section}]");
        for (key, value) in settings {
            let origin = config.origins.of(&format!("{section}.{key}"));
            let origin = origin.map(|origin| format!("  # {origin}")).unwrap_or_default();
            let _ = writeln!(text, "{key} = {value}{origin}");
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use crate::config::{Origin, Setting, load};

    use super::*;

    #[test]
    fn secrets_are_masked_and_origins_are_named() {
        let env = [
            ("RELAIS_DATABASE_URL".to_owned(), "postgres://relais:hidden@db/relais".to_owned()),
            ("RELAIS_ADMIN_TOKEN".to_owned(), "hidden too".to_owned()),
        ];
        let flags = [Setting::flag("--listen", "server.listen", "0.0.0.0:9000")];
        let config = load(None, env, &flags).unwrap();
        let text = show(&config).unwrap();
        assert!(!text.contains("hidden"), "{text}");
        assert!(text.contains("url = \"postgres://relais:***@db/relais\"  # RELAIS_DATABASE_URL\n"), "{text}");
        assert!(text.contains("token = \"***\"  # RELAIS_ADMIN_TOKEN\n"), "{text}");
        assert!(text.contains("listen = \"0.0.0.0:9000\"  # --listen\n"), "{text}");
        assert!(text.contains("max_batch = 500\n"), "{text}");
        assert_eq!(config.origins.of("server.listen"), Some(&Origin::Flag("--listen")));
        text.parse::<toml::Table>().unwrap();
    }
}
