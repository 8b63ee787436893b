//! `docs/declarations.md`: every key of a declaration file, from the schemas of the types that read it.
//!
//! A key's default is the part of its description behind `Default:`. What is checked only when a declaration is applied
//! is said in the descriptions; nothing here knows it.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

use super::markdown::{cell, paragraph};
use crate::openapi::document_value;

const SCHEMAS: &str = "#/components/schemas/";

/// The sections, in the order in which one thing refers to another.
const SECTIONS: [&str; 8] =
    ["services", "clients", "authorizations", "schedules", "outboxes", "captures", "audiences", "notificationSources"];

const OPENING: &str = r#"# Declarations

<!-- `relais reference declarations` prints this page. Change the doc comments in crates/protocol, then run
`cargo xtask gen`. -->

A declaration file says which services, clients, authorizations, schedules, outboxes, captures, audiences and
notification sources a server has:

```yaml
# services.yaml
services:
  - serviceName: resize
    capacity: 1000
    lease: 90s
    retry: {limit: 5, base: 10s, cap: 1h}
    jsonSchema:
      type: object
      required: [width]
      properties: {width: {type: integer, maximum: 10000}}
clients:
  - clientId: web
    clientSecret: {env: WEB_SECRET}
    notifications: {emit: [USER, GROUP], audience: [GROUP], ticket: true}
  - clientId: resizer
    clientSecret: {env: RESIZER_SECRET}
authorizations:
  - {clientId: web, serviceName: resize}
  - {clientId: resizer, serviceName: resize, roles: [work]}
schedules:
  - scheduleName: nightly
    serviceName: resize
    clientId: web
    cron: "30 2 * * MON-FRI"
    body: {width: 100}
outboxes:
  - outboxName: orders
    databaseUrl: {env: ORDERS_DATABASE_URL}
    destination: shop
    routingKey: "orders.{event_type}"
    sink: {rabbitmq: {url: {env: RABBITMQ_URL}}}
captures:
  - captureName: shop
    databaseUrl: {env: ORDERS_DATABASE_URL}
    tables: [orders, customers]
    maskColumns: {public.customers.card: "****"}
    sink: {redis: {url: {env: REDIS_URL}}}
audiences:
  - type: COURSE
  - type: GROUP
    target: teachers
    members: [{target: ann}, {type: COURSE, target: maths}]
notificationSources:
  - sourceName: failures
    bus: {channels: [task.*.failure]}
    audience: {type: GROUP, targets: [teachers]}
    payload: {title: "{payload.service} failed", task: "{payload.taskId}"}
    type: NOTIFICATION
```

Apply it with `relais apply -f services.yaml`, or name it in the setting `declarations.file`: the server then applies
it at the start and whenever it changes. `relais apply --dry-run` only checks it. `relais export` prints what a server
has as such a file. The file is YAML or JSON. The admin API takes the same objects, for example in
`PUT /admin/services/{service}`.

A file is applied as a whole or not at all. What it does not name stays as it is, unless you prune
(`relais apply --prune`, `declarations.prune`). A service, client, authorization, schedule, outbox, capture, audience or
notification source that it names becomes what the file says: a key that is absent gets its default.

The database and the sink of a new or changed outbox or capture are asked whether they can be used. One that is away is
refused by `relais apply` and the admin API (`--no-check` and `check=false` store it all the same); a file that the
server watches is applied, with a warning.

- **Names** have 1 to 100 ASCII letters, digits, `.`, `_` and `-`, and begin with a letter or a digit.
- **Durations** are written like `250ms`, `30s`, `5m`, `1h30m` or `7d`.
- Unknown keys are errors.
"#;

/// The page, in the order of [`SECTIONS`].
pub fn declarations() -> String {
    let document = document_value();
    let mut page =
        Page { schemas: &document["components"]["schemas"], text: OPENING.to_owned(), headings: BTreeMap::new() };
    for key in SECTIONS {
        let section = &page.schemas["Declaration"]["properties"][key];
        page.section(key, section, 2);
    }
    page.text
}

struct Page<'a> {
    schemas: &'a Value,
    text: String,
    /// The named schemas that have a section, and its heading.
    headings: BTreeMap<&'a str, String>,
}

