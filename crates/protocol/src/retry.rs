//! How often a failed task is retried, as services and tasks declare it.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use utoipa::ToSchema;

use crate::HumanDuration;

/// How often a failed task is retried: a policy that has a name, or a rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RetryDeclaration {
    /// A policy that has a name.
    Named(RetryName),
    /// A rule.
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

/// A retry policy that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetryName {
    /// A failed task is not retried.
    None,
    /// 10 retries, after 1, 2, 4, … 512 minutes.
    Classic,
    /// A failed task of the service is not retried, even if the task asks for it.
    Never,
}

/// A rule: how many retries, and how long to wait before each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RetryRule {
    /// How many retries there are at most.
    #[schema(minimum = 0, maximum = 1000)]
    pub limit: u32,
    /// How long to wait before the first retry. At most `30d`. Default: `1m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "10s")]
    pub base: Option<HumanDuration>,
    /// Each wait is this many times as long as the one before. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub factor: Option<f64>,
    /// The longest wait. At most `30d`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "1h")]
    pub cap: Option<HumanDuration>,
    /// How much of each wait is random: with 0.2, a wait is shortened by up to a fifth. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub jitter: Option<f64>,
    /// The time for all retries. No retry begins later than this after the task was submitted, was due, or was retried
    /// by hand. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]+(d|h|m|s|ms))+$", example = "1d")]
    pub within: Option<HumanDuration>,
    /// The kinds of failures that are not retried, as workers name them. At most 100 words of 1 to 100 bytes. Default:
    /// every failure is retried.
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
