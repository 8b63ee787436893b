//! Connections that are held and not used.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{ATTACKER, Scene, again, client};

/// What somebody sends who wants to keep a connection: half a head, half a form, and requests whose answers are not
/// read.
const HALF_HEAD: &str = "GET /healthz HTTP/1.1\r\nhost: h\r\nx-slow: ";
const HALF_FORM: &str = "POST /ui/sign-in HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\ntoken=";
const UNREAD: &str = "GET /openapi.json HTTP/1.1\r\nhost: h\r\n\r\n";

async fn connect(address: std::net::SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind((ATTACKER, 0).into()).ok()?;
    socket.connect(address).await.ok()
}

/// Holds connections until they are closed, and then others.
async fn hold(address: std::net::SocketAddr, sent: String, is_read: bool) {
    let Some(mut stream) = connect(address).await else { return };
    let _ = stream.write_all(sent.as_bytes()).await;
    if is_read {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    } else {
        // Whoever does not read hears of the end all the same.
        while stream.ready(tokio::io::Interest::ERROR).await.is_ok_and(|ready| !ready.is_error()) {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_held_leave_places_for_others() -> Result<()> {
    let mut scene = Scene::set(|options| options.env("RELAIS_SERVER_MAX_CONNECTIONS", "64")).await?;
    // Each request needs a place of its own.
    scene.http = client(None, true)?;
    let address = scene.address()?;
    scene
        .compare("held connections", |attackers, stop| {
            for attacker in 0..96 {
                let (sent, is_read) = match attacker % 3 {
                    0 => (HALF_HEAD.to_owned(), true),
                    1 => (HALF_FORM.to_owned(), true),
                    _ => (UNREAD.repeat(200), false),
                };
                attackers.spawn(again(stop.clone(), 10_000, async move |_| hold(address, sent.clone(), is_read).await));
            }
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_form_times_out() -> Result<()> {
    let scene = Scene::set(|options| options.env("RELAIS_SERVER_REQUEST_TIMEOUT", "200ms")).await?;
    let mut stream = connect(scene.address()?).await.expect("a connection");
    stream.write_all(HALF_FORM.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_string(&mut answer)).await??;
    ensure!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    Ok(())
}
