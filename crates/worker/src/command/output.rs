//! What a command says: its response on stdout, progress and log lines on stderr. All of it is bounded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Context;

/// How much of the end of stderr goes into an error message.
const TAIL: usize = 4 * 1024;

/// So much is read at once.
const CHUNK: usize = 8 * 1024;

/// A line of stderr that is longer is cut into lines of this length.
const LINE: usize = 8 * 1024;

/// What a command has said so far. It is shared with those who read it, so that what has arrived counts even if the end
/// never does: something that the command left behind may hold its output open.
#[derive(Debug, Clone, Default)]
pub(super) struct Said(Arc<Mutex<Words>>);

#[derive(Debug, Default)]
struct Words {
    stdout: Vec<u8>,
    too_much: bool,
    tail: Tail,
    /// A line of stderr that has not ended.
    line: Vec<u8>,
}

impl Said {
    /// Whether more came on stdout than may.
    pub fn too_much(&self) -> bool {
        self.words().too_much
    }

    pub fn take_stdout(&self) -> Vec<u8> {
        std::mem::take(&mut self.words().stdout)
    }

    /// The end of stderr.
    pub fn take_tail(&self) -> String {
        let mut words = self.words();
        let rest = std::mem::take(&mut words.line);
        let rest = String::from_utf8_lossy(&rest);
        if !rest.is_empty() && progress(rest.trim_end()).is_none() {
            words.tail.push(rest.trim_end());
        }
        std::mem::take(&mut words.tail).text()
    }

    /// Reads stdout to its end, or until there is more than may be.
    pub async fn read_stdout(&self, mut stdout: impl AsyncRead + Unpin, limit: usize) {
        let mut chunk = vec![0; CHUNK];
        // What can not be read is not there; the exit code says how it went.
        while let Ok(read @ 1..) = stdout.read(&mut chunk).await {
            let mut words = self.words();
            words.stdout.extend_from_slice(&chunk[..read]);
            if words.stdout.len() > limit {
                words.too_much = true;
                return;
            }
        }
    }

    /// Reads stderr to its end, line by line.
    pub async fn read_stderr(&self, mut stderr: impl AsyncRead + Unpin, context: &Context) {
        let mut chunk = vec![0; CHUNK];
        while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
            let mut words = self.words();
            for &byte in &chunk[..read] {
                if byte == b'\n' || words.line.len() == LINE {
                    words.heed(context);
                }
                if byte != b'\n' {
                    words.line.push(byte);
                }
            }
        }
        let mut words = self.words();
        if !words.line.is_empty() {
            words.heed(context);
        }
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        // Bytes that were added half way are still bytes that came.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Words {
    /// The line has ended.
    fn heed(&mut self, context: &Context) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if let Some(percent) = progress(text) {
            return context.progress(percent);
        }
        tracing::info!("{text}");
        self.tail.push(text);
    }
}

/// All of it if it is one JSON value, else its last line that is one, else null.
pub(super) fn response(stdout: &[u8]) -> Box<RawValue> {
    let json = |text: &[u8]| serde_json::from_slice::<Box<RawValue>>(text.trim_ascii()).ok();
    let lines = || stdout.rsplit(|byte| *byte == b'\n').find_map(json);
    json(stdout).or_else(lines).unwrap_or_else(|| RawValue::NULL.to_owned())
}

/// `progress 42`, `progress 42.5`, `progress 42%`.
fn progress(line: &str) -> Option<f64> {
    let number = line.strip_prefix("progress ")?.trim();
    let percent: f64 = number.strip_suffix('%').unwrap_or(number).parse().ok()?;
    percent.is_finite().then_some(percent)
}

/// The last lines, of a limited length together.
#[derive(Debug, Default)]
struct Tail(String);

impl Tail {
    fn push(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
        if self.0.len() > TAIL {
            let from = self.0.len() - TAIL;
            let from = (from..self.0.len()).find(|&at| self.0.is_char_boundary(at)).unwrap_or(self.0.len());
            self.0.drain(..from);
        }
    }

    fn text(&self) -> String {
        self.0.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use relais_protocol::worker::MAX_MESSAGES;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[test]
    fn the_response_is_the_last_json_there_is() {
        for (stdout, expected) in [
            ("", "null"),
            ("done.\n", "null"),
            ("{\"a\": 1e400}\n", "{\"a\": 1e400}"),
            ("starting\n{\"a\":1}\n{\"a\":2}", "{\"a\":2}"),
            ("{\"a\":1}\r\nbye\n\n", "{\"a\":1}"),
            ("[\n  1,\n  2\n]\n", "[\n  1,\n  2\n]"),
            ("1\n2\n", "2"),
            ("\"é\"\n", "\"é\""),
        ] {
            assert_eq!(response(stdout.as_bytes()).get(), expected, "{stdout}");
        }
        assert_eq!(response(b"{\"a\":1}\n\xff\xfe\n").get(), "{\"a\":1}");
    }

    #[tokio::test]
    async fn stdout_is_read_up_to_its_limit() {
        let said = Said::default();
        said.read_stdout(&b"12345"[..], 5).await;
        assert!(!said.too_much() && said.take_stdout() == b"12345");
        said.read_stdout(&b"123456"[..], 5).await;
        assert!(said.too_much());
        let said = Said::default();
        said.read_stdout(tokio::io::repeat(b'x'), 100_000).await;
        assert!(said.too_much() && said.take_stdout().len() <= 100_000 + CHUNK);
    }

    async fn tail_of(stderr: impl AsyncRead + Unpin, context: &Context) -> String {
        let said = Said::default();
        said.read_stderr(stderr, context).await;
        said.take_tail()
    }

    #[tokio::test]
    async fn progress_on_stderr_is_reported_and_the_tail_is_kept() {
        let (context, report_queue) = crate::context::cancelled_by(CancellationToken::new());
        let text = b"progress 10\nprogress report\nprogress 42.5%\nprogress NaN\nno \xff paper";
        let tail = tail_of(&text[..], &context).await;
        assert_eq!(tail, "progress report\nprogress NaN\nno \u{fffd} paper");
        let notes = report_queue.take_notes(Instant::now()).await;
        assert_eq!(notes[0].1.progress, Some(42.5));
        assert!(notes.len() < MAX_MESSAGES);
    }

    #[tokio::test]
    async fn a_flood_on_stderr_leaves_only_its_end() {
        let context = crate::context::cancelled_by(CancellationToken::new()).0;
        let mut flood = "é".repeat(1 << 20);
        flood.push_str("\nlast words");
        let tail = tail_of(flood.as_bytes(), &context).await;
        assert!(tail.len() <= TAIL && tail.ends_with("é\nlast words"), "{} bytes", tail.len());
        let tail = tail_of(&[0xff; 100_000][..], &context).await;
        assert!(tail.len() <= TAIL);
    }
}