impl<'a> Page<'a> {
    /// A key whose value is an object, or a list of objects: its own keys, then those within them.
    fn section(&mut self, path: &str, field: &'a Value, level: usize) {
        let Some((name, object)) = self.object_of(field) else { return };
        let heading = heading(path, field);
        if self.name_heading(name, &heading) != heading {
            return;
        }
        let _ = write!(self.text, "\n{} `{heading}`\n\n", "#".repeat(level));
        self.text += &paragraph(description(&self.schemas[name]).meaning);
        self.text += "\n| key | type | default | meaning |\n|---|---|---|---|\n";
        let keys = keys(object);
        for (key, field, required) in &keys {
            if let Some((name, _)) = self.object_of(field) {
                self.name_heading(name, &self::heading(&format!("{heading}.{key}"), field));
            }
            let row = self.row(key, field, *required);
            self.text += &row;
        }
        for (key, field, _) in keys {
            self.section(&format!("{heading}.{key}"), field, 3);
        }
    }

    fn row(&self, key: &str, field: &'a Value, required: bool) -> String {
        let described = description(field);
        let default = match described.default {
            _ if required => "required",
            "" => "–",
            default => default.trim_end_matches('.'),
        };
        let mut meaning = described.meaning.to_owned();
        if let Some(range) = self.range(field) {
            let _ = write!(meaning, " {range}");
        }
        if let Some((name, _)) = self.object_of(field) {
            let heading = self.headings.get(name).map_or("", String::as_str);
            let _ = write!(meaning, " See [`{heading}`](#{}).", anchor(heading));
        }
        let [kind, default, meaning] = [&self.type_of(field), default, &meaning].map(cell);
        format!("| `{key}` | {kind} | {default} | {meaning} |\n")
    }

    /// The type in words.
    fn type_of(&self, field: &'a Value) -> String {
        let words: Vec<String> = self.choices(field).into_iter().map(|one| self.simple_type(one)).collect();
        words.join(" or ")
    }

    fn simple_type(&self, schema: &'a Value) -> String {
        if let Some(values) = schema["enum"].as_array() {
            let values: Vec<String> = values.iter().filter_map(Value::as_str).map(|one| format!("`{one}`")).collect();
            return values.join(", ");
        }
        match kind_of(schema) {
            "array" => match self.type_of(&schema["items"]) {
                values if values.starts_with('`') => format!("list of {values}"),
                kind => format!("list of {kind}s"),
            },
            "string" if schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("(d|h|m|s|ms)")) => {
                "duration".to_owned()
            }
            "" => "any".to_owned(),
            kind => kind.to_owned(),
        }
    }

    /// The numbers and lengths that are allowed.
    fn range(&self, field: &'a Value) -> Option<String> {
        // What the database can hold is no limit that anybody needs to know.
        let told = |bound: &&Value| **bound != i32::MAX;
        let bound = |name: &str| {
            self.choices(field).into_iter().find_map(|one| one.get(name)).filter(told).map(Value::to_string)
        };
        for (least, most, unit) in [("minimum", "maximum", ""), ("minLength", "maxLength", " characters")] {
            match (bound(least), bound(most)) {
                (Some(least), Some(most)) => return Some(format!("From {least} to {most}{unit}.")),
                // A count is never negative; to say so of each would be noise.
                (Some(least), None) if least != "0" => return Some(format!("At least {least}{unit}.")),
                (None, Some(most)) => return Some(format!("At most {most}{unit}.")),
                _ => {}
            }
        }
        None
    }

    /// The shapes that a value may have, references followed, `null` left out.
    fn choices(&self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        match schema["oneOf"].as_array() {
            Some(parts) => parts.iter().flat_map(|part| self.choices(part)).collect(),
            None if schema["type"] == "null" => Vec::new(),
            None => vec![schema],
        }
    }

    /// The object that a key holds, or a list of, with the name of its schema.
    fn object_of(&self, field: &'a Value) -> Option<(&'a str, &'a Value)> {
        let field = list_item(field).unwrap_or(field);
        let mut named = vec![("", field)];
        while let Some((name, schema)) = named.pop() {
            let name = reference(schema).unwrap_or(name);
            let schema = self.resolve(schema);
            if schema["properties"].is_object() {
                return Some((name, schema));
            }
            named.extend(schema["oneOf"].as_array().into_iter().flatten().map(|part| (name, part)));
        }
        None
    }

    /// Where a schema is described: where a key first leads to it.
    fn name_heading(&mut self, name: &'a str, otherwise: &str) -> &str {
        self.headings.entry(name).or_insert_with(|| otherwise.to_owned())
    }

    fn resolve(&self, schema: &'a Value) -> &'a Value {
        reference(schema).map_or(schema, |name| &self.schemas[name])
    }
}

