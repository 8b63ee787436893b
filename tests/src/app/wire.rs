//! A bare TCP connection, for what no HTTP client would send.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::DEADLINE;

/// A connection whose every byte is the test's.
pub struct Wire(TcpStream);

impl Wire {
    pub(super) async fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap_or_else(|error| panic!("no connection: {error}")))
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap_or_else(|error| panic!("could not send: {error}"));
    }

    /// Hangs up: says that nothing more will be sent, and returns once the other side has closed the connection too.
    /// Gives what was received until then.
    pub async fn hang_up(mut self) -> String {
        self.0.shutdown().await.unwrap_or_else(|error| panic!("could not hang up: {error}"));
        self.rest().await
    }

    /// Everything until the other side closes the connection.
    pub async fn rest(mut self) -> String {
        let mut received = Vec::new();
        let read = tokio::time::timeout(DEADLINE, self.0.read_to_end(&mut received)).await;
        assert!(read.is_ok(), "the connection was not closed within {DEADLINE:?}");
        String::from_utf8_lossy(&received).into_owned()
    }

    /// Everything up to this text, and it.
    pub async fn until(&mut self, text: &str) -> String {
        let (mut received, mut part) = (Vec::new(), vec![0; 1 << 16]);
        let read = async {
            while !received.windows(text.len()).rev().take(part.len() + text.len()).any(|end| end == text.as_bytes()) {
                match self.0.read(&mut part).await {
                    Ok(bytes) if bytes > 0 => received.extend_from_slice(&part[..bytes]),
                    ended => panic!("the connection was closed before {text:?}: {ended:?}"),
                }
            }
        };
        assert!(tokio::time::timeout(DEADLINE, read).await.is_ok(), "{text:?} did not come within {DEADLINE:?}");
        String::from_utf8_lossy(&received).into_owned()
    }

    /// Reads so many bytes, whatever they say.
    pub async fn skip(&mut self, bytes: usize) {
        let mut skipped = vec![0; bytes];
        let read = tokio::time::timeout(DEADLINE, self.0.read_exact(&mut skipped)).await;
        assert!(matches!(read, Ok(Ok(_))), "{bytes} bytes did not come: {read:?}");
    }

    /// The head of the next answer, as far as the empty line.
    pub async fn head(&mut self) -> String {
        let mut received = Vec::new();
        let read = async {
            while !received.ends_with(b"\r\n\r\n") {
                match self.0.read_u8().await {
                    Ok(byte) => received.push(byte),
                    Err(_) => break,
                }
            }
        };
        assert!(tokio::time::timeout(DEADLINE, read).await.is_ok(), "no answer within {DEADLINE:?}");
        String::from_utf8_lossy(&received).into_owned()
    }
}

/// The `Authorization` header that a [`Caller`](super::Caller) with these credentials would send.
pub fn basic(client_id: &str, secret: &str) -> String {
    format!("Basic {}", base64(format!("{client_id}:{secret}").as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |chunk: &[u8]| {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digit = |n: usize| char::from(DIGITS[(bits >> (18 - 6 * n)) as usize & 63]);
        (0..4).map(move |n| if n <= chunk.len() { digit(n) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(encode).collect()
}
