//! A connector with the outbox event router becomes an outbox.

use super::{
    Draft,
    capture::{take_tables, transforms},
    settings::Settings,
    yaml,
};

/// Columns that templates know.
const FIELDS: [&str; 7] =
    ["id", "aggregate_id", "event_type", "aggregate_type", "destination", "schema_version", "correlation_id"];

/// Writes an outbox for each table.
pub fn write(draft: &mut Draft, settings: &mut Settings, alias: &str) {
    let prefix = format!("transforms.{alias}.");
    settings.take(&format!("{prefix}type"));
    let columns = Columns::take(draft, settings, &prefix);
    let destination = destination(draft, settings, &prefix, &columns);
    let headers = headers(draft, settings, &prefix, &columns);
    payload(draft, settings, &prefix);

    let mut tables = take_tables(draft, settings);
    if tables.is_empty() {
        tables.push("public.outbox".to_owned());
    }
    let several = tables.len() > 1;
    let name = yaml::name(draft.connector.as_deref().unwrap_or(&draft.name));
    let (body, mut entry) = (std::mem::take(&mut draft.body), String::new());
    for (index, table) in tables.iter().enumerate() {
        let name = if several { yaml::name(&format!("{name}-{table}")) } else { name.clone() };
        entry.push_str(&format!("  - outboxName: {}\n", yaml::scalar(&name)));
        // The connection is the same for all; only the first time the settings are there.
        if index == 0 {
            draft.database(settings);
        }
        let database = draft.body.clone();
        entry.push_str(&database);
        entry.push_str(&format!("    table: {}\n    mode: capture\n", yaml::scalar(table)));
        entry.push_str("    key: \"{aggregate_id}\"\n");
        entry.push_str(&format!("    destination: {}\n", yaml::quoted(&destination)));
        if !headers.is_empty() {
            entry.push_str(&format!("    headers: {}\n", yaml::map(&headers)));
        }
        if index + 1 < tables.len() {
            entry.push_str("    sink: {kafka: {brokers: \"localhost:9092\"}}\n");
        }
    }
    draft.body = format!("{body}outboxes:\n{entry}");
    for name in ["slot.name", "publication.name"] {
        settings.take(name);
    }
    draft.remark(
        "slot.name",
        "is not taken over: an outbox makes a slot of its own, and polls what was written before. Drop Debezium's slot once it \
         is stopped for good",
    );
    draft.sink(settings);
    for name in ["snapshot.mode", "tombstones.on.delete", "skipped.operations"] {
        if settings.take(name).is_some() {
            draft
                .remark(name, "is not needed: an outbox publishes inserts, and rows that are there already by polling");
        }
    }
    for name in ["decimal.handling.mode", "time.precision.mode", "binary.handling.mode", "interval.handling.mode"] {
        if settings.take(name).is_some() {
            draft.remark(name, "is not needed: the payload is published as it is");
        }
    }
    transforms_but(draft, settings, alias, &prefix);
}

/// What the router's columns are called, and what they have to be called.
struct Columns {
    /// In the file, and here.
    names: Vec<(String, &'static str)>,
}

impl Columns {
    fn take(draft: &mut Draft, settings: &mut Settings, prefix: &str) -> Self {
        let mut names = Vec::new();
        let mut given = |setting: &str, default: Option<&str>, ours: &'static str| {
            let setting = format!("{prefix}{setting}");
            let column = settings.take(&setting).or_else(|| default.map(str::to_owned));
            if let Some(column) = column {
                if column != ours {
                    draft.remark(
                        setting,
                        format!(
                            "is the column `{column}`, which is called `{ours}` in Relais: rename it (ALTER TABLE … RENAME COLUMN \
                             {column} TO {ours}), with a view of the old names for whoever writes to it, or write to a new table"
                        ),
                    );
                }
                names.push((column, ours));
            }
        };
        given("table.field.event.id", Some("id"), "id");
        given("table.field.event.key", Some("aggregateid"), "aggregate_id");
        given("table.field.event.type", Some("type"), "event_type");
        given("table.field.event.payload", Some("payload"), "payload");
        given("table.field.event.timestamp", None, "created_at");
        given("table.field.event.schema.version", None, "schema_version");
        draft.remark(
            "table.include.list",
            "is a table that also needs the columns `created_at`, `published_at` and `retry_count` (docs/guides/outbox.md). Set \
             `published_at` in rows that Debezium has published, or they are published again",
        );
        Self { names }
    }

    /// A column as a field of a template, if there is one.
    fn field(&self, column: &str) -> Option<String> {
        let ours = self.names.iter().find(|(theirs, _)| theirs == column).map(|(_, ours)| *ours);
        let known = |name: &str| FIELDS.iter().find(|field| **field == name).copied();
        let aggregate_type = (column == "aggregatetype").then_some("aggregate_type");
        ours.and_then(known).or_else(|| known(column)).or(aggregate_type).map(|field| format!("{{{field}}}"))
    }
}

