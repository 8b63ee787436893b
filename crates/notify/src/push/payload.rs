//! What a push says to the service worker, and how the push service is to treat it.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::MOST_PLAINTEXT;
use crate::{Notification, Priority};

/// Push services keep nothing for longer: four weeks.
const LONGEST_TTL: i64 = 28 * 86_400;

/// What the service worker gets.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Payload<'a> {
    /// A message.
    Whole {
        message: &'a Notification,
        /// Acknowledges it.
        ack: &'a str,
    },
    /// A message that is too large for a push.
    Large { id: Uuid, ack: &'a str },
    /// A message is void.
    Withdrawn {
        withdrawn: Uuid,
        #[serde(rename = "replacedBy", skip_serializing_if = "Option::is_none")]
        replaced_by: Option<Uuid>,
    },
}

/// A message as it is pushed: whole, or only its id where it is too large for a push.
pub(super) fn message(message: &Notification, ack: &str) -> Vec<u8> {
    let whole = bytes(&Payload::Whole { message, ack });
    match whole.len() <= MOST_PLAINTEXT {
        true => whole,
        false => bytes(&Payload::Large { id: message.metadata.id, ack }),
    }
}

/// That a message was withdrawn or replaced.
pub(super) fn withdrawal(withdrawn: Uuid, replaced_by: Option<Uuid>) -> Vec<u8> {
    bytes(&Payload::Withdrawn { withdrawn, replaced_by })
}

fn bytes(payload: &Payload<'_>) -> Vec<u8> {
    // Nothing in it has keys that are no texts.
    serde_json::to_vec(payload).unwrap_or_default()
}

/// How the push service is to treat a push of this message.
pub(super) fn headers(message: &Notification, now: Timestamp) -> Vec<(&'static str, String)> {
    let ttl = message.metadata.expiration.as_second().saturating_sub(now.as_second());
    let urgency = match message.metadata.priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
    };
    vec![
        ("content-encoding", "aes128gcm".to_owned()),
        ("content-type", "application/octet-stream".to_owned()),
        ("ttl", ttl.clamp(0, LONGEST_TTL).to_string()),
        ("urgency", urgency.to_owned()),
        // What waits at the push service under the same topic is replaced.
        ("topic", URL_SAFE_NO_PAD.encode(message.metadata.id.as_bytes())),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(payload: &str, metadata: &Value) -> Notification {
        serde_json::from_value(json!({
            "metadata": {
                "id": "0195c5a5-0000-7000-8000-000000000001", "priority": metadata["priority"], "type": "NOTIFICATION",
                "emitter": "shop", "timestamp": "2026-01-01T00:00:00Z", "expiration": metadata["expiration"],
            },
            "payload": payload,
            "routing": {"audience": {"type": "USER", "targets": ["ann"]}, "retry": {}},
        }))
        .unwrap()
    }

    #[test]
    fn a_message_is_whole_up_to_the_last_byte_that_fits() {
        let metadata = json!({"priority": "LOW", "expiration": "2026-01-01T00:01:00Z"});
        let around = message(&of("", &metadata), "rp_x").len();
        let fits = message(&of(&"x".repeat(MOST_PLAINTEXT - around), &metadata), "rp_x");
        assert_eq!(fits.len(), MOST_PLAINTEXT);
        let fits: Value = serde_json::from_slice(&fits).unwrap();
        assert_eq!(fits["message"]["metadata"]["emitter"], "shop");
        let large = message(&of(&"x".repeat(MOST_PLAINTEXT - around + 1), &metadata), "rp_x");
        let large: Value = serde_json::from_slice(&large).unwrap();
        assert_eq!(large, json!({"id": "0195c5a5-0000-7000-8000-000000000001", "ack": "rp_x"}));
    }

    #[test]
    fn the_push_service_hears_of_priority_expiration_and_id() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        for (priority, expiration, urgency, ttl) in [
            ("LOW", "2026-01-01T00:01:00Z", "low", "60"),
            ("NORMAL", "2025-12-31T23:59:00Z", "normal", "0"),
            ("HIGH", "2027-01-01T00:00:00Z", "high", "2419200"),
        ] {
            let headers = headers(&of("", &json!({"priority": priority, "expiration": expiration})), now);
            let header = |name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
            assert_eq!((header("urgency"), header("ttl")), (Some(urgency), Some(ttl)));
            assert_eq!(header("topic"), Some("AZXFpQAAcACAAAAAAAAAAQ"));
        }
    }
}
