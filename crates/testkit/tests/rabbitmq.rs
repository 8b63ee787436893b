//! Promises of the private RabbitMQ node and of the virtual hosts on it.

#![expect(clippy::unwrap_used, reason = "tests say what they expect")]

use std::{
    io::{self, BufRead, BufReader, Read},
    net::TcpStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use relais_testkit::TestVhost;

/// Longer than a node takes to go away.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn two_virtual_hosts_do_not_see_each_other_and_are_gone_when_dropped() -> Result<()> {
    let (one, two) = tokio::try_join!(TestVhost::create(), TestVhost::create())?;
    assert_ne!(one.name(), two.name());
    assert!(one.url().ends_with(one.name()));
    one.declare_queue("tasks").await?;
    assert!(one.take("tasks", 1).await.is_ok());
    assert!(two.take("tasks", 1).await.is_err(), "a queue of another virtual host");

    two.declare_exchange("events", "fanout").await?;
    two.declare_queue("tasks").await?;
    two.bind("events", "tasks", "").await?;
    two.delete_queue("tasks").await?;
    assert!(two.take("tasks", 1).await.is_err());
    two.drop_now().await?;
    Ok(())
}

#[tokio::test]
async fn a_killed_owner_leaves_neither_a_node_nor_a_port_mapper_behind() -> Result<()> {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_relais-testkit-rabbitmq"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(owner.stdout.take().context("piped")?).read_line(&mut line)?;
    let address = line.trim().split(['@', '?']).nth(1).context("a URL")?.to_owned();
    TcpStream::connect(&address)?;
    let of_ours = processes_of(owner.id());
    assert!(of_ours.iter().any(|(_, name)| name == "beam.smp"), "{of_ours:?}");
    assert!(of_ours.iter().any(|(_, name)| name == "epmd"), "{of_ours:?}");

    owner.kill()?; // SIGKILL: it runs no destructor
    owner.wait()?;
    let start = Instant::now();
    while let Some(left) = of_ours.iter().find(|(pid, name)| name_of(*pid).as_ref() == Some(name)) {
        assert!(start.elapsed() < SOON, "{left:?} is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // What is left of a process may hold its port for a moment longer than its name. A connection that it does not take
    // any more ends with it.
    while let Ok(mut connection) = TcpStream::connect(&address) {
        connection.set_read_timeout(Some(SOON))?;
        let late = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        assert!(!connection.read(&mut [0]).is_err_and(|error| late(&error)), "somebody still listens");
    }
    Ok(())
}

/// Children, grandchildren and so on, with their names.
fn processes_of(root: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        for pid in children.split_ascii_whitespace().map(|pid| pid.parse::<u32>().unwrap()) {
            parents.push(pid);
            found.extend(name_of(pid).map(|name| (pid, name)));
        }
    }
    found
}

/// None if there is no such process, or only what is left of one that nobody has missed yet.
fn name_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    (!rest.trim_start().starts_with('Z')).then(|| name.to_owned())
}
