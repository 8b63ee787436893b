//! How often a task that failed is tried again, as services and tasks say it.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use utoipa::ToSchema;

use crate::HumanDuration;

/// How often a task that failed is tried again: by name, or by a rule of one's own.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RetryDeclaration {
    /// By name.
    Named(RetryName),
    /// By a rule of one's own.
    Rule(RetryRule),
}

impl RetryDeclaration {
    /// Ten more tries, 2^n minutes apart.
    pub const fn classic() -> Self {
        Self::Named(RetryName::Classic)
    }
}

// By hand: what is wrong with a rule is then said of its fields, and numbers are read as they are written.
impl<'de> Deserialize<'de> for RetryDeclaration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = RetryDeclaration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`none`, `classic`, `never` or a rule with a `limit`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RetryDeclaration, E> {
                match name {
                    "none" => Ok(RetryDeclaration::Named(RetryName::None)),
                    "classic" => Ok(RetryDeclaration::Named(RetryName::Classic)),
                    "never" => Ok(RetryDeclaration::Named(RetryName::Never)),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RetryDeclaration, A::Error> {
                RetryRule::deserialize(MapAccessDeserializer::new(map)).map(RetryDeclaration::Rule)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A policy that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetryName {
    /// A failure is the end.
    None,
    /// 10 retries, 1, 2, 4, … 512 minutes apart.
    Classic,
    /// A failure is the end, whatever a task asks for, if a service says so.
    Never,
}

/// A rule of one's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RetryRule {
    /// At most so many retries.
    #[schema(minimum = 0, maximum = 1000)]
    pub limit: u32,
    /// How long to wait before the first one; `1m` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub base: Option<HumanDuration>,
    /// Each wait is so many times as long as the one before; 2 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub factor: Option<f64>,
    /// No wait is longer than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub cap: Option<HumanDuration>,
    /// The share of each wait that is left to chance, from 0 to 1; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub jitter: Option<f64>,
    /// No retry begins later than this after the task was submitted, was to begin, or was retried by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub within: Option<HumanDuration>,
    /// Failures of these kinds are not tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except_kinds: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_name_or_a_rule() {
        for text in [
            r#""none""#,
            r#""classic""#,
            r#""never""#,
            r#"{"limit":5,"base":"10s","factor":3.5,"jitter":0.25,"exceptKinds":["a"]}"#,
        ] {
            let read: RetryDeclaration = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        let wrong = serde_json::from_str::<RetryDeclaration>(r#"{"limit":5,"bse":"1s"}"#).unwrap_err();
        assert!(wrong.to_string().contains("bse"), "{wrong}");
        assert!(serde_json::from_str::<RetryDeclaration>(r#""sometimes""#).is_err());
    }
}
