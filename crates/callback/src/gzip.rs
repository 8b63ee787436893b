//! Compression of bodies, for callback senders of all kinds.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};

/// A body of this size takes so long to compress that others would notice.
const LARGE_BODY: usize = 64 * 1024;

/// Compresses a body, out of everybody's way if it is a large one.
pub(crate) async fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    if body.len() < LARGE_BODY {
        return compress(body);
    }
    let body = body.to_vec();
    let compressing = tokio::task::spawn_blocking(move || compress(&body));
    compressing.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn compress(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}
