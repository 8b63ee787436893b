//! The thread that polls librdkafka: records, rebalances, answers and errors.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
};
use tokio::sync::oneshot;

use super::{
    context::GroupContext,
    shared::{Client, Shared},
};
use crate::kafka::{KafkaRecord, KafkaSettingsError, client::lock};

/// How long a poll waits: as late as that, commits are made and the end is seen.
const POLL: Duration = Duration::from_millis(50);

/// Starts it, and says what tells that it has ended.
pub(super) fn start(shared: &Arc<Shared>, config: &ClientConfig) -> Result<oneshot::Receiver<()>, KafkaSettingsError> {
    let context = GroupContext(Arc::downgrade(shared));
    let client: Client = config.create_with_context(context).map_err(KafkaSettingsError::of_client)?;
    let topics: Vec<&str> = shared.options.topics.iter().map(String::as_str).collect();
    client.subscribe(&topics).map_err(KafkaSettingsError::of_client)?;
    let client = Arc::new(client);
    *lock(&shared.client) = Some(Arc::clone(&client));
    let (tell, ended) = oneshot::channel();
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("relais-kafka".to_owned()).spawn(move || {
        run(&shared, &client);
        lock(&shared.client).take();
        // The last one to let go of it leaves the group, which ends with handing over.
        drop(client);
        shared.close();
        let _ = tell.send(());
    });
    thread.map_err(|error| KafkaSettingsError::Option(format!("a thread can not be started: {error}")))?;
    Ok(ended)
}

fn run(shared: &Shared, client: &Client) {
    while !shared.closing.load(Ordering::Acquire) {
        match client.poll(POLL) {
            None => {}
            Some(Ok(message)) => {
                let topic = lock(&shared.state).topic(rdkafka::Message::topic(&message));
                let record = KafkaRecord::read(topic, &message);
                shared.change(|state, options| state.deliver(record, options));
            }
            Some(Err(error)) => {
                let fatal = client.client().fatal_error();
                shared.trouble(Some(in_words(&error, fatal.as_ref(), shared)));
                if fatal.is_some() {
                    // This member can not go on, and must not.
                    break;
                }
            }
        }
        shared.commit_if_due();
    }
    shared.commit(None);
}

/// What an error means for whoever operates the consumer.
fn in_words(error: &KafkaError, fatal: Option<&(RDKafkaErrorCode, String)>, shared: &Shared) -> String {
    use RDKafkaErrorCode as Code;
    if let Some((code, why)) = fatal {
        let instance = shared.options.instance_id.as_deref().unwrap_or_default();
        return match code {
            Code::FencedInstanceId => format!("another member has the instance id {instance}; this one has ended"),
            _ => format!("the client has given up, and this member has ended: {why}"),
        };
    }
    match error.rdkafka_error_code() {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
            format!(
                "one of the topics {:?} does not exist (any more); it is read as soon as it does",
                shared.options.topics
            )
        }
        Some(Code::TopicAuthorizationFailed) => "the user may not read one of the topics".to_owned(),
        Some(Code::GroupAuthorizationFailed) => "the user may not be a member of the group".to_owned(),
        Some(Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Resolve) => {
            "no broker can be reached".to_owned()
        }
        Some(Code::OffsetOutOfRange | Code::AutoOffsetReset) => {
            "the committed offset is not there any more: records were deleted before they were read".to_owned()
        }
        Some(Code::PollExceeded) => "the thread that polls was held up; partitions were lost".to_owned(),
        _ => error.to_string(),
    }
}
