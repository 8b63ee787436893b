//! The schema part of keys and values, as Connect's JSON converter writes it.
//!
//! Defaults of columns are not in it: the log does not have them, and those in the catalog may be of another time.

use super::{
    field::{Field, Unit},
    options::BinaryMode,
    text::write_string,
};

/// What is known of a field besides its type.
pub struct Named<'a> {
    pub name: &'a str,
    pub field: &'a Field,
    pub optional: bool,
    /// Whether its values are masked. Debezium says so in the schema.
    pub masked: bool,
}

const SOURCE: &str = concat!(
    r#"{"type":"struct","fields":[{"type":"string","optional":false,"field":"version"},"#,
    r#"{"type":"string","optional":false,"field":"connector"},{"type":"string","optional":false,"field":"name"},"#,
    r#"{"type":"int64","optional":false,"field":"ts_ms"},"#,
    r#"{"type":"string","optional":true,"name":"io.debezium.data.Enum","version":1,"parameters":{"allowed":"#,
    r#""true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},"default":"false","#,
    r#""field":"snapshot"},{"type":"string","optional":false,"field":"db"},"#,
    r#"{"type":"string","optional":true,"field":"sequence"},{"type":"int64","optional":true,"field":"ts_us"},"#,
    r#"{"type":"int64","optional":true,"field":"ts_ns"},{"type":"string","optional":false,"field":"schema"},"#,
    r#"{"type":"string","optional":false,"field":"table"},{"type":"int64","optional":true,"field":"txId"},"#,
    r#"{"type":"int64","optional":true,"field":"lsn"},{"type":"int64","optional":true,"field":"xmin"},"#,
    r#"{"type":"string","optional":true,"field":"origin"},{"type":"int64","optional":true,"field":"origin_lsn"}],"#,
    r#""optional":false,"name":"io.debezium.connector.postgresql.Source","version":1,"field":"source"}"#,
);

const REST: &str = concat!(
    r#"{"type":"struct","fields":[{"type":"string","optional":false,"field":"id"},"#,
    r#"{"type":"int64","optional":false,"field":"total_order"},"#,
    r#"{"type":"int64","optional":false,"field":"data_collection_order"}],"#,
    r#""optional":true,"name":"event.block","version":1,"field":"transaction"},"#,
    r#"{"type":"string","optional":false,"field":"op"},{"type":"int64","optional":true,"field":"ts_ms"},"#,
    r#"{"type":"int64","optional":true,"field":"ts_us"},{"type":"int64","optional":true,"field":"ts_ns"}]"#,
);

/// The schema of a table's keys.
pub fn key<'a>(topic: &str, columns: impl Iterator<Item = Named<'a>>) -> Vec<u8> {
    let mut out = Vec::new();
    write_struct(&mut out, columns);
    out.extend_from_slice(b",\"optional\":false,\"name\":");
    write_string(&mut out, format!("{topic}.Key").as_bytes());
    out.push(b'}');
    out
}

/// The schema of a table's values.
pub fn value<'a>(topic: &str, columns: impl Iterator<Item = Named<'a>> + Clone) -> Vec<u8> {
    let mut out = b"{\"type\":\"struct\",\"fields\":[".to_vec();
    for image in ["before", "after"] {
        write_struct(&mut out, columns.clone());
        out.extend_from_slice(b",\"optional\":true,\"name\":");
        write_string(&mut out, format!("{topic}.Value").as_bytes());
        out.extend_from_slice(format!(",\"field\":\"{image}\"}},").as_bytes());
    }
    out.extend_from_slice(SOURCE.as_bytes());
    out.push(b',');
    out.extend_from_slice(REST.as_bytes());
    out.extend_from_slice(b",\"optional\":false,\"name\":");
    write_string(&mut out, format!("{topic}.Envelope").as_bytes());
    out.extend_from_slice(b",\"version\":2}");
    out
}

/// Writes a struct and leaves it open.
fn write_struct<'a>(out: &mut Vec<u8>, columns: impl Iterator<Item = Named<'a>>) {
    out.extend_from_slice(b"{\"type\":\"struct\",\"fields\":[");
    for (index, column) in columns.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_field(out, column.field, column.optional);
        if column.masked {
            out.extend_from_slice(b",\"parameters\":{\"masked\":\"true\"}");
        }
        out.extend_from_slice(b",\"field\":");
        write_string(out, column.name.as_bytes());
        out.push(b'}');
    }
    out.push(b']');
}

