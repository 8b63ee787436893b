//! `relais events`: follow the event bus of a server, publish on it, see what goes on in it.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use relais_protocol::events::{EventBusStats, PublishAnswer, StreamedEvent};
use serde_json::value::RawValue;

use super::{
    connection::{Connection, ConnectionArgs, Request},
    table::card,
};
use crate::output;

/// `relais events`
#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    /// Print events as they happen, until interrupted or until the server stops
    ///
    /// What becomes of tasks is on task.<service>.<what happened>: submitted, started, progress, returned, success, failure
    /// or cancelled. With --json, each event is one line of JSON.
    Tail {
        /// Channels or patterns: `*` is one word, `>` the rest; what becomes of tasks if absent
        #[arg(value_name = "PATTERN")]
        patterns: Vec<String>,
    },
    /// Publish an event
    Publish {
        /// Where, such as orders.created
        channel: String,
        /// What: any JSON
        #[arg(value_name = "JSON", value_parser = json)]
        payload: Box<RawValue>,
    },
    /// See what goes on in the server's event bus
    Stats,
}

fn json(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))
}

/// Runs it.
pub async fn run(args: EventsArgs) -> Result<()> {
    let connection = Connection::new(args.connection)?;
    match args.command {
        EventsCommand::Tail { patterns } => tail(&connection, patterns).await,
        EventsCommand::Publish { channel, payload } => {
            let body = serde_json::json!({"channel": channel, "payload": payload});
            let request = Request::post(["admin", "eventbus", "publish"], Some(&body))?;
            connection.print(request, published).await.map(drop)
        }
        EventsCommand::Stats => connection.print(Request::get(["admin", "eventbus", "stats"]), stats).await.map(drop),
    }
}

async fn tail(connection: &Connection, patterns: Vec<String>) -> Result<()> {
    let mut request = Request::get(["admin", "events"]);
    for pattern in patterns {
        request = request.with("channel", Some(pattern));
    }
    let mut response = connection.stream(request).await?;
    let mut reader = Reader::default();
    while let Some(chunk) = response.chunk().await.context("the connection to the server was lost")? {
        for frame in reader.read(&chunk) {
            let read_on = match frame.event.as_str() {
                "" if connection.json => output::line(&frame.data)?,
                "" => output::line(&line(&frame.data)?)?,
                "dropped" => {
                    output::note(&format!("events were lost, because they came too fast: {}", frame.data));
                    true
                }
                _ => {
                    output::note(&frame.data);
                    true
                }
            };
            if !read_on {
                return Ok(());
            }
        }
    }
    output::note("the server has ended the stream");
    Ok(())
}

/// An event for people.
fn line(data: &str) -> Result<String> {
    let event: StreamedEvent = serde_json::from_str(data).context("an event is not understood")?;
    Ok(format!("{}  {}  {}", event.timestamp, event.channel, event.payload.get()))
}

fn published(answer: &PublishAnswer) -> String {
    format!("{}  delivered {}, failed {}", answer.event_id, answer.delivered, answer.failed)
}

fn stats(stats: &EventBusStats) -> String {
    let health = match (&stats.error, stats.healthy) {
        (Some(error), _) => format!("{} (not connected: {error})", stats.state),
        (None, true) => stats.state.clone(),
        (None, false) => format!("{} (not connected)", stats.state),
    };
    let some = |value: &dyn std::fmt::Display| Some(value.to_string());
    card([
        ("state", Some(health)),
        ("transport", some(&stats.transport)),
        ("followed", some(&stats.followed)),
        ("published", some(&stats.published)),
        ("delivered", some(&stats.delivered)),
        ("failed", some(&stats.failed)),
        ("dropped", some(&stats.dropped)),
        ("dead letters", some(&stats.dead_lettered)),
        ("unpublished", some(&stats.unpublished)),
        ("subscriptions", some(&stats.subscriptions)),
        ("channels", some(&stats.channels)),
        ("waiting", Some(format!("{} of {}", stats.queue_size, stats.queue_capacity))),
        ("outages", some(&stats.outages)),
    ])
}

/// One event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    event: String,
    data: String,
}

/// Takes server-sent events out of bytes, wherever those were cut.
#[derive(Default)]
struct Reader {
    bytes: Vec<u8>,
    frame: Frame,
}

impl Reader {
    fn read(&mut self, chunk: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.bytes.extend_from_slice(chunk);
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                let frame = std::mem::take(&mut self.frame);
                if !frame.data.is_empty() {
                    frames.push(frame);
                }
            } else if let Some(data) = line.strip_prefix("data:") {
                self.frame.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            } else if let Some(event) = line.strip_prefix("event:") {
                event.trim().clone_into(&mut self.frame.event);
            }
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_wherever_it_is_cut() {
        let text = ": following\n\nid: 1\ndata: {\"a\":\"é\"}\n\n:\n\nevent: dropped\ndata: {\"dropped\":3}\n\n";
        let frames = |pieces: &[&[u8]]| {
            let mut reader = Reader::default();
            pieces.iter().flat_map(|piece| reader.read(piece)).collect::<Vec<_>>()
        };
        let whole = frames(&[text.as_bytes()]);
        assert_eq!(whole.len(), 2);
        assert_eq!((whole[0].event.as_str(), whole[0].data.as_str()), ("", "{\"a\":\"é\"}"));
        assert_eq!((whole[1].event.as_str(), whole[1].data.as_str()), ("dropped", "{\"dropped\":3}"));
        for cut in 0..text.len() {
            let (one, two) = text.as_bytes().split_at(cut);
            assert_eq!(frames(&[one, two]), whole, "cut at {cut}");
        }
    }
}
