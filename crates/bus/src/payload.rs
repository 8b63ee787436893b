//! What an event carries, type-erased once and shared by all who receive it.
//!
//! A value that is published stays the value it is. Subscribers of the same type in the same process get that very
//! value behind an `Arc`; JSON is made only when somebody needs it (another type, another process), and then once.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use thiserror::Error;

type Shared = Arc<dyn Any + Send + Sync>;

/// Why a payload could not be read as what the subscriber wants.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// It is not of that shape.
    #[error("read the payload as {wanted}")]
    Decode {
        /// The type that was asked for.
        wanted: &'static str,
        /// What the JSON decoder says.
        source: serde_json::Error,
    },
    /// It can not be written as JSON.
    #[error("write a {given} as JSON")]
    Encode {
        /// The type that was published.
        given: &'static str,
        /// What the JSON encoder says.
        source: serde_json::Error,
    },
    /// It was published with [`Payload::shared`], for this process and this type only.
    #[error("a {given} is shared in process only and has no other form")]
    InProcessOnly {
        /// The type that was published.
        given: &'static str,
    },
}

/// What an event carries. Anything that serde can serialise becomes one by `into()`.
///
/// ```
/// use std::sync::Arc;
/// use relais_bus::Payload;
///
/// let payload = Payload::from(vec![1, 2, 3]);
/// let same: Arc<Vec<i32>> = payload.get()?; // The vector that was given, not a copy.
/// let other: Arc<(u8, u8, u8)> = payload.get()?; // By way of JSON.
/// assert_eq!((same.len(), other.2), (3, 3));
/// # Ok::<(), relais_bus::PayloadError>(())
/// ```
#[derive(Clone)]
pub struct Payload {
    content: Content,
    /// The content as JSON, once somebody has asked.
    json: OnceLock<Arc<RawValue>>,
    /// The content as another type, for the next one who asks for the same.
    decoded: OnceLock<Shared>,
}

#[derive(Clone)]
enum Content {
    Value(Arc<dyn Value>),
    InProcess(Shared, &'static str),
    /// From another process; the text is in `json`.
    Json,
}

/// A value with its encoder.
trait Value: Any + Send + Sync {
    fn encode(&self) -> Result<Box<RawValue>, serde_json::Error>;
    fn type_name(&self) -> &'static str;
}

impl<T: Serialize + Send + Sync + 'static> Value for T {
    fn encode(&self) -> Result<Box<RawValue>, serde_json::Error> {
        serde_json::value::to_raw_value(self)
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }
}

impl<T: Serialize + Send + Sync + 'static> From<T> for Payload {
    fn from(value: T) -> Self {
        Self::arc(Arc::new(value))
    }
}

impl Payload {
    /// A value that is shared already.
    pub fn arc<T: Serialize + Send + Sync + 'static>(value: Arc<T>) -> Self {
        Self::of(Content::Value(value))
    }

    /// A value that needs no serde: it is handed to subscribers of the same type in this process, and can not leave it.
    pub fn shared<T: Send + Sync + 'static>(value: Arc<T>) -> Self {
        Self::of(Content::InProcess(value, std::any::type_name::<T>()))
    }

    /// JSON text that is passed through as it is.
    pub fn json(text: Box<RawValue>) -> Self {
        let payload = Self::of(Content::Json);
        payload.json.get_or_init(|| text.into());
        payload
    }

    fn of(content: Content) -> Self {
        Self { content, json: OnceLock::new(), decoded: OnceLock::new() }
    }

    /// The payload as a `T`: the value itself if it is one, else by way of JSON.
    ///
    /// # Errors
    ///
    /// If it is of another shape, or was [shared](Self::shared) as another type.
    pub fn get<T: DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<T>, PayloadError> {
        if let Some(value) = self.downcast() {
            return Ok(value);
        }
        if let Some(known) = self.decoded.get()
            && let Ok(value) = Arc::clone(known).downcast()
        {
            return Ok(value);
        }
        let wanted = std::any::type_name::<T>();
        let value: T =
            serde_json::from_str(self.as_json()?.get()).map_err(|source| PayloadError::Decode { wanted, source })?;
        let value = Arc::new(value);
        // The first other type is remembered. Two would need a map, for a case that is rare.
        let _ = self.decoded.set(Arc::clone(&value) as Shared);
        Ok(value)
    }

    /// The very value that was published, if it is a `T` and was published in this process.
    pub fn downcast<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let shared: Shared = match &self.content {
            Content::Value(value) => {
                // Asked first, for no more than a comparison: a wrong guess costs no reference count.
                if !(&**value as &dyn Any).is::<T>() {
                    return None;
                }
                Arc::clone(value) as Shared
            }
            Content::InProcess(value, _) => Arc::clone(value),
            Content::Json => return None,
        };
        shared.downcast().ok()
    }

    /// The payload as JSON, made at the first call.
    ///
    /// # Errors
    ///
    /// If it can not be serialised.
    pub fn as_json(&self) -> Result<&RawValue, PayloadError> {
        if let Some(json) = self.json.get() {
            return Ok(json);
        }
        match &self.content {
            Content::Value(value) => {
                let given = (**value).type_name();
                let json = (**value).encode().map_err(|source| PayloadError::Encode { given, source })?;
                Ok(self.json.get_or_init(|| json.into()))
            }
            Content::InProcess(_, given) => Err(PayloadError::InProcessOnly { given }),
            // Its text is there from the beginning.
            Content::Json => Ok(RawValue::NULL),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let type_name = match &self.content {
            Content::Value(value) => (**value).type_name(),
            Content::InProcess(_, name) => name,
            Content::Json => "JSON",
        };
        f.debug_tuple("Payload").field(&format_args!("{type_name}")).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        id: u32,
    }

    #[test]
    fn the_same_type_gets_the_value_itself() {
        let order = Arc::new(Order { id: 7 });
        let payload = Payload::arc(Arc::clone(&order));
        assert!(Arc::ptr_eq(&payload.get::<Order>().unwrap(), &order));
        assert!(payload.json.get().is_none(), "nobody needed JSON");
    }

    #[test]
    fn another_type_goes_by_json_and_is_decoded_once() {
        let payload = Payload::from(json!({"id": 7}));
        let first = payload.get::<Order>().unwrap();
        assert_eq!(*first, Order { id: 7 });
        assert!(Arc::ptr_eq(&payload.get::<Order>().unwrap(), &first));
        assert!(payload.get::<Vec<u8>>().is_err());
    }

    #[test]
    fn a_payload_without_serde_stays_in_the_process() {
        struct Socket(u8);
        let payload = Payload::shared(Arc::new(Socket(3)));
        assert_eq!(payload.downcast::<Socket>().unwrap().0, 3);
        assert!(payload.downcast::<u8>().is_none());
        assert!(matches!(payload.get::<u8>(), Err(PayloadError::InProcessOnly { .. })));
    }

    #[test]
    fn json_passes_through_as_it_is() {
        let text = r#"{"big":123456789012345678901234567890,"b":1,"a":2}"#;
        let payload = Payload::json(RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(payload.as_json().unwrap().get(), text);
    }
}
