//! Declaration files: services, clients, authorizations, schedules, outboxes, captures, audiences and notification sources in YAML or JSON.
//!
//! Read alike by `relais apply` and by the server that watches a file. References to environment variables are resolved
//! here, by whoever reads the file: the server never sees the names of another machine's variables. What the names and
//! numbers mean, and whether they go together, is for the one who applies them.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, anyhow, bail};
use relais_protocol::{
    admin::{Declaration, SecretDeclaration},
    capture::MaskDeclaration,
    outbox::SinkDeclaration,
};
use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter as _, UserMessageFormatter};

use crate::nearest::did_you_mean;

/// Reads a declaration file. Errors name the file and the line.
pub fn read(path: &Path) -> Result<Declaration> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, &path.display().to_string())
}

/// Reads a declaration that came from `origin`, a file's name or the like.
pub fn parse(text: &str, origin: &str) -> Result<Declaration> {
    parse_with(text, origin, |name| std::env::var(name).ok())
}

fn parse_with(text: &str, origin: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Declaration> {
    let mut declaration: Declaration = parse_text(text, origin)?;
    for client in &mut declaration.clients {
        for (secret, what) in [(&mut client.client_secret, "secret"), (&mut client.signing_secret, "signing secret")] {
            if let Some(SecretDeclaration::Env { env }) = secret {
                let found = resolve(env, &variable).with_context(|| {
                    format!("{origin}: the {what} of client `{}` is to come from the environment", client.client_id)
                })?;
                *secret = Some(SecretDeclaration::Plain(found));
            }
        }
    }
    for outbox in &mut declaration.outboxes {
        let secrets = sink_secrets(&mut outbox.sink).chain([&mut outbox.database_url]);
        resolve_all(secrets, &variable)
            .with_context(|| format!("{origin}: a value of outbox `{}`", outbox.outbox_name))?;
    }
    for capture in &mut declaration.captures {
        let salts = capture.mask_columns.values_mut().filter_map(|mask| match mask {
            MaskDeclaration::Hash(mask) => Some(&mut mask.hash),
            MaskDeclaration::Text(_) => None,
        });
        let secrets = sink_secrets(&mut capture.sink).chain([&mut capture.database_url]).chain(salts);
        resolve_all(secrets, &variable)
            .with_context(|| format!("{origin}: a value of capture `{}`", capture.capture_name))?;
    }
    Ok(declaration)
}

/// What may be secret of a sink.
fn sink_secrets(sink: &mut SinkDeclaration) -> impl Iterator<Item = &mut SecretDeclaration> {
    let urls =
        sink.rabbitmq.iter_mut().map(|sink| &mut sink.url).chain(sink.redis.iter_mut().map(|sink| &mut sink.url));
    let settings = sink.kafka.iter_mut().flat_map(|kafka| kafka.settings.values_mut());
    urls.chain(settings).chain(sink.http.iter_mut().filter_map(|http| http.signing_secret.as_mut()))
}

/// Replaces names of environment variables by what they hold.
fn resolve_all<'a>(
    secrets: impl Iterator<Item = &'a mut SecretDeclaration>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    for secret in secrets {
        if let SecretDeclaration::Env { env } = secret {
            let found = resolve(env, &variable).context("is to come from the environment")?;
            *secret = SecretDeclaration::Plain(found);
        }
    }
    Ok(())
}

/// The secret that an environment variable holds.
pub fn resolve(name: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String> {
    match variable(name) {
        Some(secret) if !secret.is_empty() => Ok(secret),
        Some(_) => bail!("environment variable {name} is empty; put the secret into it"),
        None => bail!("environment variable {name} is not set; put the secret into it"),
    }
}

/// Reads YAML or JSON as what it declares. Errors name the line; keys that are not known are refused with the nearest one.
pub fn parse_text<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T> {
    // All JSON is YAML, but only the JSON reader keeps numbers that no machine word can hold. What it does not
    // understand may still be YAML in braces.
    if text.trim_start().starts_with('{')
        && let Ok(declaration) = serde_json::from_str(text)
    {
        return Ok(declaration);
    }
    // A file that is being written, or the output of a command that failed, must not be taken for an empty declaration.
    if is_blank(text) {
        bail!("{origin} is empty; write {{}} into it if nothing is to be declared");
    }
    // Without the snippet of the file around the error, which may show a secret.
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| explain(error.without_snippet(), origin))
}

