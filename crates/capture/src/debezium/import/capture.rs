//! A connector without an outbox becomes a capture.

use super::{Draft, known::without_secret, settings::Settings, yaml};

/// Writes a capture.
pub fn write(draft: &mut Draft, settings: &mut Settings) {
    draft.body.push_str(&format!("captures:\n  - captureName: {}\n", yaml::scalar(&draft.name)));
    draft.database(settings);
    tables(draft, settings);
    columns(draft, settings);
    masks(draft, settings);
    keys(draft, settings);
    snapshot(draft, settings);
    publication(draft, settings);
    draft.slot(settings);
    envelope(draft, settings);
    operations(draft, settings);
    transforms(draft, settings);
    draft.line("destination", "\"{capture}.{schema}.{table}\"");
    draft.sink(settings);
}

/// Debezium's lists are of regular expressions. Those that are just names become names.
pub fn plain_names(expressions: Vec<String>) -> (Vec<String>, Vec<String>) {
    let is_name = |character: char| character.is_alphanumeric() || "_.$".contains(character);
    let (names, patterns): (Vec<String>, Vec<String>) = expressions
        .into_iter()
        .map(|expression| expression.replace("\\.", ".").replace("[.]", "."))
        .partition(|expression| expression.chars().all(is_name));
    (names, patterns)
}

/// The tables that a file names.
pub fn take_tables(draft: &mut Draft, settings: &mut Settings) -> Vec<String> {
    let mut given = settings.take_list("table.include.list");
    given.extend(settings.take_list("table.whitelist"));
    let schemas = settings.take_list("schema.include.list");
    let all = given.is_empty();
    let (tables, patterns) = plain_names(given);
    for pattern in patterns {
        draft.remark("table.include.list", format!("has the pattern `{pattern}`: name each of its tables in `tables`"));
    }
    if all && schemas.is_empty() {
        draft.remark("table.include.list", "is not in the file, which means all tables: name them in `tables`");
    } else if all {
        draft.remark("schema.include.list", format!("has `{}`: name their tables in `tables`", schemas.join(", ")));
    }
    tables
}

fn tables(draft: &mut Draft, settings: &mut Settings) {
    let tables = take_tables(draft, settings);
    draft.line("tables", &yaml::list(&tables));
}

fn columns(draft: &mut Draft, settings: &mut Settings) {
    let mut given = settings.take_list("column.exclude.list");
    given.extend(settings.take_list("column.blacklist"));
    let (columns, patterns) = plain_names(given);
    if !columns.is_empty() {
        draft.line("excludeColumns", &yaml::list(&columns));
    }
    for pattern in patterns {
        draft.remark(
            "column.exclude.list",
            format!("has the pattern `{pattern}`: name each of its columns in `excludeColumns`, or they are published"),
        );
    }
    let included = settings.take_list("column.include.list");
    if !included.is_empty() {
        draft.remark(
            "column.include.list",
            format!(
                "keeps only `{}`: name the others of these tables in `excludeColumns`, or they are published",
                included.join(", ")
            ),
        );
    }
}

fn masks(draft: &mut Draft, settings: &mut Settings) {
    let mut masked = Vec::new();
    for setting in settings.names_with("column.mask.") {
        let (columns, patterns) = plain_names(settings.take_list(&setting));
        let shown = without_secret(&setting);
        let value = match (setting.strip_prefix("column.mask.with."), setting.strip_prefix("column.mask.hash.")) {
            (Some(rest), _) => {
                let length = rest.trim_end_matches(".chars").parse().unwrap_or(4_usize).min(200);
                yaml::quoted(&"*".repeat(length))
            }
            (_, Some(rest)) => {
                if !rest.contains("SHA-256.") {
                    draft.remark(shown.clone(), "has another algorithm than SHA-256, which Relais uses: hashes change");
                } else if !rest.starts_with("v2.") {
                    draft.remark(
                        shown.clone(),
                        "is version 1 of Debezium's hashes; ours are like version 2: hashes change",
                    );
                }
                draft.remark(
                    shown.clone(),
                    "has its salt in its name: put it into the variable MASK_SALT. Hashes have 64 digits; Debezium cuts them \
                     to the column's length",
                );
                "{hash: {env: MASK_SALT}}".to_owned()
            }
            _ => {
                draft.remark(shown, "is no mask that this import knows: the column is published as it is");
                continue;
            }
        };
        masked.extend(columns.into_iter().map(|column| (column, value.clone())));
        for pattern in patterns {
            draft.remark(
                shown.clone(),
                format!(
                    "has the pattern `{pattern}`: name each of its columns in `maskColumns`, or they are published"
                ),
            );
        }
    }
    if !masked.is_empty() {
        draft.line("maskColumns", &yaml::map(&masked));
    }
}