/// What the section of a key is called.
fn heading(path: &str, field: &Value) -> String {
    if list_item(field).is_some() { format!("{path}[]") } else { path.to_owned() }
}

/// Where a heading is on the page, as those who show Markdown have it.
fn anchor(heading: &str) -> String {
    heading.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(SCHEMAS)
}

fn list_item(field: &Value) -> Option<&Value> {
    (kind_of(field) == "array").then(|| &field["items"])
}

/// The first type that is not null.
fn kind_of(schema: &Value) -> &str {
    let listed = schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    schema["type"].as_str().or_else(|| listed.into_iter().find(|kind| *kind != "null")).unwrap_or_default()
}

/// The required keys first.
fn keys(object: &Value) -> Vec<(&str, &Value, bool)> {
    let required = |key: &str| object["required"].as_array().is_some_and(|keys| keys.iter().any(|one| one == key));
    let all = object["properties"].as_object().into_iter().flatten();
    let mut keys: Vec<_> = all.map(|(key, field)| (key.as_str(), field, required(key))).collect();
    keys.sort_by_key(|(_, _, required)| !required);
    keys
}

/// What a doc comment says.
struct Description<'a> {
    meaning: &'a str,
    default: &'a str,
}

/// The field's own words; where it may be null, they stand beside the reference.
fn description(field: &Value) -> Description<'_> {
    let parts = std::iter::once(field).chain(field["oneOf"].as_array().into_iter().flatten());
    let text = parts.filter_map(|part| part["description"].as_str()).next().unwrap_or_default();
    // A line may end between the two words.
    match text.split_once("Default:") {
        Some((meaning, default)) => Description { meaning: meaning.trim(), default: default.trim() },
        None => Description { meaning: text.trim(), default: "" },
    }
}

#[cfg(test)]
mod tests {
    use relais_protocol::HumanDuration;

    use super::*;

    #[test]
    fn every_key_has_a_meaning_and_a_default() {
        let page = declarations();
        let rows: Vec<Vec<&str>> =
            page.lines().filter(|line| line.starts_with("| `")).map(|line| line.split(" | ").collect()).collect();
        assert!(rows.len() > 50, "{page}");
        for row in rows {
            assert!(row.len() == 4 && row.iter().all(|cell| !cell.trim_matches(['|', ' ']).is_empty()), "{row:?}");
            assert!(row[1] != "any" && row[2] != "–", "{row:?}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_code() {
        let page = declarations();
        let default = |key: &str| {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |"))).unwrap();
            row.split(" | ").nth(2).unwrap().trim_matches('`').to_owned()
        };
        let duration = |key: &str| default(key).parse::<HumanDuration>().unwrap().0;
        assert_eq!(duration("lease"), relais_core::DEFAULT_LEASE);
        assert_eq!(duration("priorityStep"), relais_core::DEFAULT_PRIORITY_STEP);
        assert_eq!(default("deliveryLimit"), relais_core::DEFAULT_DELIVERY_LIMIT.to_string());
        let rule = relais_core::RetryPolicy::none();
        assert_eq!(duration("base"), rule.base);
        assert_eq!((default("factor"), default("jitter")), (rule.factor.to_string(), rule.jitter.to_string()));
    }

    #[test]
    fn every_link_leads_to_a_section() {
        let page = declarations();
        let sections: Vec<String> = page.lines().filter(|line| line.starts_with("##")).map(anchor).collect();
        for link in page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(sections.iter().any(|section| section == link), "{link}");
        }
        assert!(
            ["services", "clientsdestinations", "servicesretry"].iter().all(|one| sections.iter().any(|s| s == one))
        );
    }

    #[test]
    fn every_section_of_a_declaration_is_there() {
        let document = document_value();
        let declared = document["components"]["schemas"]["Declaration"]["properties"].as_object().unwrap();
        assert!(
            declared.len() == SECTIONS.len() && SECTIONS.iter().all(|key| declared.contains_key(*key)),
            "{declared:?}"
        );
    }
}
