//! What is declared of a capture: judged without asking anybody, with the defaults filled in.

use std::collections::BTreeSet;

use relais_capture::{
    Address, CaptureOptions, ColumnRules, Mask, ROUTE_FIELDS, Slot,
    debezium::{BinaryMode, DecimalMode, EnvelopeOptions, IntervalMode, TimeMode, UNAVAILABLE_VALUE},
};
use relais_core::{RelayKind, RelayName, RelayRecord};
use relais_engine::Problem;
use relais_message::{Template, TemplateField};
use relais_protocol::{
    admin::SecretDeclaration,
    capture::{
        BinaryName, CaptureDeclaration, CaptureEnvelopeDeclaration, DecimalName, IntervalName, MaskDeclaration,
        SnapshotMode, TimeName,
    },
    outbox::SinkDeclaration,
};

use crate::{
    declaration::{database_url, from_record, judge_sink, keep_problem, to_record},
    secrets::{self, Secrets},
};

/// What is shown of a salt.
const HIDDEN: &str = "***";

/// Where records go unless the declaration says otherwise.
const DESTINATION: &str = "{capture}.{schema}.{table}";

/// How much WAL a database may keep for a capture unless the declaration says otherwise.
const MAX_RETAINED_WAL: u64 = 10 << 30;

/// A declared capture that can be run.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredCapture {
    pub(crate) name: RelayName,
    /// As it may be shown, with all defaults.
    pub(crate) shown: CaptureDeclaration,
    pub(crate) secrets: Secrets,
    pub(crate) options: CaptureOptions,
}

impl DeclaredCapture {
    /// Judges a declaration. `stored` has the secrets that it need not repeat. Problems are at places below it.
    pub(crate) fn new(declared: CaptureDeclaration, stored: Option<&Self>) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let name = keep_problem(RelayName::new(declared.capture_name.clone()), "captureName", &mut problems);
        let mut shown = declared;
        let mut secrets = match split(&mut shown) {
            Ok(secrets) => secrets,
            Err(wrong) => {
                problems.extend(wrong);
                return Err(problems);
            }
        };
        if let Some(stored) = stored {
            secrets::keep(&shown.sink, &mut secrets, (&stored.shown.sink, &stored.secrets));
            keep_salts(&mut secrets, &stored.secrets);
        }
        for (place, _) in secrets.iter().filter(|(place, salt)| place.ends_with("/hash") && *salt == HIDDEN) {
            problems.push(Problem::at(place, "must be the salt itself: none is stored that it could stand for"));
        }
        let is_postgres = ["postgres://", "postgresql://"].iter().any(|it| database_url(&secrets).starts_with(it));
        match Address::parse(database_url(&secrets)) {
            Ok(_) if is_postgres => {}
            Err(error) if is_postgres => problems.push(Problem::at("databaseUrl", error.to_string())),
            _ => {
                let message = "change capture needs PostgreSQL: postgres://user:password@host/database";
                problems.push(Problem::at("databaseUrl", message));
            }
        }
        judge_sink(&shown.sink, &mut problems);
        fill_in(&mut shown);
        let options = options(&shown, &secrets, &mut problems);
        match (name, options) {
            (Some(name), Some(options)) if problems.is_empty() => Ok(Self { name, shown, secrets, options }),
            _ => Err(problems),
        }
    }

    /// From what is stored.
    pub(crate) fn stored(record: &RelayRecord) -> Result<Self, Vec<Problem>> {
        let (mut shown, secrets): (CaptureDeclaration, Secrets) = from_record(record)?;
        secrets::join(&mut shown.database_url, &mut shown.sink, &secrets);
        for (place, salt) in salts(&mut shown) {
            if let Some(stored) = secrets.get(&place) {
                *salt = SecretDeclaration::Plain(stored.clone());
            }
        }
        Self::new(shown, None)
    }

    /// To be stored, without whether it is paused.
    pub(crate) fn record(&self) -> Result<RelayRecord, Vec<Problem>> {
        let shown = CaptureDeclaration { paused: None, ..self.shown.clone() };
        to_record(RelayKind::Capture, &self.name, &shown, &self.secrets)
    }

    pub(crate) fn database_url(&self) -> &str {
        database_url(&self.secrets)
    }

    /// The sink, with secrets, for whoever connects.
    pub(crate) fn sink(&self) -> SinkDeclaration {
        let (mut database_url, mut sink) = (self.shown.database_url.clone(), self.shown.sink.clone());
        secrets::join(&mut database_url, &mut sink, &self.secrets);
        sink
    }

    /// Whose messages a sink takes.
    pub(crate) fn source(&self) -> String {
        format!("capture/{}", self.name)
    }
}

