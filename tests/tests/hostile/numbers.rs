//! Small bodies that are slow to validate.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{ATTACKER, Scene, again, client, secret};

/// Numbers that are short to write and long to write out.
fn long_numbers(field: &str) -> String {
    let numbers: Vec<String> = (0..700).map(|n| format!("1e{}", 9_000 + n)).collect();
    format!(r#"{{"body":{{"{field}":[{}]}}}}"#, numbers.join(","))
}

/// Numbers that are one and the same to a float, and arrays that are one and the same to a hash of what is in them.
fn colliding(count: usize) -> String {
    let numbers = (0..count).map(|n| format!("1.{:030}", n + 1));
    let brackets = (0..count).map(|n| {
        let bits: Vec<&str> = (0..12).map(|bit| ["[]", "[[]]"][(n >> bit) & 1]).collect();
        format!("[{}]", bits.join(","))
    });
    format!(r#"{{"body":{{"items":[{}]}}}}"#, numbers.chain(brackets).collect::<Vec<_>>().join(","))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_slow_to_validate_do_not_slow_down_others() -> Result<()> {
    let scene = Scene::set(|options| options).await?;
    let url = format!("{}/v1/services/unique/tasks", scene.server.url());
    let send = async |http: &reqwest::Client, body: String| {
        let request = http.post(&url).basic_auth("mallory", Some(secret("mallory")));
        request.header("content-type", "application/json").body(body).send().await
    };
    let http = client(Some(ATTACKER), false)?;
    for field in ["items", "steps"] {
        let refused = send(&http, long_numbers(field)).await?;
        let status = refused.status();
        let refusal: Value = refused.json().await?;
        ensure!(status == 400 && refusal["error"]["number"] == 400_013, "{status}: {refusal}");
    }
    for (what, body) in [("long numbers", long_numbers("items")), ("colliding items", colliding(300))] {
        scene
            .compare(what, |attackers, stop| {
                for _ in 0..4 {
                    let (http, url, stop, body) = (http.clone(), url.clone(), stop.clone(), body.clone());
                    attackers.spawn(again(stop, 5_000, async move |_| {
                        let request = http.post(&url).basic_auth("mallory", Some(secret("mallory")));
                        let _ = request.header("content-type", "application/json").body(body.clone()).send().await;
                    }));
                }
            })
            .await?;
    }
    Ok(())
}
