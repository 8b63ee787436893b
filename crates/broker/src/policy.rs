//! What queues are like beyond being there, set by policy: a queue that was declared with arguments of its own would
//! make workers fail that assert a plain one.

use relais_core::Mailbox;
use relais_messaging::rabbitmq::{Management, ManagementError};
use serde_json::{Map, Value, json};

/// Above what operators usually say of all queues, below what they say of this one.
const PRIORITY: i64 = 50;

/// Sets the policies of a service's queue of tasks: what no worker takes goes where it is seen, and fails.
///
/// There are two of them, because a broker applies a policy only to queues that know all of it, and classic queues do
/// not know a delivery limit. Which kind a queue is of is not ours alone: one that exists is used as it is.
pub(crate) async fn put(management: &Management, mailbox: &Mailbox) -> Result<(), ManagementError> {
    let queue = mailbox.tasks();
    let pattern = format!("^{}$", escape(&queue));
    let (any, counting) = (format!("relais-{queue}"), format!("relais-{queue}-deliveries"));
    management.put_policy(&counting, &pattern, "queues", Value::Object(counted(mailbox)), PRIORITY + 1).await?;
    management.put_policy(&any, &pattern, "queues", Value::Object(definition(mailbox)), PRIORITY).await
}

/// For queues that count how often a task was delivered.
fn counted(mailbox: &Mailbox) -> Map<String, Value> {
    let mut definition = definition(mailbox);
    definition.insert("delivery-limit".to_owned(), json!(mailbox.delivery_limit));
    definition
}

/// For those that do not.
fn definition(mailbox: &Mailbox) -> Map<String, Value> {
    let mut definition = Map::new();
    definition.insert("dead-letter-exchange".to_owned(), json!(""));
    definition.insert("dead-letter-routing-key".to_owned(), json!(mailbox.refused_tasks()));
    if let Some(ttl) = mailbox.settings.message_ttl {
        definition.insert("message-ttl".to_owned(), json!(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)));
    }
    if let Some(length) = mailbox.settings.max_length {
        definition.insert("max-length".to_owned(), json!(length));
        // What does not fit waits in the store. The default would drop the oldest.
        definition.insert("overflow".to_owned(), json!("reject-publish"));
    }
    definition
}

/// A name as a regular expression that means itself.
fn escape(name: &str) -> String {
    name.chars()
        .flat_map(|c| (!c.is_ascii_alphanumeric() && c.is_ascii()).then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relais_core::QueueSettings;

    use super::*;

    #[test]
    fn a_policy_says_what_was_declared_and_matches_one_queue() {
        let settings = QueueSettings {
            message_ttl: Some(Duration::from_secs(60)),
            max_length: Some(10),
            ..QueueSettings::default()
        };
        let mailbox = Mailbox { name: "a.b".to_owned(), settings, delivery_limit: 7 };
        let mut expected = json!({
            "dead-letter-exchange": "", "dead-letter-routing-key": "a.b-in.rejected",
            "message-ttl": 60_000, "max-length": 10, "overflow": "reject-publish",
        });
        assert_eq!(Value::Object(definition(&mailbox)), expected);
        expected["delivery-limit"] = json!(7);
        assert_eq!(Value::Object(counted(&mailbox)), expected);
        assert_eq!(escape("a.b-in"), "a\\.b\\-in");
    }
}