/// The salts of a declaration, by the place of their key.
fn salts(declared: &mut CaptureDeclaration) -> Vec<(String, &mut SecretDeclaration)> {
    let masks = declared.mask_columns.iter_mut();
    let hashes = masks.filter_map(|(column, mask)| match mask {
        MaskDeclaration::Hash(mask) => Some((format!("maskColumns/{column}/hash"), &mut mask.hash)),
        MaskDeclaration::Text(_) => None,
    });
    hashes.collect()
}

fn split(declared: &mut CaptureDeclaration) -> Result<Secrets, Vec<Problem>> {
    let mut secrets = secrets::split(&mut declared.database_url, &mut declared.sink)?;
    let mut problems = Vec::new();
    for (place, salt) in salts(declared) {
        match secrets::plain(salt) {
            Ok(text) => drop(secrets.insert(place, text.to_owned())),
            Err(message) => problems.push(Problem::at(place, message)),
        }
        *salt = SecretDeclaration::Plain(HIDDEN.to_owned());
    }
    if problems.is_empty() { Ok(secrets) } else { Err(problems) }
}

/// A salt that is as it was shown stays as it is stored.
fn keep_salts(secrets: &mut Secrets, stored: &Secrets) {
    for (place, salt) in secrets.iter_mut().filter(|(place, salt)| place.ends_with("/hash") && *salt == HIDDEN) {
        if let Some(stored) = stored.get(place) {
            stored.clone_into(salt);
        }
    }
}

fn fill_in(declared: &mut CaptureDeclaration) {
    let text = |text: &str| Some(text.to_owned());
    declared.snapshot = declared.snapshot.or(Some(SnapshotMode::Initial));
    declared.destination = declared.destination.take().or_else(|| text(DESTINATION));
    declared.routing_key = declared.routing_key.take().or_else(|| text(DESTINATION));
    declared.max_retained_wal = declared.max_retained_wal.or(Some(MAX_RETAINED_WAL));
    let envelope = declared.envelope.take().unwrap_or_default();
    declared.envelope = Some(CaptureEnvelopeDeclaration {
        schemas: envelope.schemas.or(Some(false)),
        tombstones: envelope.tombstones.or(Some(true)),
        decimal: envelope.decimal.or(Some(DecimalName::Precise)),
        time: envelope.time.or(Some(TimeName::Adaptive)),
        binary: envelope.binary.or(Some(BinaryName::Bytes)),
        interval: envelope.interval.or(Some(IntervalName::Numeric)),
        unavailable_value: envelope.unavailable_value.or_else(|| text(UNAVAILABLE_VALUE)),
    });
    for table in &mut declared.tables {
        *table = whole_name(table);
    }
    // The same names as the library's.
    if let Ok(default) = CaptureOptions::new(&declared.capture_name, &[]) {
        let slot = declared.slot.take().unwrap_or(default.slot);
        declared.publication = declared.publication.take().or_else(|| Some(slot.clone()));
        declared.slot = Some(slot);
    }
}

/// `schema.name`
pub(super) fn whole_name(table: &str) -> String {
    if table.contains('.') { table.to_owned() } else { format!("public.{table}") }
}

fn options(shown: &CaptureDeclaration, secrets: &Secrets, problems: &mut Vec<Problem>) -> Option<CaptureOptions> {
    judge_tables(shown, problems);
    let tables: Vec<&str> = shown.tables.iter().map(String::as_str).collect();
    let options = keep_problem(CaptureOptions::new(&shown.capture_name, &tables), "captureName", problems)?;
    let slot = shown.slot.clone().unwrap_or_default();
    keep_problem(Slot::new(&slot), "slot", problems);
    let publication = shown.publication.clone().unwrap_or_default();
    if publication.is_empty() || publication.len() > 63 {
        problems.push(Problem::at("publication", "must have 1 to 63 characters"));
    }
    let max_retained_wal = shown.max_retained_wal.unwrap_or(MAX_RETAINED_WAL);
    if max_retained_wal < 1 << 20 {
        problems.push(Problem::at("maxRetainedWal", "must be at least 1048576"));
    }
    let destination = template(shown.destination.as_deref(), "destination", problems);
    let routing_key = template(shown.routing_key.as_deref(), "routingKey", problems);
    Some(CaptureOptions {
        slot,
        publication,
        columns: columns(shown, secrets),
        envelope: envelope(shown),
        destination,
        routing_key,
        initial_snapshot: shown.snapshot != Some(SnapshotMode::Never),
        max_retained_wal: Some(max_retained_wal),
        ..options
    })
}

