//! Texts that are made of a message's fields: `orders.{event_type}`.
//!
//! `{name}` is a field, `{headers.name}` a header, `{payload.customer.id}` a value inside a JSON payload. `{{` and `}}` stand
//! for the braces themselves. A template is parsed and checked when it is declared; at run time only a value can be missing.

use std::{borrow::Cow, fmt, str::FromStr};

use serde_json::Value;

use crate::{Message, header};

/// A text with fields in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(TemplateField),
}

/// A field of a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TemplateField {
    /// A field or column of this name.
    Named(String),
    /// A header of this name.
    Header(String),
    /// A value inside the payload: names of members, or numbers of items.
    Payload(Vec<String>),
}

impl fmt::Display for TemplateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Header(name) => write!(f, "headers.{name}"),
            Self::Payload(path) => write!(f, "payload.{}", path.join(".")),
        }
    }
}

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace is opened and not closed.
    #[error("`{{` is not closed; write `{{{{` for the character itself")]
    Open,
    /// A brace is closed that was not opened.
    #[error("`}}` is not opened; write `}}}}` for the character itself")]
    Close,
    /// There is nothing between the braces, or between two dots.
    #[error("`{{{0}}}` does not name a field")]
    Empty(String),
    /// There is no such field.
    #[error("there is no field `{field}`; there are {known}, `headers.NAME` and `payload.NAME`")]
    Unknown {
        /// What was asked for.
        field: String,
        /// What there is.
        known: String,
    },
}

/// A message has no value for a field of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the message has no `{0}`")]
pub struct RenderError(pub String);

/// Where a template's values come from.
pub trait TemplateFields {
    /// A field or column of this name.
    fn named(&self, name: &str) -> Option<Cow<'_, str>>;

    /// A header of this name.
    fn header(&self, name: &str) -> Option<Cow<'_, str>>;

    /// A value inside the payload.
    fn payload(&self, path: &[String]) -> Option<String>;
}

impl Template {
    /// Reads a template. [`Self::check`] tells whether its fields exist.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let (mut parts, mut literal) = (Vec::new(), String::new());
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            match character {
                '{' | '}' if rest.next_if_eq(&character).is_some() => literal.push(character),
                '}' => return Err(TemplateError::Close),
                '{' => {
                    let mut inside = String::new();
                    loop {
                        match rest.next() {
                            None | Some('{') => return Err(TemplateError::Open),
                            Some('}') => break,
                            Some(other) => inside.push(other),
                        }
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal)));
                    }
                    parts.push(Part::Field(field(&inside)?));
                }
                other => literal.push(other),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }

    /// Checks that every named field is one of `known`.
    pub fn check(&self, known: &[&str]) -> Result<(), TemplateError> {
        for field in self.fields() {
            if let TemplateField::Named(name) = field
                && !known.contains(&name.as_str())
            {
                let known = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                return Err(TemplateError::Unknown { field: name.clone(), known });
            }
        }
        Ok(())
    }

    /// The fields, in their order.
    pub fn fields(&self) -> impl Iterator<Item = &TemplateField> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(field) => Some(field),
            Part::Text(_) => None,
        })
    }

    /// Its parts in their order: fields, and the texts between them as errors.
    pub fn parts(&self) -> impl Iterator<Item = Result<&TemplateField, &str>> {
        self.parts.iter().map(|part| match part {
            Part::Field(field) => Ok(field),
            Part::Text(text) => Err(text.as_str()),
        })
    }

    /// The text with the values of one message.
    pub fn render(&self, fields: &impl TemplateFields) -> Result<String, RenderError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Field(field) => {
                    let value = match field {
                        TemplateField::Named(name) => fields.named(name),
                        TemplateField::Header(name) => fields.header(name),
                        TemplateField::Payload(path) => fields.payload(path).map(Cow::Owned),
                    };
                    text.push_str(&value.ok_or_else(|| RenderError(field.to_string()))?);
                }
            }
        }
        Ok(text)
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Self::parse(text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}")),
            Part::Field(field) => write!(f, "{{{field}}}"),
        })
    }
}

