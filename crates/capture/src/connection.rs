//! A connection in replication mode: start, authentication, commands, copying both ways.
//!
//! It never creates a slot and never connects again by itself: whoever has it decides both.

use std::{io, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use postgres_protocol::authentication::{
    md5_hash,
    sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    Address, CaptureError,
    address::ChannelBindingMode,
    tls::{self, Reached},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// How long connecting and each command may take; creating a slot has no limit, since it waits for open transactions.
pub(crate) const ANSWER: Duration = Duration::from_secs(15);

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// How values look as text, whatever the server's own settings.
pub(crate) const SETTINGS: [(&str, &str); 6] = [
    ("datestyle", "ISO"),
    ("intervalstyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("timezone", "UTC"),
    ("lc_monetary", "C"),
];

pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// One message of the server.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) tag: u8,
    pub(crate) body: Bytes,
}

/// A connection in replication mode.
pub struct ReplicationConnection {
    wire: Box<dyn Wire>,
    /// What authentication can be bound to.
    end_point: Option<Vec<u8>>,
    address: Address,
    /// What was read and not yet understood. A call that is dropped leaves it whole.
    buffer: BytesMut,
    /// No message may be larger.
    limit: usize,
    version: u32,
}

/// What IDENTIFY_SYSTEM says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Which cluster it is. A restored copy has the same.
    pub system: String,
    /// Its timeline: grows with each promotion.
    pub timeline: u32,
    /// Where its WAL ends.
    pub wal_end: u64,
}

impl ReplicationConnection {
    /// Connects and authenticates.
    pub async fn connect(address: &Address, limit: usize) -> Result<Self> {
        let connecting = async {
            let Reached { wire, end_point } = tls::connect(address).await?;
            let (address, buffer) = (address.clone(), BytesMut::with_capacity(CHUNK));
            let mut connection = Self { wire, end_point, address, buffer, limit, version: 0 };
            connection.start().await?;
            Ok(connection)
        };
        timeout(ANSWER, connecting).await.map_err(|_| silent(address))?
    }

    /// The server's version, as in `server_version_num`: 150004.
    pub fn version(&self) -> u32 {
        self.version
    }

    async fn start(&mut self) -> Result<()> {
        let mut body = BytesMut::new();
        body.put_u32(196_608); // Protocol 3.0.
        let named = [
            ("user", self.address.user.as_str()),
            ("database", &self.address.database),
            ("replication", "database"),
            ("application_name", "relais capture"),
            ("client_encoding", "UTF8"),
        ];
        for (name, value) in named.into_iter().chain(SETTINGS) {
            for text in [name, value] {
                body.put_slice(text.as_bytes());
                body.put_u8(0);
            }
        }
        body.put_u8(0);
        let mut message = BytesMut::new();
        message.put_u32(length(body.len() + 4)?);
        message.put_slice(&body);
        self.write(&message).await?;
        self.authenticate().await?;
        loop {
            let frame = self.read().await?;
            match frame.tag {
                b'S' => self.note_parameter(&frame.body),
                b'Z' => return Ok(()),
                b'E' => return Err(server_error(&frame.body)),
                _ => {}
            }
        }
    }

    fn note_parameter(&mut self, body: &[u8]) {
        let mut texts = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        if texts.next().as_deref() == Some("server_version") {
            self.version = texts.next().map_or(0, |text| version_number(&text));
        }
    }

    async fn authenticate(&mut self) -> Result<()> {
        let must_bind = self.address.channel_binding == ChannelBindingMode::Require;
        let mut bound = false;
        loop {
            let Frame { tag, mut body } = self.read().await?;
            match tag {
                b'E' => return Err(server_error(&body)),
                b'R' if body.len() >= 4 => {}
                b'N' => continue,
                _ => return Err(protocol(format!("message {:?} instead of authentication", tag as char))),
            }
            match body.get_u32() {
                // Before a password is sent.
                0 | 3 | 5 if must_bind && !bound => return Err(unbound()),
                0 => return Ok(()),
                3 => {
                    let password = self.password()?;
                    self.send_password(password.as_bytes()).await?;
                }
                5 if body.len() >= 4 => {
                    let salt = [body[0], body[1], body[2], body[3]];
                    let hash = md5_hash(self.address.user.as_bytes(), self.password()?.as_bytes(), salt);
                    self.send_password(hash.as_bytes()).await?;
                }
                10 => bound = self.scram(&body).await?,
                other => return Err(CaptureError::Authentication(format!("the server asks for type {other}"))),
            }
        }
    }

    fn password(&self) -> Result<String> {
        let missing =
            || CaptureError::Authentication("the server asks for a password, and the URL has none".to_owned());
        self.address.password.clone().ok_or_else(missing)
    }

    async fn send_password(&mut self, password: &[u8]) -> Result<()> {
        let mut body = BytesMut::from(password);
        body.put_u8(0);
        self.send(b'p', &body).await
    }

    /// SCRAM by one of the mechanisms that the server offers; whether it is bound to the TLS connection.
    async fn scram(&mut self, offered: &[u8]) -> Result<bool> {
        let offers = |mechanism: &str| offered.split(|byte| *byte == 0).any(|name| name == mechanism.as_bytes());
        let wanted = self.address.channel_binding;
        let end_point = self.end_point.clone().filter(|_| wanted != ChannelBindingMode::Disable);
        let (mechanism, binding) = match end_point {
            Some(end_point) if offers(SCRAM_SHA_256_PLUS) => {
                (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(end_point))
            }
            _ if wanted == ChannelBindingMode::Require => return Err(unbound()),
            _ if !offers(SCRAM_SHA_256) => {
                let offered = String::from_utf8_lossy(offered).replace('\0', " ");
                return Err(CaptureError::Authentication(format!("the server offers {}", offered.trim_end())));
            }
            // The server does not believe it if it did offer to bind, and somebody between took that out.
            Some(_) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            None => (SCRAM_SHA_256, ChannelBinding::unsupported()),
        };
        let mut scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        let mut body = BytesMut::from(mechanism.as_bytes());
        body.put_u8(0);
        body.put_u32(length(scram.message().len())?);
        body.put_slice(scram.message());
        self.send(b'p', &body).await?;
        for (wanted, last) in [(11, false), (12, true)] {
            let Frame { tag, mut body } = self.read().await?;
            match tag {
                b'E' => return Err(server_error(&body)),
                b'R' if body.len() >= 4 && body.get_u32() == wanted => {}
                _ => return Err(protocol("the exchange of passwords is out of step")),
            }
            let failed = |error: io::Error| CaptureError::Authentication(error.to_string());
            if last {
                scram.finish(&body).map_err(failed)?;
            } else {
                scram.update(&body).map_err(failed)?;
                let answer = scram.message().to_vec();
                self.send(b'p', &answer).await?;
            }
        }
        Ok(mechanism == SCRAM_SHA_256_PLUS)
    }

    /// Runs a command, and gives the rows of its answer.
    pub async fn query(&mut self, command: &str) -> Result<Vec<Vec<Option<String>>>> {
        let address = self.address.clone();
        timeout(ANSWER, self.query_unbounded(command)).await.map_err(|_| silent(&address))?
    }

    /// Runs a command that may take as long as it likes.
    pub(crate) async fn query_unbounded(&mut self, command: &str) -> Result<Vec<Vec<Option<String>>>> {
        let mut body = BytesMut::from(command.as_bytes());
        body.put_u8(0);
        self.send(b'Q', &body).await?;
        let (mut rows, mut failed) = (Vec::new(), None);
        loop {
            let frame = self.read().await?;
            match frame.tag {
                b'D' => rows.push(data_row(frame.body)?),
                b'E' => failed = Some(server_error(&frame.body)),
                b'Z' => return failed.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Which cluster it is, and where its WAL ends.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity> {
        let rows = self.query("IDENTIFY_SYSTEM").await?;
        let column =
            |number: usize| rows.first().and_then(|row| row.get(number).cloned().flatten()).unwrap_or_default();
        Ok(SystemIdentity {
            system: column(0),
            timeline: column(1).parse().map_err(|_| protocol("IDENTIFY_SYSTEM has no timeline"))?,
            wal_end: parse_lsn(&column(2)).ok_or_else(|| protocol("IDENTIFY_SYSTEM has no position"))?,
        })
    }

    /// Where a timeline ended, by the history of a later one; none if that does not know it.
    pub(crate) async fn timeline_switch(&mut self, now: u32, before: u32) -> Result<Option<u64>> {
        let rows = self.query(&format!("TIMELINE_HISTORY {now}")).await?;
        let history = rows.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten()).unwrap_or_default();
        Ok(history.lines().find_map(|line| {
            let mut columns = line.split_whitespace();
            let timeline: u32 = columns.next()?.parse().ok()?;
            if timeline == before { parse_lsn(columns.next()?) } else { None }
        }))
    }

    /// Begins to copy both ways.
    pub(crate) async fn start_copy(&mut self, command: &str) -> Result<()> {
        let mut body = BytesMut::from(command.as_bytes());
        body.put_u8(0);
        self.send(b'Q', &body).await?;
        let address = self.address.clone();
        let answer = async {
            loop {
                let frame = self.read().await?;
                match frame.tag {
                    b'W' => return Ok(()),
                    b'E' => return Err(server_error(&frame.body)),
                    b'N' | b'S' => {}
                    other => return Err(protocol(format!("message {:?} instead of the stream", other as char))),
                }
            }
        };
        timeout(ANSWER, answer).await.map_err(|_| silent(&address))?
    }

    /// The next message, if it was read already.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>> {
        if self.buffer.len() < 5 {
            return Ok(None);
        }
        let bytes = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]) as usize;
        if bytes < 4 {
            return Err(protocol("a message shorter than its own length"));
        }
        if bytes > self.limit {
            return Err(CaptureError::TooLarge { bytes, limit: self.limit });
        }
        if self.buffer.len() < bytes + 1 {
            // Large messages are not copied again and again while they grow.
            self.buffer.reserve(bytes + 1 - self.buffer.len());
            return Ok(None);
        }
        let mut message = self.buffer.split_to(bytes + 1).freeze();
        let tag = message.get_u8();
        message.advance(4);
        Ok(Some(Frame { tag, body: message }))
    }

    /// Reads more. Nothing is lost if it is dropped before it is done.
    pub(crate) async fn fill(&mut self) -> Result<()> {
        if self.buffer.capacity() - self.buffer.len() < CHUNK / 4 {
            self.buffer.reserve(CHUNK);
        }
        match self.wire.read_buf(&mut self.buffer).await {
            Ok(0) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// The next message.
    pub(crate) async fn read(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Sends one message.
    pub(crate) async fn send(&mut self, tag: u8, body: &[u8]) -> Result<()> {
        let mut message = BytesMut::with_capacity(body.len() + 5);
        message.put_u8(tag);
        message.put_u32(length(body.len() + 4)?);
        message.put_slice(body);
        self.write(&message).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = async {
            self.wire.write_all(bytes).await?;
            self.wire.flush().await
        };
        match timeout(ANSWER, written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.lost(error)),
            Err(_) => Err(silent(&self.address)),
        }
    }

    fn lost(&self, source: io::Error) -> CaptureError {
        CaptureError::Connection { address: self.address.to_string(), source }
    }
}

impl std::fmt::Debug for ReplicationConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicationConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

fn unbound() -> CaptureError {
    CaptureError::Authentication("the URL requires channel binding, and the server does not offer it".to_owned())
}

fn silent(address: &Address) -> CaptureError {
    CaptureError::Silent { address: address.to_string(), within: ANSWER }
}

pub(crate) fn protocol(what: impl Into<String>) -> CaptureError {
    CaptureError::Protocol(what.into())
}

fn length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| protocol("a message that is too long to be sent"))
}

