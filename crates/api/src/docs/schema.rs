//! Schemas: in words, as a table of fields, and as an example.
//!
//! Only examples follow references all the way; a circle ends there by leaving the field out. Elsewhere a reference is
//! a link to the schema's own place on the page.

use serde_json::{Map, Value};

use super::{
    document::{Document, list_of, members_of, text_of},
    text::{anchor, escape, inline, table},
};

/// How deep tables and examples go.
const MAX_DEPTH: usize = 10;

const SCHEMAS: &str = "#/components/schemas/";

/// Where a named schema is on the page.
pub(super) fn schema_anchor(name: &str) -> String {
    anchor(&format!("schema-{name}"))
}

/// The type in words, with links to named schemas.
pub(super) fn type_of(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.strip_prefix(SCHEMAS).unwrap_or(target);
        return format!("<a href=\"#{}\">{}</a>", schema_anchor(name), escape(name));
    }
    for (combined, word) in [("allOf", " and "), ("oneOf", " or "), ("anyOf", " or ")] {
        let parts: Vec<String> = list_of(schema, combined).iter().map(type_of).collect();
        if !parts.is_empty() {
            return parts.join(word);
        }
    }
    let names: Vec<String> = match &schema["type"] {
        Value::String(name) => vec![simple_type(name, schema)],
        Value::Array(names) => names.iter().filter_map(Value::as_str).map(|name| simple_type(name, schema)).collect(),
        _ if schema["properties"].is_object() => vec!["object".to_owned()],
        _ => vec!["any".to_owned()],
    };
    names.join(" or ")
}

fn simple_type(name: &str, schema: &Value) -> String {
    match (name, schema["format"].as_str()) {
        ("array", _) => format!("array of {}", type_of(&schema["items"])),
        ("object", _) if schema["additionalProperties"].is_object() => {
            format!("map of {}", type_of(&schema["additionalProperties"]))
        }
        ("string", Some(format)) => format!("string ({})", escape(format)),
        _ => escape(name),
    }
}

/// The description and what the schema demands beyond its type.
pub(super) fn notes_of(schema: &Value) -> String {
    let described = alternatives(schema).map(|one| text_of(one, "description")).find(|text| !text.is_empty());
    let mut notes = vec![inline(described.unwrap_or_default())];
    notes.extend(demands(schema).into_iter().map(|demand| format!("<span class=\"demand\">{demand}</span>")));
    notes.retain(|note| !note.is_empty());
    notes.join(" ")
}

/// The schema, then those it offers to choose from.
fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let offered = ["oneOf", "anyOf"].into_iter().flat_map(|key| list_of(schema, key));
    std::iter::once(schema).chain(offered)
}