/// Whether there are comments at most.
fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    })
}

fn explain(error: &Error, origin: &str) -> anyhow::Error {
    let place = match error.location() {
        Some(location) => format!("{origin}:{}:{}", location.line(), location.column()),
        None => origin.to_owned(),
    };
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let hint = did_you_mean(field, expected.iter().copied());
            let hint = if hint.is_empty() { format!("; known are {}", expected.join(", ")) } else { hint };
            anyhow!("{place}: unknown key `{field}`{hint}")
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            anyhow!("{place}: `{variant}` is not known; expected {}", expected.join(" or "))
        }
        Error::InvalidScalar { ty, .. } if ty.starts_with(['u', 'i']) => {
            anyhow!("{place}: expected a whole number, not negative")
        }
        Error::Unexpected { expected: "mapping start", .. } => anyhow!("{place}: expected keys with values"),
        Error::Unexpected { expected: "sequence start", .. } => anyhow!("{place}: expected a list"),
        other => match UserMessageFormatter.format_message(other) {
            // The one place where serde's words say nothing to somebody who does not know our code.
            message if message.contains("SecretDeclaration") => {
                anyhow!("{place}: a secret is a text in quotes, or {{env: NAME}}")
            }
            message => anyhow!("{place}: {message}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use relais_protocol::admin::RoleName;

    use super::*;

    const FILE: &str = "\
# What runs here.
services:
  - serviceName: resize
    capacity: 100
    lease: 90s
    retention: {finished: 7d}
    jsonSchema:
      type: object
      properties: {width: {type: integer, maximum: 10000}}
clients:
  - clientId: web
    clientSecret: {env: WEB_SECRET}
  - clientId: batch
    clientSecret: \"in the open\"
authorizations:
  - {clientId: web, serviceName: resize, roles: [consume, work], capacity: 10}
  - clientId: batch
    serviceName: resize
";

    fn parse(text: &str) -> Result<Declaration> {
        parse_with(text, "services.yaml", |name| (name == "WEB_SECRET").then(|| "hidden".to_owned()))
    }

    #[test]
    fn the_example_of_the_reference_is_read() {
        let page = relais_api::reference::declarations();
        let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let read = parse_with(example, "services.yaml", |_| Some("hidden".to_owned())).unwrap();
        let counts = [read.services.len(), read.clients.len(), read.authorizations.len(), read.schedules.len()];
        assert_eq!((counts, read.outboxes.len()), ([1, 2, 2, 1], 1));
        assert_eq!((read.captures.len(), read.audiences.len(), read.notification_sources.len()), (1, 2, 1));
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", parse(text).expect_err("should have been refused"))
    }

    #[test]
    fn a_file_is_read_and_its_references_resolved() {
        let declaration = parse(FILE).unwrap();
        let service = &declaration.services[0];
        assert_eq!((service.capacity, service.lease.unwrap().to_string()), (Some(100), "1m30s".to_owned()));
        assert_eq!(service.json_schema.as_ref().unwrap()["properties"]["width"]["maximum"], 10_000);
        let secrets: Vec<_> = declaration.clients.iter().map(|client| client.client_secret.clone().unwrap()).collect();
        assert!(matches!(&secrets[0], SecretDeclaration::Plain(secret) if secret == "hidden"));
        assert!(matches!(&secrets[1], SecretDeclaration::Plain(secret) if secret == "in the open"));
        assert_eq!(declaration.authorizations[0].roles, [RoleName::Consume, RoleName::Work]);
        assert_eq!(declaration.authorizations[1].roles, [RoleName::Consume]);
    }

    #[test]
    fn json_is_read_too_and_keeps_its_numbers() {
        let text = r#"{"services": [{"serviceName": "s", "jsonSchema": {"maximum": 123456789012345678901234567890}}]}"#;
        let declaration = parse(text).unwrap();
        let schema = declaration.services[0].json_schema.as_ref().unwrap().to_string();
        assert_eq!(schema, r#"{"maximum":123456789012345678901234567890}"#);
        assert_eq!(parse("{services: [{serviceName: s}]}").unwrap().services[0].service_name, "s");
    }

    #[test]
    fn an_empty_declarations_file_is_refused() {
        for text in ["", "\n", "# nothing yet\n", "---\n# nothing\n"] {
            assert!(refusal(text).contains("services.yaml is empty; write {}"), "{text:?}");
        }
        for text in ["{}", "services: []\n"] {
            assert!(parse(text).unwrap().services.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_missing_variable_is_named() {
        let text = refusal("clients:\n  - clientId: web\n    clientSecret: {env: NOT_THERE}\n");
        assert!(text.contains("client `web`") && text.contains("NOT_THERE is not set"), "{text}");
        assert!(resolve("EMPTY", |_| Some(String::new())).unwrap_err().to_string().contains("EMPTY is empty"));
    }

    #[test]
    fn errors_name_the_line_and_the_nearest_key() {
        for (text, said) in [
            (
                "services:\n  - serviceNam: s\n",
                "services.yaml:2:5: unknown key `serviceNam`: did you mean `serviceName`?",
            ),
            ("servces: []\n", "services.yaml:1:1: unknown key `servces`: did you mean `services`?"),
            (
                "wombat: []\n",
                "services.yaml:1:1: unknown key `wombat`; known are services, clients, authorizations, schedules, outboxes, \
                 captures, audiences, notificationSources",
            ),
            (
                "authorizations:\n  - {clientId: c, serviceName: s, roles: [dance]}\n",
                "`dance` is not known; expected consume or work",
            ),
            ("services:\n  - serviceName: s\n    capacity: many\n", "services.yaml:3:15: expected a whole number"),
            ("services: 3\n", "services.yaml:1:11: expected a list"),
            ("audiences:\n  - type: COURSE\n    members: [ann]\n", "services.yaml:3:15: expected keys with values"),
            (
                "notificationSources:\n  - sourceName: s\n    bus: {chanels: [a]}\n",
                "services.yaml:3:11: unknown key `chanels`: did you mean `channels`?",
            ),
            ("hello\n", "services.yaml:1:1: expected keys with values"),
            ("services:\n  - serviceName: s\n    lease: 60\n", "is not a duration"),
            ("services:\n  - capacity: 3\n", "serviceName"),
            ("clients:\n  - clientId: c\n    clientSecret: 12\n", "a secret is a text in quotes, or {env: NAME}"),
            ("services:\n  - serviceName: s\n    serviceName: t\n", "services.yaml:3:"),
            ("services: [\n", "services.yaml:"),
            ("services: []\n---\nservices: []\n", "services.yaml:"),
        ] {
            let found = refusal(text);
            assert!(found.contains(said), "{text:?} was refused with {found:?}");
            assert!(!found.contains('\n'), "{found}");
        }
    }

    #[test]
    fn every_secret_of_an_outbox_may_come_from_the_environment() {
        let text = "outboxes:\n  - outboxName: orders\n    databaseUrl: {env: WEB_SECRET}\n    sink:\n      rabbitmq: \
                    {url: {env: WEB_SECRET}}\n      redis: {url: {env: WEB_SECRET}}\n      http: {signingSecret: {env: \
                    WEB_SECRET}}\n      kafka: {brokers: h, settings: {sasl.password: {env: WEB_SECRET}}}\n";
        let read = serde_json::to_string(&parse(text).unwrap().outboxes[0]).unwrap();
        assert!(read.matches("hidden").count() == 5 && !read.contains("WEB_SECRET"), "{read}");
        let wrong = refusal("outboxes:\n  - outboxName: orders\n    databaseUrl: {env: NOT_THERE}\n    sink: {}\n");
        assert!(wrong.contains("outbox `orders`") && wrong.contains("NOT_THERE is not set"), "{wrong}");
        let wrong = refusal("outboxes:\n  - outboxName: orders\n    databasUrl: x\n");
        assert!(wrong.contains("unknown key `databasUrl`: did you mean `databaseUrl`?"), "{wrong}");
    }

    #[test]
    fn errors_do_not_show_the_secrets_around_them() {
        let text = refusal("clients:\n  - clientId: c\n    clientSecret: hidden\n    colour: blue\n");
        assert!(!text.contains("hidden"), "{text}");
    }
}
