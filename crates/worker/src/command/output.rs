//! What a command says: its response on stdout, progress and log lines on stderr. All of it is bounded.

use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Context;

/// How much of the end of stderr goes into an error message.
const TAIL: usize = 4 * 1024;

/// A line of stderr that is longer is cut into lines of this length.
const LINE: usize = 8 * 1024;

/// More came on stdout than may.
#[derive(Debug)]
pub(super) struct TooMuch;

/// Reads stdout to its end, or until there is more than may be.
pub(super) async fn read_stdout(stdout: impl AsyncRead + Unpin, limit: usize) -> Result<Vec<u8>, TooMuch> {
    let mut text = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    // What can not be read is not there; the exit code says how it went.
    let _ = stdout.take(most).read_to_end(&mut text).await;
    if text.len() > limit { Err(TooMuch) } else { Ok(text) }
}

/// All of it if it is one JSON value, else its last line that is one, else null.
pub(super) fn response(stdout: &[u8]) -> Box<RawValue> {
    let json = |text: &[u8]| serde_json::from_slice::<Box<RawValue>>(text.trim_ascii()).ok();
    let lines = || stdout.rsplit(|byte| *byte == b'\n').find_map(json);
    json(stdout).or_else(lines).unwrap_or_else(|| RawValue::NULL.to_owned())
}

/// Reads stderr to its end, line by line, and gives the end of it.
pub(super) async fn read_stderr(mut stderr: impl AsyncRead + Unpin, context: &Context) -> String {
    let mut tail = Tail::default();
    let mut line = Vec::new();
    let mut chunk = vec![0; 4 * 1024];
    loop {
        let read = stderr.read(&mut chunk).await.unwrap_or(0);
        for &byte in &chunk[..read] {
            if byte == b'\n' || line.len() == LINE {
                heed(&line, context, &mut tail);
                line.clear();
            }
            if byte != b'\n' {
                line.push(byte);
            }
        }
        if read == 0 {
            if !line.is_empty() {
                heed(&line, context, &mut tail);
            }
            return tail.text();
        }
    }
}

fn heed(line: &[u8], context: &Context, tail: &mut Tail) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if let Some(percent) = progress(text) {
        return context.progress(percent);
    }
    tracing::info!("{text}");
    tail.push(text);
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
        assert_eq!(read_stdout(&b"12345"[..], 5).await.unwrap(), b"12345");
        assert!(read_stdout(&b"123456"[..], 5).await.is_err());
        assert!(read_stdout(tokio::io::repeat(b'x'), 100_000).await.is_err());
    }

    #[tokio::test]
    async fn progress_is_told_and_the_end_of_the_rest_is_kept() {
        let (context, outbox) = crate::context::cancelled_by(CancellationToken::new());
        let text = b"progress 10\nprogress report\nprogress 42.5%\nprogress NaN\nno \xff paper";
        let tail = read_stderr(&text[..], &context).await;
        assert_eq!(tail, "progress report\nprogress NaN\nno \u{fffd} paper");
        let notes = outbox.take_notes(Instant::now()).await;
        assert_eq!(notes[0].1.progress, Some(42.5));
        assert!(notes.len() < MAX_MESSAGES);
    }

    #[tokio::test]
    async fn a_flood_on_stderr_leaves_only_its_end() {
        let context = crate::context::cancelled_by(CancellationToken::new()).0;
        let mut flood = "é".repeat(1 << 20);
        flood.push_str("\nlast words");
        let tail = read_stderr(flood.as_bytes(), &context).await;
        assert!(tail.len() <= TAIL && tail.ends_with("é\nlast words"), "{} bytes", tail.len());
        let tail = read_stderr(&[0xff; 100_000][..], &context).await;
        assert!(tail.len() <= TAIL);
    }
}