/// `inventory.customers:pk1,pk2;inventory.orders:pk3`
fn keys(draft: &mut Draft, settings: &mut Settings) {
    let Some(given) = settings.take("message.key.columns") else { return };
    let mut keys = Vec::new();
    for part in given.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (table, columns) = part.rsplit_once(':').unwrap_or((part, ""));
        let columns: Vec<String> = columns.split(',').map(|column| column.trim().to_owned()).collect();
        match plain_names(vec![table.to_owned()]) {
            (names, _) if !names.is_empty() => keys.push((names[0].clone(), yaml::list(&columns))),
            _ => draft.remark(
                "message.key.columns",
                format!("has the pattern `{table}`: name each of its tables in `keyColumns`"),
            ),
        }
    }
    if !keys.is_empty() {
        draft.line("keyColumns", &yaml::map(&keys));
    }
}

/// Debezium makes a publication of all tables unless it is told otherwise.
fn publication(draft: &mut Draft, settings: &mut Settings) {
    let mode = settings.take("publication.autocreate.mode").unwrap_or_else(|| "all_tables".to_owned());
    if draft.pgoutput && mode == "all_tables" {
        draft.remark(
            "publication.autocreate.mode",
            "was `all_tables`: the server sends the changes of every table, and Relais drops what is not declared. It must stay \
             while the slot has changes from before; afterwards use a publication of just the declared tables",
        );
    }
}

fn snapshot(draft: &mut Draft, settings: &mut Settings) {
    let mode = settings.take("snapshot.mode").unwrap_or_else(|| "initial".to_owned());
    let (ours, remark) = match mode.as_str() {
        "initial" => ("initial", None),
        "never" | "no_data" | "schema_only" => ("never", None),
        "always" => ("initial", Some("was `always`: a snapshot is taken once, not at each start")),
        "initial_only" => {
            ("initial", Some("was `initial_only`: Relais goes on with the stream. Remove the capture afterwards"))
        }
        "when_needed" => ("initial", Some("was `when_needed`: after a lost slot all tables are read anew")),
        "exported" => ("initial", None),
        _ => ("initial", Some("was a mode that Relais does not have")),
    };
    draft.line("snapshot", ours);
    if let Some(remark) = remark {
        draft.remark("snapshot.mode", remark);
    }
    if ours == "initial" && draft.pgoutput {
        draft.remark(
            "snapshot.mode",
            "must be `never` where the slot is taken over, or every row is published once more",
        );
    }
}

