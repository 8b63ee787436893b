//! Traces leave the process as OTLP: a receiver on loopback takes what the real binary sends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod joined;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use relais_testkit::free_port;

const PATIENCE: Duration = Duration::from_secs(30);

/// Ends the server whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads one HTTP request with a body, answers 200, and returns its head and body.
fn receive(stream: &mut TcpStream) -> (String, Vec<u8>) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let head_end = loop {
        let read = stream.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..read]);
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        assert!(read > 0, "the exporter hung up");
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).to_lowercase();
    let length: usize =
        head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap().trim().parse().unwrap();
    while bytes.len() < head_end + length {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the exporter hung up");
        bytes.extend_from_slice(&buffer[..read]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    (head, bytes.split_off(head_end))
}

/// The next connection, or a failure when it does not come in time.
fn accept(receiver: &TcpListener, deadline: Instant) -> TcpStream {
    receiver.set_nonblocking(true).unwrap();
    loop {
        match receiver.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "no span of the request was sent");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn get(address: &str, path: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains(" 200 ")
}

#[test]
fn spans_of_requests_and_store_calls_are_exported() {
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_relais"))
        .args(["serve", "--listen", &address])
        .arg("--database")
        .arg(format!("sqlite:{}", folder.path().join("relais.db").display()))
        .env("RELAIS_TELEMETRY_OTLP_ENDPOINT", format!("http://{}", receiver.local_addr().unwrap()))
        .env("RELAIS_TELEMETRY_SERVICE_NAME", "relais-under-test")
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Running(child);
    let begun = Instant::now();
    while !get(&address, "/readyz") {
        assert!(begun.elapsed() < PATIENCE, "the server did not become ready");
        std::thread::yield_now();
    }
    let has = |body: &[u8], text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    // Spans that end one after the other may be sent one after the other.
    let mut sent = Vec::new();
    while !["GET /readyz", "store", "ping"].iter().all(|word| has(&sent, word)) {
        let mut stream = accept(&receiver, begun + PATIENCE);
        let (head, body) = receive(&mut stream);
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(has(&body, "relais-under-test"));
        sent.extend(body);
    }
}
