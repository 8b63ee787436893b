//! Promises of the proxy, with a server that echoes.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use anyhow::Result;
use relais_testkit::TcpProxy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

async fn echo_server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    Ok(address)
}

async fn round_trip(stream: &mut TcpStream, text: &[u8]) -> Result<()> {
    stream.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, text);
    Ok(())
}

#[tokio::test]
async fn a_cut_closes_connections_and_refuses_new_ones_until_restored() -> Result<()> {
    let proxy = TcpProxy::start(echo_server().await?).await?;
    let mut before = TcpStream::connect(proxy.addr()).await?;
    round_trip(&mut before, b"before").await?;

    proxy.cut().await?;
    assert!(matches!(before.read(&mut [0; 1]).await, Ok(0) | Err(_)), "closed");
    let refused = TcpStream::connect(proxy.addr()).await.map(drop).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::ConnectionRefused));

    proxy.restore().await?;
    round_trip(&mut TcpStream::connect(proxy.addr()).await?, b"after").await
}

#[tokio::test]
async fn a_stall_holds_bytes_back_and_loses_none() -> Result<()> {
    let proxy = TcpProxy::start(echo_server().await?).await?;
    let mut old = TcpStream::connect(proxy.addr()).await?;
    round_trip(&mut old, b"before").await?;

    proxy.stall().await?;
    let mut new = TcpStream::connect(proxy.addr()).await?;
    for stream in [&mut old, &mut new] {
        stream.write_all(b"late").await?;
        let silence = timeout(Duration::from_millis(200), stream.read(&mut [0; 4])).await;
        assert!(silence.is_err(), "nothing passes");
    }

    proxy.restore().await?;
    for stream in [&mut old, &mut new] {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"late");
    }
    Ok(())
}

#[tokio::test]
async fn the_end_of_one_direction_is_passed_on() -> Result<()> {
    let proxy = TcpProxy::start(echo_server().await?).await?;
    let mut stream = TcpStream::connect(proxy.addr()).await?;
    stream.write_all(b"all of it").await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert_eq!(answer, "all of it");
    Ok(())
}

#[tokio::test]
async fn an_abandoned_connection_stays_open_and_silent_and_new_ones_work() -> Result<()> {
    let proxy = TcpProxy::start(echo_server().await?).await?;
    let mut old = TcpStream::connect(proxy.addr()).await?;
    round_trip(&mut old, b"before").await?;

    proxy.abandon().await?;
    old.write_all(b"lost").await?;
    round_trip(&mut TcpStream::connect(proxy.addr()).await?, b"new").await?;
    proxy.restore().await?;
    let silence = timeout(Duration::from_millis(200), old.read(&mut [0; 4])).await;
    assert!(silence.is_err(), "neither answered nor closed");
    Ok(())
}
