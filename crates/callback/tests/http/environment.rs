//! What the environment of the process says. Each test here carries a delivery in a process of its own, because
//! changing the environment would change it for all tests.

use std::process::Stdio;

use relais_core::ReplyOutcome;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{receiver::Receiver, support::*};

const TARGET: &str = "RELAIS_TEST_CALLBACK_TARGET";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Another process, which carries one delivery there.
fn another(target: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "environment::sends_one_callback_for_the_parent_process", "--ignored"]).env(TARGET, target);
    child.stdin(Stdio::null()).kill_on_drop(true);
    child
}

async fn succeeds(mut child: Command) {
    let output = soon(child.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Proxies would connect to what nobody has checked.
#[tokio::test]
async fn proxies_in_the_environment_are_ignored() {
    let mut receiver = Receiver::answering(OK).await;
    let proxy = Receiver::answering(OK).await;
    let mut child = another(&receiver.url());
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        for name in [name.to_owned(), name.to_uppercase()] {
            child.env(name, format!("http://{}", proxy.address));
        }
    }
    for name in ["no_proxy", "NO_PROXY", "REQUEST_METHOD"] {
        child.env_remove(name);
    }
    succeeds(child).await;
    assert_eq!(proxy.connections(), 0);
    assert_eq!(receiver.request().await.line, "POST /hook?a=1 HTTP/1.1");
}

/// As in a minimal container image.
#[tokio::test]
async fn a_system_without_certificates_can_still_call_http() {
    let mut receiver = Receiver::answering(OK).await;
    let empty = TempDir::new().unwrap();
    std::fs::write(empty.path().join("none.pem"), "").unwrap();
    let mut child = another(&receiver.url());
    child.env("SSL_CERT_FILE", empty.path().join("none.pem")).env("SSL_CERT_DIR", empty.path());
    succeeds(child).await;
    assert_eq!(receiver.request().await.line, "POST /hook?a=1 HTTP/1.1");
}

#[tokio::test]
#[ignore = "the other half of the tests above, which run it in an environment of its own"]
async fn sends_one_callback_for_the_parent_process() {
    // Whoever runs all that is ignored did not mean this one.
    let Ok(target) = std::env::var(TARGET) else { return };
    let port = url::Url::parse(&target).unwrap().port().unwrap();
    assert_eq!(send(&callback_sender(options(port)), &target).await.outcome, ReplyOutcome::Delivered);
}
