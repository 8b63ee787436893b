//! The examples, run as a user runs them.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use relais_testkit::ServerProcess;

const PATIENCE: Duration = Duration::from_secs(60);

/// How often it is looked what an example has printed.
const LOOK: Duration = Duration::from_millis(5);

/// An example as cargo has built it, with this port.
fn start(name: &str, port: &str) -> ServerProcess {
    // This test is in `deps`, and examples are beside that.
    let mut program: PathBuf = std::env::current_exe().unwrap();
    program.pop();
    program.set_file_name("examples");
    program.push(name);
    assert!(
        program.exists(),
        "{} is missing: `cargo build -p relais-engine --examples` makes it, and `cargo test` does unless it is told which test",
        program.display()
    );
    ServerProcess::spawn(program, [""; 0], [("PORT", port)]).unwrap()
}

/// Waits until a line that it prints begins like this, and tells the rest of that line.
async fn printed(example: &ServerProcess, start: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = example.stdout().unwrap();
        // A line that has not ended may be half of one.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        if let Some(rest) = lines.filter_map(|line| line.strip_prefix(start)).next() {
            return rest.to_owned();
        }
        assert!(Instant::now() < deadline, "no {start:?} in {text:?}\n{}", example.stderr().unwrap());
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test]
async fn the_example_of_tasks_greets() {
    let mut example = start("tasks", "0");
    assert!(example.wait_exit(PATIENCE).await.unwrap().success(), "{}", example.stderr().unwrap());
    let text = example.stdout().unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [r#"Success: "Hello, Ann!""#, "InstanceReport { done: 1, failed: 0, returned: 0, lost: 0 }"],
        "{text}"
    );
}

#[test]
fn the_example_of_tasks_is_as_short_as_the_guide_says() {
    let lines = include_str!("../examples/tasks.rs").lines().count();
    assert!(lines < 40, "{lines} lines");
}

#[tokio::test]
async fn the_example_of_a_shop_sends_a_receipt_for_every_order() {
    let mut example = start("shop", "0");
    let address = printed(&example, "listening on ").await;
    for (number, customer) in [(1, "ann"), (2, "bob")] {
        let order = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "60"])
            .args(["-X", "POST", &format!("{address}/orders"), "-d", customer])
            .output()
            .expect("curl is missing: the example's user has it");
        let answer = String::from_utf8(order.stdout).unwrap();
        let why = String::from_utf8_lossy(&order.stderr);
        assert!(answer.starts_with(&format!("order {number}, its receipt is task ")), "{answer:?} {why}");
        let receipt = printed(&example, &format!("to {customer}: ")).await;
        assert_eq!(receipt, format!("thank you for order {number} (attempt Some(1))"));
    }
    // As by a user who presses Ctrl-C.
    let stopped = Command::new("sh").args(["-c", &format!("kill -INT {}", example.id())]).status().unwrap();
    assert!(stopped.success());
    assert!(example.wait_exit(PATIENCE).await.unwrap().success(), "{}", example.stderr().unwrap());
    let report = printed(&example, "InstanceReport ").await;
    assert_eq!(report, "{ done: 2, failed: 0, returned: 0, lost: 0 }");
}