fn envelope(draft: &mut Draft, settings: &mut Settings) {
    let mut entries = vec![("schemas".to_owned(), schemas(draft, settings).to_string())];
    let tombstones = settings.take_flag("tombstones.on.delete").unwrap_or(true);
    entries.push(("tombstones".to_owned(), tombstones.to_string()));
    for (setting, key, default, allowed) in [
        ("decimal.handling.mode", "decimal", "precise", &["precise", "string", "double"] as &[&str]),
        (
            "time.precision.mode",
            "time",
            "adaptive",
            &["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"],
        ),
        ("binary.handling.mode", "binary", "bytes", &["bytes", "base64", "base64-url-safe", "hex"]),
        ("interval.handling.mode", "interval", "numeric", &["numeric", "string"]),
    ] {
        let given = settings.take(setting).unwrap_or_else(|| default.to_owned()).to_ascii_lowercase();
        if allowed.contains(&given.as_str()) {
            entries.push((key.to_owned(), yaml::scalar(&given)));
        } else {
            draft.remark(setting, format!("was `{given}`, which Relais does not have: it is `{default}`"));
            entries.push((key.to_owned(), default.to_owned()));
        }
    }
    let placeholder = settings.take("toasted.value.placeholder");
    let placeholder = settings.take("unavailable.value.placeholder").or(placeholder);
    if let Some(placeholder) = placeholder {
        entries.push(("unavailableValue".to_owned(), yaml::scalar(&placeholder)));
    }
    draft.line("envelope", &yaml::map(&entries));
}

/// Connect's JSON converter has schemas unless it is told not to.
fn schemas(draft: &mut Draft, settings: &mut Settings) -> bool {
    // Connect's name, the engine's, Debezium Server's.
    let flag = |part: &str| {
        let names = [format!("{part}.converter"), "converter".into(), format!("format.{part}"), "format".into()];
        names.iter().find_map(|name| Some(settings.peek(&format!("{name}.schemas.enable"))? == "true"))
    };
    let (key, value) = (flag("key"), flag("value"));
    for name in settings.names().iter().filter(|name| name.ends_with(".schemas.enable")) {
        settings.take(name);
    }
    let converter = settings.take("value.converter").or_else(|| settings.take("format.value"));
    match converter.as_deref() {
        None if value.is_none() => {
            draft
                .remark("value.converter", "is not in the file: see whether Connect's worker writes JSON with schemas");
            return false;
        }
        Some(class) if !class.to_ascii_lowercase().contains("json") => {
            draft.remark("value.converter", format!("was `{class}`: values are JSON"));
            for name in settings.names_with("value.converter.") {
                let what = "is not carried over: values are JSON";
                settings.take(&name);
                draft.remark(name, what);
            }
            return false;
        }
        _ => {}
    }
    let value = value.unwrap_or(true);
    if key.is_some_and(|key| key != value) {
        draft.remark("key.converter.schemas.enable", "differs from that of values: in Relais both are the same");
    }
    value
}

fn operations(draft: &mut Draft, settings: &mut Settings) {
    match settings.take("skipped.operations").as_deref() {
        Some("none") => {}
        None | Some("t") => draft.remark(
            "skipped.operations",
            "skips truncates in Debezium unless it is `none`: Relais publishes them as `t`, and consumers must know that",
        ),
        Some(_) => draft.remark("skipped.operations", "is not carried over: all operations are published"),
    }
}

/// Says what a transform did, so that somebody can do it elsewhere.
pub fn transforms(draft: &mut Draft, settings: &mut Settings) {
    for alias in settings.transforms() {
        let class = settings.take(&format!("transforms.{alias}.type")).unwrap_or_default();
        for name in settings.names_with(&format!("transforms.{alias}.")) {
            settings.take(&name);
        }
        let simple = class.rsplit('.').next().unwrap_or_default().trim_end_matches("$Value").trim_end_matches("$Key");
        let what = match simple {
            "ExtractNewRecordState" => "flattened records: Relais publishes the whole envelope; read `after`",
            "ByLogicalTableRouter" | "RegexRouter" | "TimestampRouter" => "changed topics: write the `destination`",
            "Filter" | "ContentBasedRouter" => "filtered or routed by an expression: do it in the consumer",
            "ReplaceField" | "MaskField" => "changed fields: use `excludeColumns` or `maskColumns`",
            _ => "is not carried over: Relais has no transforms",
        };
        draft.remark(format!("transforms.{alias}"), format!("({simple}) {what}"));
    }
    settings.take("transforms");
}
