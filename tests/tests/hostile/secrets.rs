//! Guesses at secrets, by the thousand.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{ATTACKER, Scene, again, client, say};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_secrets_do_not_lock_out_a_client_with_the_right_one() -> Result<()> {
    let scene = Scene::set(|options| options).await?;
    let url = format!("{}/v1/services/strict/tasks", scene.server.url());
    let guesser = client(Some(ATTACKER), false)?;
    let newcomer = std::sync::Mutex::new(None);
    scene
        .compare("wrong secrets", |attackers, stop| {
            for attacker in 0..32 {
                let (http, url) = (guesser.clone(), url.clone());
                // Some guess at clients that there are, others at any.
                attackers.spawn(again(stop.clone(), 10_000, async move |turn| {
                    let client_id = match attacker % 3 {
                        0 => "alice".to_owned(),
                        1 => "bob".to_owned(),
                        _ => format!("nobody-{attacker}-{turn}"),
                    };
                    let guess = format!("guess {attacker} {turn}");
                    let request = http.post(&url).basic_auth(client_id, Some(guess)).json(&json!({"body": {}}));
                    let _ = request.send().await;
                }));
            }
            // Somebody who was never seen before comes in the middle of it.
            let (http, url, seen) = (scene.http.clone(), url.clone(), &newcomer);
            let (told, begun) = (std::sync::mpsc::channel(), Instant::now());
            *seen.lock().unwrap() = Some(told.1);
            attackers.spawn(async move {
                let known = ("mallory", crate::secret("mallory"));
                let answer = http.get(url.replace("/strict/tasks", "")).basic_auth(known.0, Some(known.1)).send().await;
                let _ = told.0.send((answer.map(|answer| answer.status().as_u16()).ok(), begun.elapsed()));
            });
        })
        .await?;
    let receiver = newcomer.lock().unwrap().take().expect("the newcomer came");
    let (status, took) = receiver.recv()?;
    say(&format!("wrong secrets: somebody who was never seen before was let in after {took:?}"));
    ensure!(status == Some(200), "a client that was not remembered was answered {status:?}");
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    Ok(())
}