/// What an ErrorResponse says.
pub(crate) fn server_error(body: &[u8]) -> CaptureError {
    let (mut code, mut message) = (String::new(), String::new());
    for field in body.split(|byte| *byte == 0) {
        match field.split_first() {
            Some((b'C', text)) => code = String::from_utf8_lossy(text).into_owned(),
            Some((b'M', text)) => message = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    CaptureError::Server { code, message }
}

fn data_row(mut body: Bytes) -> Result<Vec<Option<String>>> {
    let short = || protocol("a row that ends too early");
    if body.len() < 2 {
        return Err(short());
    }
    let number = body.get_u16();
    let mut row = Vec::with_capacity(number.into());
    for _ in 0..number {
        if body.len() < 4 {
            return Err(short());
        }
        let Ok(bytes) = usize::try_from(body.get_i32()) else {
            row.push(None);
            continue;
        };
        if body.len() < bytes {
            return Err(short());
        }
        row.push(Some(String::from_utf8_lossy(&body.split_to(bytes)).into_owned()));
    }
    Ok(row)
}

/// `15.4 (Debian …)` is 150004.
fn version_number(text: &str) -> u32 {
    let digits =
        |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0_u32);
    let mut parts = text.split('.');
    parts.next().map_or(0, digits) * 10_000 + parts.next().map_or(0, digits)
}

/// Reads `16/B374D848`.
pub fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    Some(u64::from(u32::from_str_radix(high, 16).ok()?) << 32 | u64::from(u32::from_str_radix(low, 16).ok()?))
}

/// Writes `16/B374D848`.
pub fn format_lsn(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

/// A name in SQL or in a replication command.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in SQL or in a replication command.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsns_are_read_and_written() {
        assert_eq!(parse_lsn("16/B374D848"), Some(0x16_B374_D848));
        assert_eq!(format_lsn(0x16_B374_D848), "16/B374D848");
        assert_eq!(parse_lsn("16"), None);
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version_number("15.4 (Debian 15.4-1)"), 150_004);
        assert_eq!(version_number("18beta1"), 180_000);
    }
}
