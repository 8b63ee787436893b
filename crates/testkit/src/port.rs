//! Free loopback ports for servers that must be told their port.
//!
//! Does not reserve: between the answer and the server's own bind, another program could take the
//! port. The choice below makes that unlikely, and whoever starts a server reports a failed bind.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below Linux's range for outgoing connections (32768 and up). A port from that range could be
/// taken as some connection's local end while a killed server is down, and its restart on the
/// same port would fail.
const RANGE: Range<u16> = 20_000..32_000;

/// Returns a TCP port on 127.0.0.1 that nobody listens on, never the same one twice in a process.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static START: std::sync::LazyLock<u16> = std::sync::LazyLock::new(random_offset);

    let length = RANGE.end - RANGE.start;
    for _ in 0..length {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % length;
        let port = RANGE.start + (*START + offset) % length;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no free port on 127.0.0.1 in {RANGE:?}")))
}

/// Test processes run side by side; starting each one elsewhere keeps them apart.
fn random_offset() -> u16 {
    let random = RandomState::new().build_hasher().finish();
    (random % u64::from(RANGE.end - RANGE.start)) as u16
}