/// Tables are named once; columns are those of tables that are captured.
fn judge_tables(shown: &CaptureDeclaration, problems: &mut Vec<Problem>) {
    if shown.tables.is_empty() {
        problems.push(Problem::at("tables", "must name at least one table"));
    }
    let mut tables = BTreeSet::new();
    for (i, table) in shown.tables.iter().enumerate() {
        let place = format!("tables/{i}");
        match table.split('.').collect::<Vec<_>>().as_slice() {
            [schema, name] if !schema.is_empty() && !name.is_empty() => {}
            _ => problems.push(Problem::at(&place, format!("`{table}` is not `name` or `schema.name`"))),
        }
        if !tables.insert(table.as_str()) {
            problems.push(Problem::at(place, format!("{table} is there twice")));
        }
    }
    let mut judge = |place: String, of: Option<&str>, what: &str| {
        if of.is_none_or(|table| !tables.contains(table)) {
            let message = format!("`{what}` must begin with one of the tables, as `schema.table`");
            problems.push(Problem::at(place, message));
        }
    };
    for (list, columns) in [("includeColumns", &shown.include_columns), ("excludeColumns", &shown.exclude_columns)] {
        for (i, column) in columns.iter().enumerate() {
            judge(format!("{list}/{i}"), column.rsplit_once('.').map(|(table, _)| table), column);
        }
    }
    for column in shown.mask_columns.keys() {
        judge(format!("maskColumns/{column}"), column.rsplit_once('.').map(|(table, _)| table), column);
    }
    for (table, columns) in &shown.key_columns {
        judge(format!("keyColumns/{table}"), Some(table).filter(|_| !columns.is_empty()).map(String::as_str), table);
    }
}

/// None: the default, which costs nothing.
fn template(text: Option<&str>, place: &str, problems: &mut Vec<Problem>) -> Option<Template> {
    let text = text.filter(|text| *text != DESTINATION)?;
    let parsed = Template::parse(text).and_then(|template| template.check(&ROUTE_FIELDS).map(|()| template));
    let template = keep_problem(parsed, place, problems)?;
    if template.fields().any(|field| !matches!(field, TemplateField::Named(_))) {
        problems.push(Problem::at(place, format!("has only the fields {}", ROUTE_FIELDS.join(", "))));
    }
    Some(template)
}

fn columns(shown: &CaptureDeclaration, secrets: &Secrets) -> ColumnRules {
    let mask = |(column, mask): (&String, &MaskDeclaration)| {
        let mask = match mask {
            MaskDeclaration::Text(text) => Mask::Text(text.clone()),
            MaskDeclaration::Hash(_) => {
                let salt = secrets.get(&format!("maskColumns/{column}/hash")).cloned().unwrap_or_default();
                Mask::Hash { salt }
            }
        };
        (column.clone(), mask)
    };
    ColumnRules {
        exclude: shown.exclude_columns.iter().cloned().collect(),
        include: shown.include_columns.iter().cloned().collect(),
        masks: shown.mask_columns.iter().map(mask).collect(),
    }
}