fn demands(schema: &Value) -> Vec<String> {
    let code = |value: &Value| format!("<code>{}</code>", escape(&plain(value)));
    let mut demands = Vec::new();
    let choice: Vec<String> = list_of(schema, "enum").iter().map(code).collect();
    match choice.len() {
        0 => {}
        1 => demands.push(format!("Always {}.", choice.concat())),
        _ => demands.push(format!("One of {}.", choice.join(", "))),
    }
    if !schema["const"].is_null() {
        demands.push(format!("Always {}.", code(&schema["const"])));
    }
    for (least, most, unit) in
        [("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " elements")]
    {
        // A count is never negative; to say so of each would be noise.
        let least = schema.get(least).filter(|least| plain(least) != "0" || schema.get(most).is_some());
        match (least.map(plain), schema.get(most).map(plain)) {
            (Some(least), Some(most)) => demands.push(format!("{} to {}{unit}.", escape(&least), escape(&most))),
            (Some(least), None) => demands.push(format!("At least {}{unit}.", escape(&least))),
            (None, Some(most)) => demands.push(format!("At most {}{unit}.", escape(&most))),
            (None, None) => {}
        }
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        demands.push(format!("Matches <code>{}</code>.", escape(pattern)));
    }
    if !schema["default"].is_null() {
        demands.push(format!("{} if absent.", code(&schema["default"])));
    }
    demands
}

/// A value as people write it: texts without quotes.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What a value of this schema consists of: its fields, or the shapes it can have.
pub(super) fn shape(document: Document<'_>, schema: &Value) -> String {
    let schema = document.resolve(schema);
    let fields = fields_table(document, schema);
    let variants: String = alternatives(schema)
        .skip(1)
        .filter(|variant| variant["type"] != "null")
        .map(|variant| {
            let fields = fields_table(document, document.resolve(variant));
            format!("<li><p>{} <span>{}</span></p>\n{fields}</li>\n", type_of(variant), notes_of(variant))
        })
        .collect();
    match (variants.is_empty(), fields.is_empty()) {
        (false, _) => format!("{fields}<p>One of:</p>\n<ul class=\"variants\">\n{variants}</ul>\n"),
        (true, false) => fields,
        (true, true) => format!("<p>{} {}</p>\n", type_of(schema), demands(schema).join(" ")),
    }
}

fn fields_table(document: Document<'_>, schema: &Value) -> String {
    let mut rows = Vec::new();
    collect_fields(document, schema, "", 0, &mut rows);
    if rows.is_empty() {
        return String::new();
    }
    table("fields", ["Field", "Type", "Required", "Description"], &rows)
}

/// One row per field; those of a nested object without a name of its own follow as `outer.inner`.
fn collect_fields(document: Document<'_>, schema: &Value, prefix: &str, depth: usize, rows: &mut Vec<[String; 4]>) {
    if depth > MAX_DEPTH {
        return;
    }
    for part in list_of(schema, "allOf") {
        collect_fields(document, document.resolve(part), prefix, depth + 1, rows);
    }
    for (name, field, required) in properties(schema) {
        let path = format!("{prefix}{name}");
        let shown = escape(&path).replace('.', ".<wbr>");
        rows.push([format!("<code>{shown}</code>"), type_of(field), need(required), notes_of(field)]);
        collect_fields(document, field, &format!("{path}."), depth + 1, rows);
        collect_fields(document, &field["items"], &format!("{path}[]."), depth + 1, rows);
    }
}

/// The word for whether something must be there.
pub(super) fn need(required: bool) -> String {
    if required { "<strong>required</strong>".to_owned() } else { "optional".to_owned() }
}

/// The required ones first, in the order they are listed there, which is that of the declaration.
fn properties(schema: &Value) -> Vec<(&str, &Value, bool)> {
    let listed: Vec<&str> = list_of(schema, "required").iter().filter_map(Value::as_str).collect();
    let required = listed.iter().filter_map(|&name| Some((name, schema["properties"].get(name)?, true)));
    let optional = members_of(schema, "properties").filter(|(name, _)| !listed.contains(name));
    required.chain(optional.map(|(name, field)| (name, field, false))).collect()
}

/// Which fields an example has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fields {
    /// Every one.
    All,
    /// Those that must be there; every one where none must.
    Needed,
}

/// An example of a body: the one it comes with, or one made from its schema.
pub(super) fn example(document: Document<'_>, media: &Value, fields: Fields) -> Value {
    let first = media["examples"].as_object().and_then(|examples| examples.values().next());
    let given = media.get("example").or_else(|| document.resolve(first?).get("value"));
    let made = || Sampler { document, fields, trail: Vec::new() }.sample(&media["schema"], 0);
    given.cloned().or_else(made).unwrap_or_default()
}

struct Sampler<'a> {
    document: Document<'a>,
    fields: Fields,
    /// The references that are being followed.
    trail: Vec<&'a str>,
}

impl<'a> Sampler<'a> {
    /// A value that conforms; none where the schema leads back to itself, or too deep.
    fn sample(&mut self, schema: &'a Value, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        let given =
            [&schema["example"], &schema["examples"][0], &schema["const"], &schema["default"], &schema["enum"][0]];
        if let Some(given) = given.into_iter().find(|value| !value.is_null()) {
            return Some(given.clone());
        }
        if let Some(target) = schema["$ref"].as_str() {
            if self.trail.contains(&target) {
                return None;
            }
            self.trail.push(target);
            let value = self.sample(self.document.resolve(schema), depth + 1);
            self.trail.pop();
            return value;
        }
        if let Some(variant) = alternatives(schema).skip(1).find(|variant| variant["type"] != "null") {
            return self.sample(variant, depth + 1);
        }
        Some(match kind_of(schema) {
            "array" => self.sample(&schema["items"], depth + 1).into_iter().collect(),
            "boolean" => Value::Bool(true),
            "integer" | "number" => schema.get("minimum").cloned().unwrap_or(Value::from(1)),
            "string" => Value::from(sample_text(text_of(schema, "format"))),
            "null" => Value::Null,
            _ => Value::Object(self.object(schema, depth)),
        })
    }