/// Writes a field's schema and leaves it open.
fn write_field(out: &mut Vec<u8>, field: &Field, optional: bool) {
    match field {
        Field::Array(element) => {
            out.extend_from_slice(b"{\"type\":\"array\",\"items\":");
            // In Debezium these two cannot be null in an array.
            let required = matches!(**element, Field::Enum(_) | Field::Text(Some("io.debezium.data.Tsvector")));
            write_field(out, element, !required);
            out.push(b'}');
        }
        Field::Vector(name) => {
            let element = if name.ends_with("FloatVector") { "float" } else { "double" };
            let items = format!(r#"{{"type":"array","items":{{"type":"{element}","optional":false}}"#);
            out.extend_from_slice(items.as_bytes());
        }
        Field::VariableDecimal => out.extend_from_slice(
            concat!(
                r#"{"type":"struct","fields":[{"type":"int32","optional":false,"field":"scale"},"#,
                r#"{"type":"bytes","optional":false,"field":"value"}]"#,
            )
            .as_bytes(),
        ),
        Field::Point => out.extend_from_slice(
            concat!(
                r#"{"type":"struct","fields":[{"type":"double","optional":false,"field":"x"},"#,
                r#"{"type":"double","optional":false,"field":"y"},{"type":"bytes","optional":true,"field":"wkb"},"#,
                r#"{"type":"int32","optional":true,"field":"srid"}]"#,
            )
            .as_bytes(),
        ),
        Field::Geometry(_) => out.extend_from_slice(
            concat!(
                r#"{"type":"struct","fields":[{"type":"bytes","optional":false,"field":"wkb"},"#,
                r#"{"type":"int32","optional":true,"field":"srid"}]"#,
            )
            .as_bytes(),
        ),
        other => out.extend_from_slice(format!("{{\"type\":\"{}\"", primitive(other)).as_bytes()),
    }
    out.extend_from_slice(format!(",\"optional\":{optional}").as_bytes());
    if let Some(name) = name(field) {
        out.extend_from_slice(format!(",\"name\":\"{name}\",\"version\":1").as_bytes());
    }
    write_details(out, field);
}

fn primitive(field: &Field) -> &'static str {
    match field {
        Field::Boolean | Field::Bit => "boolean",
        Field::Int16 => "int16",
        Field::Int32 | Field::Date(_) => "int32",
        Field::Time(unit) if !unit.is_wide() => "int32",
        Field::Int64 | Field::Time(_) | Field::Timestamp(_) | Field::Interval => "int64",
        Field::Float => "float",
        Field::Double | Field::DecimalDouble => "double",
        Field::Decimal { .. } | Field::Bits { .. } | Field::Bytes(BinaryMode::Bytes) => "bytes",
        Field::Money(inner) => primitive(inner),
        _ => "string",
    }
}

/// What a type means beyond its form.
fn name(field: &Field) -> Option<&'static str> {
    Some(match field {
        Field::Text(name) => return *name,
        Field::Money(inner) => return name(inner),
        Field::Date(name) | Field::Geometry(name) | Field::Vector(name) => name,
        Field::Enum(_) => "io.debezium.data.Enum",
        Field::Hstore => "io.debezium.data.Json",
        Field::Decimal { .. } => "org.apache.kafka.connect.data.Decimal",
        Field::VariableDecimal => "io.debezium.data.VariableScaleDecimal",
        Field::IsoDate => "io.debezium.time.IsoDate",
        Field::Time(Unit::Milliseconds) => "io.debezium.time.Time",
        Field::Time(Unit::Connect) => "org.apache.kafka.connect.data.Time",
        Field::Time(Unit::Microseconds) => "io.debezium.time.MicroTime",
        Field::Time(Unit::Nanoseconds) => "io.debezium.time.NanoTime",
        Field::IsoTime => "io.debezium.time.IsoTime",
        Field::Timestamp(Unit::Milliseconds) => "io.debezium.time.Timestamp",
        Field::Timestamp(Unit::Connect) => "org.apache.kafka.connect.data.Timestamp",
        Field::Timestamp(Unit::Microseconds) => "io.debezium.time.MicroTimestamp",
        Field::Timestamp(Unit::Nanoseconds) => "io.debezium.time.NanoTimestamp",
        Field::IsoTimestamp => "io.debezium.time.IsoTimestamp",
        Field::ZonedTime => "io.debezium.time.ZonedTime",
        Field::ZonedTimestamp(_) => "io.debezium.time.ZonedTimestamp",
        Field::Interval => "io.debezium.time.MicroDuration",
        Field::IsoInterval => "io.debezium.time.Interval",
        Field::Bits { .. } => "io.debezium.data.Bits",
        Field::Point => "io.debezium.data.geometry.Point",
        _ => return None,
    })
}

fn write_details(out: &mut Vec<u8>, field: &Field) {
    let parameters = |out: &mut Vec<u8>, text: String| out.extend_from_slice(text.as_bytes());
    match field {
        Field::Money(inner) => write_details(out, inner),
        Field::Decimal { precision: None, scale } => {
            parameters(out, format!(r#","parameters":{{"scale":"{scale}"}}"#));
        }
        Field::Decimal { precision: Some(precision), scale } => {
            parameters(out, format!(r#","parameters":{{"scale":"{scale}","connect.decimal.precision":"{precision}"}}"#))
        }
        Field::Bits { length } => parameters(out, format!(r#","parameters":{{"length":"{length}"}}"#)),
        Field::Enum(labels) => {
            out.extend_from_slice(b",\"parameters\":{\"allowed\":");
            write_string(out, labels.join(",").as_bytes());
            out.push(b'}');
        }
        Field::VariableDecimal => parameters(out, r#","doc":"Variable scaled decimal""#.to_owned()),
        Field::Point => parameters(out, r#","doc":"Geometry (POINT)""#.to_owned()),
        _ => {}
    }
}
