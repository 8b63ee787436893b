//! Metric labels that a stranger chooses.

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{Scene, again, say};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_and_addresses_that_nobody_knows_do_not_grow_the_metrics() -> Result<()> {
    let scene = Scene::set(|options| options).await?;
    let address = scene.address()?;
    let metrics = async || -> Result<usize> {
        Ok(scene.http.get(format!("{}/metrics", scene.server.url())).send().await?.text().await?.len())
    };
    scene.ask().await?;
    let before = metrics().await?;
    scene
        .compare("unknown methods", |attackers, stop| {
            for attacker in 0..4 {
                attackers.spawn(again(stop.clone(), 500, async move |turn| {
                    let word = format!("A{attacker}B{turn}{}", "X".repeat(5_000));
                    let Ok(mut stream) = TcpStream::connect(address).await else { return };
                    let request = format!("{word} /{word} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
                    let _ = stream.write_all(request.as_bytes()).await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }));
            }
        })
        .await?;
    let after = metrics().await?;
    say(&format!("unknown methods: /metrics has {before} bytes before and {after} after"));
    ensure!(after < before + 50_000, "/metrics grew from {before} to {after} bytes");
    Ok(())
}
