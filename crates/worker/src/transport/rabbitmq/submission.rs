//! A message of `<queueName>-in`, understood in either spelling.

use relais_protocol::worker::{SUBMISSION, SubmissionMessage};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "taskId")]
    task_id: Option<String>,
    #[serde(rename = "task_id")]
    task_id_snake: Option<String>,
    attempt: Option<u32>,
    #[serde(rename = "correlationId")]
    correlation_id: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    deadline: Option<String>,
    #[serde(rename = "timeoutMs")]
    timeout_ms: Option<u64>,
    revision: Option<u64>,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "messageType")]
    message_type: Option<String>,
    #[serde(rename = "message_type")]
    message_type_snake: Option<String>,
    body: Option<Box<RawValue>>,
}

/// Reads a submission. The error says what is wrong with it, without quoting it.
pub(super) fn understand(text: &[u8]) -> Result<SubmissionMessage, String> {
    let wire: Wire = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let kind = wire.data.message_type.or(wire.data.message_type_snake);
    if kind.as_deref() != Some(SUBMISSION) {
        return Err("its messageType is not submission".to_owned());
    }
    let task_id = wire.task_id.or(wire.task_id_snake).ok_or("it has no taskId")?;
    let body = wire.data.body.ok_or("it has no body")?;
    Ok(SubmissionMessage {
        attempt: wire.attempt,
        correlation_id: wire.correlation_id,
        traceparent: wire.traceparent,
        tracestate: wire.tracestate,
        deadline: wire.deadline,
        timeout_ms: wire.timeout_ms,
        revision: wire.revision,
        ..SubmissionMessage::new(task_id, body)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_spelling_is_understood() {
        for text in [
            r#"{"taskId":"t","data":{"messageType":"submission","body":{"n":1e400}}}"#,
            r#"{"task_id":"t","data":{"message_type":"submission","body":{"n":1e400}}}"#,
            r#"{"taskId":"t","task_id":"t","more":[1],"data":{"messageType":"submission","message_type":"submission","body":{"n":1e400},"more":2}}"#,
        ] {
            let task = understand(text.as_bytes()).unwrap();
            assert_eq!((task.task_id.as_str(), task.data.body.get()), ("t", r#"{"n":1e400}"#));
        }
    }

    #[test]
    fn the_timeout_is_read_from_the_submission() {
        for (said, understood) in [("", None), (r#""timeoutMs":1500,"#, Some(1500)), (r#""timeoutMs":null,"#, None)] {
            let text = format!(r#"{{"taskId":"t",{said}"data":{{"messageType":"submission","body":1}}}}"#);
            assert_eq!(understand(text.as_bytes()).unwrap().timeout_ms, understood);
        }
    }

    #[test]
    fn an_invalid_submission_is_refused() {
        for text in [
            "",
            "hello",
            "{}",
            "[]",
            r#"{"taskId":"t"}"#,
            r#"{"taskId":"t","data":{"messageType":"dance","body":{}}}"#,
            r#"{"data":{"messageType":"submission","body":{}}}"#,
            r#"{"taskId":"t","data":{"messageType":"submission"}}"#,
            r#"{"taskId":7,"data":{"messageType":"submission","body":{}}}"#,
        ] {
            assert!(understand(text.as_bytes()).is_err(), "{text}");
        }
    }
}