fn destination(draft: &mut Draft, settings: &mut Settings, prefix: &str, columns: &Columns) -> String {
    let column = settings.take(&format!("{prefix}route.by.field")).unwrap_or_else(|| "aggregatetype".to_owned());
    let setting = format!("{prefix}route.by.field");
    let field = columns.field(&column).unwrap_or_else(|| {
        draft.remark(
            setting.clone(),
            format!(
                "is the column `{column}`, which templates do not know: write the `destination` with one that they do"
            ),
        );
        "{event_type}".to_owned()
    });
    if column == "aggregatetype" {
        draft.remark(
            setting,
            "is the column `aggregatetype`, which is called `aggregate_type` in Relais, and is optional: rename it",
        );
    }
    let regex = settings.take(&format!("{prefix}route.topic.regex"));
    if regex.is_some_and(|regex| regex != "(?<routedByValue>.*)") {
        draft.remark(
            format!("{prefix}route.topic.regex"),
            "is not carried over: templates have no expressions. Write the topic to the column `destination` instead",
        );
    }
    let replacement = settings
        .take(&format!("{prefix}route.topic.replacement"))
        .unwrap_or_else(|| "outbox.event.${routedByValue}".to_owned());
    // Braces of their own would be read as fields.
    let literal = |text: &str| text.replace('{', "{{").replace('}', "}}");
    replacement.split("${routedByValue}").map(literal).collect::<Vec<_>>().join(&field)
}

/// `column:place[:name]`, separated by commas.
fn headers(draft: &mut Draft, settings: &mut Settings, prefix: &str, columns: &Columns) -> Vec<(String, String)> {
    let setting = format!("{prefix}table.fields.additional.placement");
    let mut headers = Vec::new();
    for placement in settings.take_list(&setting) {
        let mut parts = placement.splitn(3, ':').map(str::trim);
        let (column, place) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let name = parts.next().unwrap_or(column);
        match (place, columns.field(column)) {
            ("header", Some(field)) => headers.push((name.to_owned(), yaml::quoted(&field))),
            ("header", None) => draft.remark(
                setting.clone(),
                format!("has the column `{column}`, which templates do not know: write it to the column `headers` (JSON) as `{name}`"),
            ),
            ("envelope", _) => draft.remark(
                setting.clone(),
                format!("puts `{column}` around the payload: put it into the payload, or use a header"),
            ),
            ("partition", _) => draft.remark(
                setting.clone(),
                format!("takes the partition from `{column}`: in Relais the key decides, so write the `key`"),
            ),
            _ => draft.remark(setting.clone(), format!("has `{placement}`, which is unknown")),
        }
    }
    settings.take(&format!("{prefix}table.field.additional.missing"));
    headers
}

fn payload(draft: &mut Draft, settings: &mut Settings, prefix: &str) {
    let expands = settings.take_flag(&format!("{prefix}table.expand.json.payload")).unwrap_or(false);
    settings.take(&format!("{prefix}table.json.payload.null.behavior"));
    let converter = settings.take("value.converter").or_else(|| settings.take("format.value")).unwrap_or_default();
    for name in settings.names_with("value.converter.") {
        settings.take(&name);
    }
    let json = converter.to_ascii_lowercase().contains("json");
    if expands {
        draft.remark(
            format!("{prefix}table.expand.json.payload"),
            "is not needed: the payload is published as the JSON that it is, without a schema",
        );
    } else if json {
        draft.remark(
            "value.converter",
            "made a JSON string of the payload (\"{\\\"order\\\": 1}\"): Relais publishes the JSON itself; change the consumers",
        );
    } else if !converter.is_empty()
        && !converter.ends_with("StringConverter")
        && !converter.ends_with("BinaryDataConverter")
    {
        draft.remark("value.converter", "is not carried over: the payload is published as it is");
    }
    if settings.take_flag(&format!("{prefix}route.tombstone.on.empty.payload")) == Some(true) {
        draft.remark(
            format!("{prefix}route.tombstone.on.empty.payload"),
            "is not carried over: a payload is never null",
        );
    }
    if settings.take(&format!("{prefix}table.op.invalid.behavior")).is_some() {
        draft
            .remark(format!("{prefix}table.op.invalid.behavior"), "is not needed: only inserts are in the publication");
    }
}

/// The router's own settings that are left, then the other transforms.
fn transforms_but(draft: &mut Draft, settings: &mut Settings, alias: &str, prefix: &str) {
    for name in settings.names_with(prefix) {
        settings.take(&name);
        draft.remark(name, "is not carried over: every row of the table is an event");
    }
    let others: Vec<String> = settings.transforms().into_iter().filter(|other| other != alias).collect();
    settings.replace("transforms", &others.join(","));
    transforms(draft, settings);
}
