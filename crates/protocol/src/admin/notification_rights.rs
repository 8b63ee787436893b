//! What a client may do with notifications, as it is declared and shown.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use utoipa::ToSchema;

/// What a client may do with notifications. Each right is limited to types of audience, such as `USER` and `GROUP`: at
/// most 100 names of 1 to 200 bytes without control characters, or `["*"]` for all types.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NotificationRightsDeclaration {
    /// The types of audience that the client may send notifications to. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emit: Vec<String>,
    /// The types of audience whose members the client may change. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Whether the client may ask for tickets on behalf of users. `true`: tickets that name the user only. A list: the
    /// types of audience that a ticket may name beside the user. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketDeclaration>,
}

/// Whether a client may ask for tickets, or which types of audience they may name beside the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TicketDeclaration {
    /// Tickets that name the user only, or none.
    Allowed(bool),
    /// The types of audience that a ticket may name beside the user.
    Types(Vec<String>),
}

// By hand: what is wrong is then said of the value, not of an enum's variants.
impl<'de> Deserialize<'de> for TicketDeclaration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = TicketDeclaration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, `false` or a list of types of audience")
            }

            fn visit_bool<E>(self, allowed: bool) -> Result<TicketDeclaration, E> {
                Ok(TicketDeclaration::Allowed(allowed))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, types: A) -> Result<TicketDeclaration, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(types)).map(TicketDeclaration::Types)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_written_as_they_are_read() {
        for text in [
            "{}",
            r#"{"emit":["*"]}"#,
            r#"{"emit":["USER","GROUP"],"audience":["GROUP"],"ticket":true}"#,
            r#"{"ticket":false}"#,
            r#"{"ticket":["GROUP"]}"#,
        ] {
            let read: NotificationRightsDeclaration = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_right_is_refused_in_its_own_words() {
        let refused = |text: &str| serde_json::from_str::<NotificationRightsDeclaration>(text).unwrap_err().to_string();
        let expected = "expected `true`, `false` or a list of types of audience";
        for text in [r#"{"ticket":"GROUP"}"#, r#"{"ticket":1}"#, r#"{"ticket":{}}"#] {
            assert!(refused(text).contains(expected), "{text}: {}", refused(text));
        }
        assert!(refused(r#"{"ticket":[7]}"#).contains("expected a string"));
        assert!(refused(r#"{"read":["USER"]}"#).contains("unknown field `read`"));
    }
}
