//! JSON objects whose names are unique. Of a name that is there twice, some readers take the first value and some the
//! last.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// An object, whose values are still text.
pub(super) struct Object<'a>(BTreeMap<String, &'a RawValue>);

/// Why a text is not such an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotObject {
    /// It is something else.
    Other,
    /// A name is there twice.
    Duplicate,
}

impl<'a> Object<'a> {
    pub fn parse(text: &'a str) -> Result<Self, NotObject> {
        let Entries(entries) = serde_json::from_str(text).map_err(|_| NotObject::Other)?;
        let mut object = BTreeMap::new();
        for (name, value) in entries {
            if object.insert(name, value).is_some() {
                return Err(NotObject::Duplicate);
            }
        }
        Ok(Self(object))
    }

    /// The text of a value. Null is as good as nothing.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.get()).filter(|text| *text != "null")
    }

    /// Whether the name is there, with null or anything else.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn into_entries(self) -> impl Iterator<Item = (String, &'a str)> {
        self.0.into_iter().map(|(name, value)| (name, value.get()))
    }
}

struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnObject;

        impl<'de> Visitor<'de> for AnObject {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(AnObject).map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_once_however_it_is_written() {
        assert!(Object::parse(r#"{"a": 1, "b": {"a": 1}}"#).is_ok());
        let twice = Object::parse(r#"{"a": 1, "\u0061": 2}"#);
        assert_eq!(twice.err(), Some(NotObject::Duplicate));
        for other in ["", "[]", "7", "{", r#"{"a": 1} {"#, r#"{"a": tru}"#] {
            assert_eq!(Object::parse(other).err(), Some(NotObject::Other), "{other}");
        }
    }
}