fn field(inside: &str) -> Result<TemplateField, TemplateError> {
    let empty = || TemplateError::Empty(inside.to_owned());
    // The name of a header may have dots in it.
    if let Some(name) = inside.strip_prefix("headers.") {
        return if name.is_empty() { Err(empty()) } else { Ok(TemplateField::Header(name.to_owned())) };
    }
    if let Some(path) = inside.strip_prefix("payload.") {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        return if path.iter().any(String::is_empty) { Err(empty()) } else { Ok(TemplateField::Payload(path)) };
    }
    if inside.is_empty() { Err(empty()) } else { Ok(TemplateField::Named(inside.to_owned())) }
}

impl TemplateFields for Message {
    fn named(&self, name: &str) -> Option<Cow<'_, str>> {
        let text = match name {
            "id" => Some(self.id.as_str()),
            "key" | "aggregate_id" => self.key.as_deref(),
            "event_type" => Some(self.event_type.as_str()),
            "schema_version" => self.headers.get(header::SCHEMA_VERSION),
            "correlation_id" => self.headers.get(header::CORRELATION_ID),
            _ => None,
        };
        text.map(Cow::Borrowed)
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.headers.get(name).map(Cow::Borrowed)
    }

    fn payload(&self, path: &[String]) -> Option<String> {
        let mut value: &Value = &serde_json::from_slice(self.payload.as_ref()?).ok()?;
        for step in path {
            value = match value {
                Value::Object(members) => members.get(step)?,
                Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str) -> Result<String, RenderError> {
        let payload = r#"{"order":{"id":7,"lines":[{"sku":"a"}],"open":true,"note":null},"customer":"é{}"}"#;
        let message = Message::new("m-1", "order.placed", payload).with_key("o-7").with_header("x.y", "h");
        Template::parse(template).unwrap().render(&message)
    }

    #[test]
    fn fields_headers_and_values_of_the_payload_are_filled_in() {
        for (template, text) in [
            ("", ""),
            ("orders", "orders"),
            ("orders.{event_type}", "orders.order.placed"),
            ("{aggregate_id}/{id}", "o-7/m-1"),
            ("{headers.x.y}", "h"),
            ("{payload.order.id}-{payload.order.lines.0.sku}-{payload.order.open}", "7-a-true"),
            ("{payload.customer}", "é{}"),
            ("{{{id}}}", "{m-1}"),
        ] {
            assert_eq!(render(template).unwrap(), text, "{template}");
        }
    }

    #[test]
    fn a_value_that_is_missing_or_null_is_named() {
        for (template, field) in [
            ("{payload.order.note}", "payload.order.note"),
            ("{payload.nothing.here}", "payload.nothing.here"),
            ("{payload.order.lines.1}", "payload.order.lines.1"),
            ("a{headers.b}", "headers.b"),
            ("{correlation_id}", "correlation_id"),
        ] {
            assert_eq!(render(template), Err(RenderError(field.to_owned())), "{template}");
        }
    }

    #[test]
    fn what_is_not_a_template_is_refused_when_it_is_declared() {
        for (template, error) in [
            ("a{id", TemplateError::Open),
            ("a{i{d}", TemplateError::Open),
            ("a}", TemplateError::Close),
            ("{}", TemplateError::Empty(String::new())),
            ("{payload.}", TemplateError::Empty("payload.".to_owned())),
            ("{payload.a..b}", TemplateError::Empty("payload.a..b".to_owned())),
            ("{headers.}", TemplateError::Empty("headers.".to_owned())),
        ] {
            assert_eq!(Template::parse(template), Err(error), "{template}");
        }
        let unknown = Template::parse("{evnt_type}").unwrap().check(&["id", "event_type"]).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no field `evnt_type`; there are `id`, `event_type`, `headers.NAME` and `payload.NAME`"
        );
    }

    #[test]
    fn a_template_is_written_as_it_was_read() {
        for text in ["orders.{event_type}", "{{{id}}}{headers.a.b}", "{payload.a.0}"] {
            assert_eq!(Template::parse(text).unwrap().to_string(), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_braces_survive(text in "[a-z{}.]{0,20}") {
            if let Ok(template) = Template::parse(&text) {
                assert_eq!(Template::parse(&template.to_string()).unwrap(), template);
            }
        }
    }
}
