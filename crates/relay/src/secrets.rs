//! Passwords in declarations: kept apart from what is shown, and kept when a declaration does not repeat them.

use std::collections::BTreeMap;

use relais_engine::Problem;
use relais_protocol::{admin::SecretDeclaration, outbox::SinkDeclaration};
use url::Url;

/// Secrets by the place of their key in the declaration: `databaseUrl`, `sink/rabbitmq/url`.
pub(crate) type Secrets = BTreeMap<String, String>;

pub(crate) const DATABASE_URL: &str = "databaseUrl";
const RABBITMQ_URL: &str = "sink/rabbitmq/url";
const REDIS_URL: &str = "sink/redis/url";
const SIGNING_SECRET: &str = "sink/http/signingSecret";
const KAFKA_SETTING: &str = "sink/kafka/settings/";

/// Takes out what may not be shown. Problems are at places below the declaration.
pub(crate) fn split(database_url: &mut SecretDeclaration, sink: &mut SinkDeclaration) -> Result<Secrets, Vec<Problem>> {
    let (mut secrets, mut problems) = (Secrets::new(), Vec::new());
    let urls = [
        (DATABASE_URL, Some(database_url)),
        (RABBITMQ_URL, sink.rabbitmq.as_mut().map(|sink| &mut sink.url)),
        (REDIS_URL, sink.redis.as_mut().map(|sink| &mut sink.url)),
    ];
    for (place, url) in urls {
        let Some(url) = url else { continue };
        match plain(url).and_then(|text| Ok((without_password(text)?, text.to_owned()))) {
            Ok((shown, text)) => {
                secrets.insert(place.to_owned(), text);
                *url = SecretDeclaration::Plain(shown);
            }
            Err(message) => problems.push(Problem::at(place, message)),
        }
    }
    let mut hidden = Vec::new();
    if let Some(http) = &mut sink.http {
        hidden.extend(http.signing_secret.take().map(|secret| (SIGNING_SECRET.to_owned(), secret)));
    }
    if let Some(kafka) = &mut sink.kafka {
        let secret = |name: &String| ["password", "secret", ".pem", ".key"].iter().any(|part| name.contains(part));
        let names: Vec<String> = kafka.settings.keys().filter(|name| secret(name)).cloned().collect();
        let taken = names.into_iter().filter_map(|name| kafka.settings.remove_entry(&name));
        hidden.extend(taken.map(|(name, secret)| (format!("{KAFKA_SETTING}{name}"), secret)));
        for (name, value) in &kafka.settings {
            if let Err(message) = plain(value) {
                problems.push(Problem::at(format!("{KAFKA_SETTING}{name}"), message));
            }
        }
    }
    for (place, secret) in hidden {
        match plain(&secret) {
            Ok(text) => drop(secrets.insert(place, text.to_owned())),
            Err(message) => problems.push(Problem::at(place, message)),
        }
    }
    if problems.is_empty() { Ok(secrets) } else { Err(problems) }
}

/// What a declaration does not repeat stays: a URL without a password that is otherwise the same, and what is never shown.
/// None of one Kafka cluster is sent to another.
pub(crate) fn keep(sink: &SinkDeclaration, secrets: &mut Secrets, stored: (&SinkDeclaration, &Secrets)) {
    let brokers = |sink: &SinkDeclaration| sink.kafka.as_ref().map(|kafka| kafka.brokers.clone());
    let same_cluster = brokers(sink) == brokers(stored.0);
    for (place, old) in stored.1 {
        match secrets.get_mut(place) {
            Some(url) if without_password(url).as_ref() == Ok(url) && without_password(old).as_ref() == Ok(url) => {
                old.clone_into(url);
            }
            Some(_) => {}
            None if place == SIGNING_SECRET && sink.http.is_some() => {
                secrets.insert(place.clone(), old.clone());
            }
            None if place.starts_with(KAFKA_SETTING) && sink.kafka.is_some() && same_cluster => {
                secrets.insert(place.clone(), old.clone());
            }
            None => {}
        }
    }
}

/// Puts them back.
pub(crate) fn join(database_url: &mut SecretDeclaration, sink: &mut SinkDeclaration, secrets: &Secrets) {
    let secret = |place: &str| secrets.get(place).cloned().map(SecretDeclaration::Plain);
    let urls = [
        (DATABASE_URL, Some(database_url)),
        (RABBITMQ_URL, sink.rabbitmq.as_mut().map(|sink| &mut sink.url)),
        (REDIS_URL, sink.redis.as_mut().map(|sink| &mut sink.url)),
    ];
    for (place, url) in urls {
        if let (Some(url), Some(secret)) = (url, secret(place)) {
            *url = secret;
        }
    }
    if let Some(http) = &mut sink.http {
        http.signing_secret = secret(SIGNING_SECRET);
    }
    if let Some(kafka) = &mut sink.kafka {
        for (place, value) in secrets {
            if let Some(name) = place.strip_prefix(KAFKA_SETTING) {
                kafka.settings.insert(name.to_owned(), SecretDeclaration::Plain(value.clone()));
            }
        }
    }
}