fn envelope(shown: &CaptureDeclaration) -> EnvelopeOptions {
    let declared = shown.envelope.clone().unwrap_or_default();
    let default = EnvelopeOptions::new(&shown.capture_name);
    EnvelopeOptions {
        schemas: declared.schemas.unwrap_or(default.schemas),
        tombstones: declared.tombstones.unwrap_or(default.tombstones),
        decimal: match declared.decimal.unwrap_or_default() {
            DecimalName::Precise => DecimalMode::Precise,
            DecimalName::String => DecimalMode::String,
            DecimalName::Double => DecimalMode::Double,
        },
        time: match declared.time.unwrap_or_default() {
            TimeName::Adaptive => TimeMode::Adaptive,
            TimeName::AdaptiveTimeMicroseconds => TimeMode::AdaptiveTimeMicroseconds,
            TimeName::Connect => TimeMode::Connect,
            TimeName::IsoString => TimeMode::IsoString,
            TimeName::Microseconds => TimeMode::Microseconds,
            TimeName::Nanoseconds => TimeMode::Nanoseconds,
        },
        binary: match declared.binary.unwrap_or_default() {
            BinaryName::Bytes => BinaryMode::Bytes,
            BinaryName::Base64 => BinaryMode::Base64,
            BinaryName::Base64UrlSafe => BinaryMode::Base64UrlSafe,
            BinaryName::Hex => BinaryMode::Hex,
        },
        interval: match declared.interval.unwrap_or_default() {
            IntervalName::Numeric => IntervalMode::Numeric,
            IntervalName::String => IntervalMode::String,
        },
        unavailable_value: declared.unavailable_value.unwrap_or(default.unavailable_value),
        key_columns: shown.key_columns.clone(),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(change: Value) -> Result<DeclaredCapture, Vec<Problem>> {
        let mut whole = json!({
            "captureName": "shop", "databaseUrl": "postgres://u:hidden@h/db", "tables": ["orders", "shop.items"],
            "sink": {"redis": {"url": "redis://h"}},
        });
        whole.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        DeclaredCapture::new(serde_json::from_value(whole).unwrap(), None)
    }

    #[test]
    fn defaults_are_filled_in_and_what_is_stored_comes_back() {
        let masks =
            json!({"maskColumns": {"public.orders.card": {"hash": "hidden salt"}, "public.orders.mail": "****"}});
        let capture = declared(masks).unwrap();
        assert_eq!(capture.shown.tables, ["public.orders", "shop.items"]);
        assert_eq!(capture.shown.slot.as_deref(), Some("relais_shop"));
        let salt = Mask::Hash { salt: "hidden salt".to_owned() };
        assert_eq!(capture.options.columns.masks["public.orders.card"], salt);
        let record = capture.record().unwrap();
        assert!(!record.declaration.get().contains("hidden") && record.secrets.expose().contains("hidden salt"));
        let again = DeclaredCapture::stored(&record).unwrap();
        assert_eq!(again.record().unwrap(), record, "declared again, it is unchanged");
        // As it was shown, it keeps its secrets.
        let shown = DeclaredCapture::new(capture.shown.clone(), Some(&again)).unwrap();
        assert_eq!(shown.record().unwrap(), record);
    }

    #[test]
    fn each_problem_names_its_key() {
        for (change, place, said) in [
            (json!({"captureName": "a b"}), "captureName", "the name of an outbox or capture must be"),
            (json!({"databaseUrl": "sqlite:x.db"}), "databaseUrl", "needs PostgreSQL"),
            (json!({"databaseUrl": "postgres://u@h/db?sslcrl=x"}), "databaseUrl", "does not know sslcrl"),
            (json!({"tables": []}), "tables", "at least one table"),
            (json!({"tables": ["a.b.c"]}), "tables/0", "is not `name` or `schema.name`"),
            (json!({"tables": ["a", "public.a"]}), "tables/1", "is there twice"),
            (json!({"excludeColumns": ["other.x"]}), "excludeColumns/0", "must begin with one of the tables"),
            (json!({"maskColumns": {"x": "*"}}), "maskColumns/x", "must begin with one of the tables"),
            (json!({"keyColumns": {"public.orders": []}}), "keyColumns/public.orders", "must begin with"),
            (json!({"slot": "A-b"}), "slot", "is no name of a slot"),
            (json!({"destination": "x.{tabel}"}), "destination", "there is no field `tabel`"),
            (json!({"destination": "x.{payload.id}"}), "destination", "has only the fields"),
            (json!({"sink": {}}), "sink", "one of rabbitmq, redis"),
            (
                json!({"maskColumns": {"public.orders.x": {"hash": "***"}}}),
                "maskColumns/public.orders.x/hash",
                "must be the salt itself",
            ),
            (json!({"maxRetainedWal": 1}), "maxRetainedWal", "at least 1048576"),
        ] {
            let problems = declared(change.clone()).map(|_| ()).unwrap_err();
            let found = problems.iter().any(|problem| problem.path == place && problem.message.contains(said));
            assert!(found, "{change}: {problems:?}");
        }
    }
}
