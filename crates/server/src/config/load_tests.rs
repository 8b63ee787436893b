//! What loading promises.

use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::config::Role;

fn with_file(text: &str) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("relais.toml");
    fs::write(&path, text).unwrap();
    load(Some(&path), [], &[])
}

fn with_variables(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load(None, variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())), &[])
}

fn refusal(result: Result<Config, ConfigError>) -> String {
    result.expect_err("should have been refused").to_string()
}

#[test]
fn the_default_is_a_configuration() {
    let config = with_variables(&[]).unwrap();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.server.roles, Role::ALL);
    assert_eq!(config.purge.finished.0, Duration::from_secs(30 * 86_400));
    config.check().unwrap();
}

#[test]
fn the_default_file_and_the_structure_have_the_same_keys() {
    let structure = Table::try_from(with_variables(&[]).unwrap()).unwrap();
    let of_structure: BTreeSet<String> = keys(&structure).into_iter().collect();
    let of_file: BTreeSet<String> = keys(&default_table()).into_iter().collect();
    assert_eq!(of_structure, of_file);
}

#[test]
fn every_key_of_the_default_file_is_explained() {
    let mut comment_before = false;
    for line in DEFAULT.lines().filter(|line| !line.is_empty() && !line.starts_with('[')) {
        assert!(line.starts_with('#') || comment_before, "{line} has no comment before it");
        comment_before = line.starts_with('#');
    }
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("relais.toml");
    fs::write(&path, "[server]\nlisten = '1.1.1.1:1'\n[purge]\nbatch = 1\nany = '1d'\n").unwrap();
    let variables = [("RELAIS_SERVER_LISTEN", "2.2.2.2:2"), ("RELAIS_PURGE_BATCH", "2"), ("RELAIS_CONFIG", "/nowhere")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let flags = [Setting::flag("--listen", "server.listen", "3.3.3.3:3")];
    let config = load(Some(&path), variables, &flags).unwrap();
    assert_eq!(config.server.listen.to_string(), "3.3.3.3:3");
    assert_eq!(config.purge.batch, 2);
    assert_eq!(config.purge.any.to_string(), "1d");
    assert_eq!(config.origins.of("purge.batch"), Some(&Origin::Variable("RELAIS_PURGE_BATCH".to_owned())));
    assert_eq!(config.origins.of("purge.any"), Some(&Origin::File(path)));
    assert_eq!(config.origins.of("purge.every"), None);
}

#[test]
fn every_type_can_come_from_the_environment_and_an_empty_variable_is_none() {
    let config = with_variables(&[
        ("RELAIS_SERVER_ROLES", "purge, api,api"),
        ("RELAIS_DATABASE_MIGRATE", "false"),
        ("RELAIS_AUTH_BCRYPT_COST", "12"),
        ("RELAIS_TASKS_MAX_WAIT", "1m30s"),
        ("RELAIS_LOG_FORMAT", "json"),
        ("RELAIS_LOG_LEVEL", ""),
    ])
    .unwrap();
    assert_eq!(config.server.roles, [Role::Api, Role::Purge]);
    assert!(!config.database.migrate);
    assert_eq!(config.auth.bcrypt_cost, 12);
    assert_eq!(config.tasks.max_wait.0, Duration::from_secs(90));
    assert_eq!(config.log.level, "info");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    for (file, said) in [
        ("[databse]\nurl = 'x'", "unknown key `databse.url` in "),
        ("[databse]\nurl = 'x'", "relais.toml: did you mean `database.url`?"),
        ("[server]\nlisen = 'x'", "unknown key `server.lisen` in "),
        ("[server]\nlisen = 'x'", ": did you mean `server.listen`?"),
        ("max_batch = 3", ": did you mean `batching.max_batch`?"),
        ("[server]\notlp_endpoint = 'x'", ": did you mean `telemetry.otlp_endpoint`?"),
        ("server = 3", "unknown key `server` in "),
        ("server = 3", ": it is a section, write [server] on a line of its own"),
        ("[wombat]", "unknown key `wombat` in "),
    ] {
        let text = refusal(with_file(file));
        assert!(text.contains(said), "{file:?} was refused with {text:?}");
    }
}

#[test]
fn an_unknown_variable_is_refused_but_those_of_others_are_not() {
    let text = refusal(with_variables(&[("RELAIS_DATABSE_URL", "x")]));
    assert!(text.contains("RELAIS_DATABSE_URL: did you mean `RELAIS_DATABASE_URL`?"), "{text}");
    with_variables(&[
        ("RELAIS_URL", "x"),
        ("RELAIS_BIN", "x"),
        ("RELAIS_TEST_POSTGRES", "x"),
        ("RELAIS_SERVICE_HOST", "10.0.0.1"),
        ("RELAIS_SERVICE_PORT_HTTP", "8080"),
        ("RELAIS_API_PORT", "tcp://10.0.0.1:8080"),
        ("RELAIS_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ])
    .unwrap();
}

#[test]
fn a_wrong_value_is_named_with_its_key_and_what_was_expected() {
    for (variable, value, said) in [
        ("RELAIS_PURGE_BATCH", "many", "`purge.batch` = \"many\" (RELAIS_PURGE_BATCH): expected a whole number"),
        ("RELAIS_PURGE_BATCH", "-1", "expected a whole number, not negative"),
        ("RELAIS_PURGE_BATCH", "0", "expected at least 1"),
        ("RELAIS_PURGE_EVERY", "24", "is not a duration: write it like 30s"),
        ("RELAIS_PURGE_EVERY", "0s", "expected a duration above zero"),
        ("RELAIS_DATABASE_MIGRATE", "yes", "expected true or false"),
        ("RELAIS_LOG_FORMAT", "xml", "expected one of `auto`, `human`, `json`"),
        ("RELAIS_LOG_LEVEL", "inof", "expected off, error, warn, info, debug or trace"),
        ("RELAIS_SERVER_LISTEN", "8080", "expected an address and a port, like 127.0.0.1:8080"),
        ("RELAIS_SERVER_ROLES", "api,dance", "expected one of `api`, `rescue`, `purge`"),
        ("RELAIS_SERVER_ROLES", ",", "expected at least one of api, rescue, purge"),
        ("RELAIS_DATABASE_URL", "mysql://u:hidden@h/d", "`database.url` = \"mysql://u:***@h/d\""),
        ("RELAIS_TASKS_MAX_WAIT", "10m", "expected at most 120s"),
        ("RELAIS_AUTH_BCRYPT_COST", "31", "expected 4 to 20"),
        ("RELAIS_TELEMETRY_OTLP_ENDPOINT", "localhost", "expected a URL"),
    ] {
        let text = refusal(with_variables(&[(variable, value)]));
        assert!(text.contains(said), "{variable}={value} was refused with {text:?}");
        assert!(text.contains(variable) && !text.contains("hidden"), "{text}");
    }
    let text = refusal(with_file("[purge]\nevery = 24\n"));
    assert!(text.starts_with("`purge.every` = 24 ("), "{text}");
    assert!(text.ends_with("relais.toml): expected a text in quotes"), "{text}");
}

#[test]
fn no_error_shows_a_secret() {
    for file in [
        "[admin]\ntoken = 12345\n",
        "[admin]\ntoken = \"12345\n",
        "[admin]\ntoken = [\"12345\"]\n",
        "[database]\nencryption_keys = 12345\n",
        "[database]\nencryption_keys = [\"12345\"]\n",
        "[database]\nencryption_keys = [\"MTIzNDUxMjM0NTEyMzQ1\", \"12345\"]\n",
    ] {
        let text = refusal(with_file(file));
        assert!(!text.contains("12345"), "{text}");
    }
    let text = refusal(with_file("[server]\n\nlisten = = 3\n"));
    assert!(text.contains("relais.toml:3: "), "{text}");
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let text = refusal(load(Some(Path::new("/nowhere/relais.toml")), [], &[]));
    assert!(text.contains("/nowhere/relais.toml") && text.contains("--config"), "{text}");
    let text = refusal(with_variables(&[("RELAIS_CONFIG", "/nowhere/else.toml")]));
    assert!(text.contains("/nowhere/else.toml") && text.contains("RELAIS_CONFIG"), "{text}");
}

#[test]
fn two_operators_with_the_same_name_or_the_same_token_are_refused() {
    let (one, two) = ("0123456789abcdef0", "fedcba98765432100");
    for (operators, said) in [
        (format!("rita:read-only:{one},rita:admin:{two}"), "rita and rita have the same name"),
        (format!("rita:read-only:{one},Rita:admin:{two}"), "rita and Rita have the same name"),
        (format!("rita:read-only:{one},ada:admin:{one}"), "rita and ada have the same token"),
        (format!("Admin:read-only:{one}"), "other than admin and local"),
    ] {
        let text = refusal(with_variables(&[("RELAIS_ADMIN_OPERATORS", &operators)]));
        assert!(text.contains(said) && text.contains("RELAIS_ADMIN_OPERATORS"), "{operators}: {text}");
        assert!(!text.contains(one) && !text.contains(two), "{text}");
    }
    let fine = format!("rita:read-only:{one},ada:admin:{two}");
    assert_eq!(with_variables(&[("RELAIS_ADMIN_OPERATORS", &fine)]).unwrap().admin.operators.len(), 2);
}

#[test]
fn an_operator_with_the_token_of_admin_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    fs::write(&path, "0123456789abcdef0\n").unwrap();
    let operators = ("RELAIS_ADMIN_OPERATORS", "rita:read-only:0123456789abcdef0");
    for token in [("RELAIS_ADMIN_TOKEN", "0123456789abcdef0"), ("RELAIS_ADMIN_TOKEN_FILE", path.to_str().unwrap())] {
        let error = with_variables(&[operators, token]).expect_err("should have been refused");
        let text = format!("{:#}", anyhow::Error::from(error));
        assert!(text.contains("admin and rita have the same token: give each"), "{text}");
        assert!(text.contains(operators.0) && text.contains(token.0) && !text.contains("0123456789"), "{text}");
    }
}

#[test]
fn encryption_keys_come_from_a_list_or_from_the_lines_of_a_file_and_are_never_shown() {
    let (one, two) = ("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=");
    let both = format!("{one},{two}");
    let list = ("RELAIS_DATABASE_ENCRYPTION_KEYS", both.as_str());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let file = ("RELAIS_DATABASE_ENCRYPTION_KEYS_FILE", path.to_str().unwrap());
    fs::write(&path, format!("{one}\r\n\n{two}\n")).unwrap();
    for variable in [list, file] {
        let config = with_variables(&[variable]).unwrap();
        let shown = format!("{config:?} {}", crate::config::show(&config).unwrap());
        assert!(!shown.contains("AQEB") && !shown.contains("AgIC"), "{shown}");
        assert!(shown.contains("encryption_keys = [\"***\", \"***\"]"), "{shown}");
    }
    let text = refusal(with_variables(&[list, file]));
    assert!(text.contains("both `database.encryption_keys` (RELAIS_DATABASE_ENCRYPTION_KEYS)"), "{text}");

    let short = ("RELAIS_DATABASE_ENCRYPTION_KEYS", "AQEBAQEB");
    assert!(refusal(with_variables(&[short])).ends_with(
        "`database.encryption_keys` = *** (RELAIS_DATABASE_ENCRYPTION_KEYS): expected the base64 of 32 bytes, and these \
         are 6; `openssl rand -base64 32` makes a key"
    ));
    for (written, said) in [
        (format!("{one}\nAgICAgIC\n"), "line 2 of the file: expected the base64 of 32 bytes, and these are 6"),
        ("\n \n".to_owned(), "the file is empty"),
    ] {
        fs::write(&path, written).unwrap();
        let text = refusal(with_variables(&[file]));
        assert!(
            text.contains(said) && text.contains(file.0) && text.contains("`database.encryption_keys_file`"),
            "{text}"
        );
        assert!(!text.contains("AQEB") && !text.contains("AgIC"), "{text}");
    }
}

#[test]
fn a_token_comes_from_its_file_without_the_line_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let variable = ("RELAIS_ADMIN_TOKEN_FILE", path.to_str().unwrap());
    assert!(refusal(with_variables(&[variable])).contains("`admin.token_file` (RELAIS_ADMIN_TOKEN_FILE) names"));
    fs::write(&path, "\n").unwrap();
    assert!(refusal(with_variables(&[variable])).contains("the file is empty"));
    fs::write(&path, "s3cret\r\n").unwrap();
    assert_eq!(with_variables(&[variable]).unwrap().admin.token.expose(), "s3cret");
    let text = refusal(with_variables(&[variable, ("RELAIS_ADMIN_TOKEN", "other")]));
    assert!(text.contains("remove one of them") && !text.contains("other"), "{text}");
}