    fn object(&mut self, schema: &'a Value, depth: usize) -> Map<String, Value> {
        let mut object = Map::new();
        for part in list_of(schema, "allOf") {
            if let Some(Value::Object(fields)) = self.sample(part, depth + 1) {
                object.extend(fields);
            }
        }
        let fields = properties(schema);
        let all = self.fields == Fields::All || fields.iter().all(|(_, _, required)| !required);
        for (name, field, _) in fields.into_iter().filter(|(_, _, required)| all || *required) {
            if let Some(value) = self.sample(field, depth + 1) {
                object.insert(name.to_owned(), value);
            }
        }
        object
    }
}

/// The first type that is not null.
fn kind_of(schema: &Value) -> &str {
    let listed = list_of(schema, "type").iter().filter_map(Value::as_str).find(|kind| *kind != "null");
    schema["type"].as_str().or(listed).unwrap_or_default()
}

fn sample_text(format: &str) -> &'static str {
    match format {
        "uuid" => "01980c3e-7b2a-7c41-9f6e-2d5a8b1c4e70",
        "date-time" => "2026-01-31T12:00:00Z",
        "date" => "2026-01-31",
        "uri" | "url" => "https://example.org/",
        _ => "string",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn example_of(schemas: Value, fields: Fields) -> Value {
        let value = json!({ "components": { "schemas": schemas } });
        example(Document(&value), &json!({ "schema": { "$ref": "#/components/schemas/Root" } }), fields)
    }

    #[test]
    fn an_example_of_a_circle_ends() {
        let root = json!({ "Root": {
            "type": "object",
            "required": ["name", "self"],
            "properties": {
                "name": { "type": "string" },
                "self": { "$ref": "#/components/schemas/Root" },
                "children": { "type": "array", "items": { "$ref": "#/components/schemas/Root" } },
            },
        } });
        assert_eq!(example_of(root, Fields::All), json!({ "name": "string", "children": [] }));
        let circle = json!({ "Root": { "allOf": [{ "$ref": "#/components/schemas/Root" }, { "$ref": "#/components/schemas/Root" }] } });
        assert_eq!(example_of(circle, Fields::All), json!({}));
    }

    #[test]
    fn tables_of_a_circle_end() {
        let value = json!({ "components": { "schemas": { "Root": {
            "allOf": [{ "$ref": "#/components/schemas/Root" }],
            "properties": { "name": { "type": "string" } },
        } } } });
        let table = shape(Document(&value), &json!({ "$ref": "#/components/schemas/Root" }));
        assert!(table.contains("<code>name</code>"), "{table}");
    }

    #[test]
    fn an_example_has_what_the_schema_gives() {
        let root = json!({ "Root": { "type": "object", "required": ["status"], "properties": {
            "status": { "type": "string", "enum": ["PENDING", "SUCCESS"] },
            "wait": { "type": ["string", "null"], "example": "30s" },
            "max": { "type": "integer", "minimum": 1 },
            "id": { "type": "string", "format": "uuid" },
            "secret": { "oneOf": [{ "type": "null" }, { "type": "boolean" }] },
            "anything": {},
        } } });
        let id = sample_text("uuid");
        assert_eq!(
            example_of(root.clone(), Fields::All),
            json!({ "status": "PENDING", "wait": "30s", "max": 1, "id": id, "secret": true, "anything": {} })
        );
        assert_eq!(example_of(root, Fields::Needed), json!({ "status": "PENDING" }));
    }

    #[test]
    fn types_read_as_words() {
        assert_eq!(
            type_of(&json!({ "type": ["string", "null"], "format": "date-time" })),
            "string (date-time) or null"
        );
        assert_eq!(
            type_of(&json!({ "type": "array", "items": { "$ref": "#/components/schemas/TaskView" } })),
            "array of <a href=\"#schema-TaskView\">TaskView</a>"
        );
        assert_eq!(type_of(&json!({})), "any");
    }

    #[test]
    fn nested_objects_without_a_name_are_shown_in_place() {
        let value = json!({ "type": "object", "properties": {
            "data": { "type": "object", "properties": { "id": { "type": "string" } } },
            "list": { "type": "array", "items": { "properties": { "x": { "maximum": 9 } } } },
        } });
        let table = shape(Document(&Value::Null), &value);
        assert!(table.contains("<code>data.<wbr>id</code>") && table.contains("<code>list[].<wbr>x</code>"), "{table}");
        assert!(table.contains("At most 9."), "{table}");
    }
}