/// The text of a secret that was resolved by whoever read the file.
pub(crate) fn plain(secret: &SecretDeclaration) -> Result<&str, String> {
    match secret {
        SecretDeclaration::Plain(text) if text.is_empty() => Err("is empty".to_owned()),
        SecretDeclaration::Plain(text) => Ok(text),
        SecretDeclaration::Env { .. } => {
            Err("must be the text itself: only files may name environment variables".to_owned())
        }
    }
}

/// A URL without its password, wherever it stands. An error does not show it.
fn without_password(text: &str) -> Result<String, String> {
    if text.starts_with("sqlite:") {
        return Ok(text.to_owned());
    }
    let mut url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    // It fails for URLs that can have none.
    let _ = url.set_password(None);
    let query = url.query().map(|query| {
        let public = query.split('&').filter(|pair| {
            let name = pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
            !name.contains("password")
        });
        public.collect::<Vec<_>>().join("&")
    });
    url.set_query(query.as_deref().filter(|query| !query.is_empty()));
    Ok(url.to_string())
}

#[cfg(test)]
mod tests {
    use relais_protocol::outbox::{HttpSinkDeclaration, OutboxDeclaration};

    use super::*;

    fn split(mut declared: OutboxDeclaration) -> Result<(OutboxDeclaration, Secrets), Vec<Problem>> {
        let secrets = super::split(&mut declared.database_url, &mut declared.sink)?;
        Ok((declared, secrets))
    }

    fn keep(declared: &OutboxDeclaration, secrets: &mut Secrets, stored: &Secrets) {
        super::keep(&declared.sink, secrets, (&declared.sink, stored));
    }

    fn declared(database: &str, broker: &str) -> OutboxDeclaration {
        serde_json::from_value(serde_json::json!({
            "outboxName": "orders", "databaseUrl": database, "sink": {"rabbitmq": {"url": broker}},
        }))
        .unwrap()
    }

    #[test]
    fn what_is_shown_has_no_password_and_the_whole_comes_back() {
        let whole = declared("postgres://u:hidden@h/db?sslmode=require&password=hidden", "amqp://u:hidden@h/v");
        let (shown, secrets) = split(whole.clone()).unwrap();
        let text = serde_json::to_string(&shown).unwrap();
        assert!(!text.contains("hidden"), "{text}");
        assert!(text.contains("postgres://u@h/db?sslmode=require") && text.contains("amqp://u@h/v"), "{text}");
        let mut again = shown;
        join(&mut again.database_url, &mut again.sink, &secrets);
        assert_eq!(again, whole);
    }

    #[test]
    fn a_url_that_was_shown_keeps_its_password_and_another_one_does_not() {
        let (shown, stored) = split(declared("postgres://u:hidden@h/db", "amqp://u:hidden@h")).unwrap();
        let (again, mut secrets) = split(shown.clone()).unwrap();
        assert_eq!(again, shown);
        keep(&again, &mut secrets, &stored);
        assert_eq!(secrets, stored);

        let (other, mut secrets) = split(declared("postgres://u@other/db", "amqp://u:new@h")).unwrap();
        keep(&other, &mut secrets, &stored);
        assert_eq!(secrets[DATABASE_URL], "postgres://u@other/db");
        assert_eq!(secrets[RABBITMQ_URL], "amqp://u:new@h");
    }

    #[test]
    fn what_is_never_shown_is_kept_until_it_is_declared_anew() {
        let http = |secret: Option<&str>| {
            let mut declared = declared("sqlite:a.db", "amqp://h");
            declared.sink.rabbitmq = None;
            let signing_secret = secret.map(|secret| SecretDeclaration::Plain(secret.to_owned()));
            declared.sink.http = Some(HttpSinkDeclaration { signing_secret });
            declared
        };
        let (shown, stored) = split(http(Some("whsec_old"))).unwrap();
        assert!(!serde_json::to_string(&shown).unwrap().contains("whsec_"));
        let (again, mut secrets) = split(http(None)).unwrap();
        keep(&again, &mut secrets, &stored);
        assert_eq!(secrets[SIGNING_SECRET], "whsec_old");
        let (again, mut secrets) = split(http(Some("whsec_new"))).unwrap();
        keep(&again, &mut secrets, &stored);
        assert_eq!(secrets[SIGNING_SECRET], "whsec_new");
    }

    #[test]
    fn only_files_may_name_variables_and_errors_show_no_secret() {
        let mut named = declared("postgres://h/db", "amqp://h");
        named.database_url = SecretDeclaration::Env { env: "X".to_owned() };
        assert_eq!(split(named).unwrap_err()[0].path, DATABASE_URL);
        let wrong = split(declared("hidden", "amqp://h")).unwrap_err();
        assert!(wrong[0].message.contains("is not a URL") && !wrong[0].message.contains("hidden"), "{wrong:?}");
    }
}
