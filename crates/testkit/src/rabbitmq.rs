//! A private RabbitMQ node: its own ports, its own data, and nobody minds when it is killed.
//!
//! Runs the machine's own RabbitMQ; [`programs`] finds it and does not install anything
//! (`cargo xtask test` does). A start takes several seconds, so tests share one node and have a
//! virtual host each ([`TestVhost`]); a node of one's own is for tests that kill it.
//!
//! One node, no cluster; what it says to other Erlang nodes stays on the loopback interface.

mod management;
mod programs;
mod vhost;

use std::{
    fs::{self, OpenOptions},
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::{OpenOptionsExt, chown},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use self::{management::Management, programs::Programs};
pub use self::{
    management::TakenMessage,
    vhost::{RABBITMQ_VARIABLE, TestVhost},
};
use crate::{free_port, group::Group, guardian::Scratch, lifecycle::Lifecycle};

/// A start takes 4 s on a quiet machine; on a busy one, or after a crash, several times that.
const READY: Duration = Duration::from_secs(120);

/// The only user there is. The node accepts it from the loopback interface alone.
const USER: &str = "guest";

/// `$0` is the node, `$1` is Erlang's port mapper. That must be there before the node, which would
/// otherwise start one as a daemon that outlives it; and it must go when the node does.
const SCRIPT: &str = r#"
    "$1" -address 127.0.0.1 -port "$ERL_EPMD_PORT" & mapper=$!
    "$0" & node=$!
    trap 'kill -s TERM "$node"' TERM
    while kill -s 0 "$node" 2>/dev/null; do wait "$node"; status=$?; done
    kill -s KILL "$mapper"
    exit "$status"
"#;

/// A node that runs until it is stopped, killed or dropped.
#[derive(Debug)]
pub struct RabbitMqServer {
    life: Lifecycle,
    programs: Programs,
    ports: Ports,
}

/// How a private node is started.
#[derive(Debug, Clone, Default)]
pub struct RabbitMqServerOptions {
    settings: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    management: u16,
    /// Where the node's distribution would take other nodes.
    distribution: u16,
    epmd: u16,
}

impl RabbitMqServerOptions {
    /// Any setting of rabbitmq.conf; wins over what is set here.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the node and waits until it takes requests.
    pub async fn start(self) -> Result<RabbitMqServer> {
        let programs = Programs::find()?;
        let port = || free_port().context("find a port for RabbitMQ");
        let ports = Ports { amqp: port()?, management: port()?, distribution: port()?, epmd: port()? };
        let directory = Scratch::create(&std::env::temp_dir(), "relais-test-rabbitmq-")?;
        prepare(directory.path(), ports, &self.settings).context("prepare a directory for RabbitMQ")?;
        let life = Lifecycle::new("RabbitMQ", Signal::TERM, READY, directory);
        let mut server = RabbitMqServer { life, programs, ports };
        server.launch().await?;
        Ok(server)
    }
}

impl RabbitMqServer {
    /// Starts a node with the default options.
    pub async fn start() -> Result<Self> {
        Self::options().start().await
    }

    /// The options to start a node with.
    pub fn options() -> RabbitMqServerOptions {
        RabbitMqServerOptions::default()
    }

    /// The URL of a virtual host on this node. `/` always exists.
    pub fn url(&self, vhost: &str) -> String {
        vhost::amqp_url(self.addr(), USER, USER, vhost).into()
    }

    /// Where it listens, also while it is down.
    pub fn addr(&self) -> SocketAddr {
        loopback(self.ports.amqp)
    }

    /// The first of its processes, and the parent of the others, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.life.group().map(Group::id)
    }

    /// The management API, with its credentials.
    pub fn management_url(&self) -> String {
        format!("http://{USER}:{USER}@{}", loopback(self.ports.management))
    }

    /// What [`RABBITMQ_VARIABLE`] is set to, for others to share this node.
    pub fn shared_url(&self) -> String {
        format!("amqp://{USER}:{USER}@{}?management_port={}", self.addr(), self.ports.management)
    }

    /// A virtual host of one's own, deleted at the end. The node must run.
    pub async fn vhost(&self) -> Result<TestVhost> {
        TestVhost::create_on(vhost::amqp_url(self.addr(), USER, USER, "/"), self.management()).await
    }

    /// Kills every process of the node with SIGKILL, and waits until they are gone.
    pub fn kill9(&mut self) -> Result<()> {
        self.life.kill9()?;
        // Erlang has many threads, and a process whose first one has ended looks as if it were gone.
        let start = Instant::now();
        while [self.ports.amqp, self.ports.epmd].into_iter().any(answers) {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("RabbitMQ still answers after SIGKILL");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Stops the node in good order.
    pub async fn stop(&mut self) -> Result<()> {
        self.life.stop().await
    }

    /// Starts it again after [`kill9`](Self::kill9) or [`stop`](Self::stop), on the same ports with
    /// the same data; stops it first if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Kills it and starts it again on the same ports, with nothing of what it had: a node that lost its disk.
    pub async fn start_anew(&mut self) -> Result<()> {
        self.kill9()?;
        fs::remove_dir_all(self.life.directory().join("data")).context("remove RabbitMQ's data")?;
        self.launch().await
    }

    /// Raises the memory alarm, or clears it: while it is up, the node reads nothing from those who publish.
    pub async fn memory_alarm(&self, on: bool) -> Result<()> {
        // Asked of the alarm handler itself: through the memory monitor it would take a second or two more.
        let change = if on { "set_alarm" } else { "clear_alarm" };
        let value = if on { "{{resource_limit, memory, node()}, []}" } else { "{resource_limit, memory, node()}" };
        self.evaluate(&format!("rabbit_alarm:{change}({value}).")).await
    }

    /// Has the node write down which queues, users and virtual hosts there are. It keeps the news of the last two
    /// seconds in memory, confirmed or not, and a kill loses them with all messages in them.
    pub async fn write_down(&self) -> Result<()> {
        // Classic queues are written by Mnesia, which servers of quorum queues there are by a table of Ra's own.
        self.evaluate("ok = mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()], ok.").await
    }

    /// Has the node evaluate something in Erlang.
    async fn evaluate(&self, expression: &str) -> Result<()> {
        let mut command = self.command(&self.programs.control());
        command.args(["-n", &self.node_name(), "eval", expression]).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await?.context("run rabbitmqctl")?;
        if !output.status.success() {
            bail!("rabbitmqctl failed ({})\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    fn management(&self) -> Management {
        Management::new(loopback(self.ports.management).to_string(), USER, USER)
    }

    fn node_name(&self) -> String {
        format!("t{}@localhost", self.ports.amqp)
    }

    async fn launch(&mut self) -> Result<()> {
        let mut command = self.command(Path::new("/bin/sh"));
        command.args(["-c", SCRIPT]).arg(self.programs.server()).arg(self.programs.epmd());
        // Ready is when the management API answers, and says that the node listens; that comes last.
        let (management, port) = (self.management(), self.ports.amqp);
        let is_ready = async || {
            let checks = async {
                management.get("health/checks/local-alarms").await?;
                management.get(&format!("health/checks/port-listener/{port}")).await
            };
            checks.await.map(drop).map_err(|error| format!("{error:#}"))
        };
        self.life.launch(command, is_ready).await
    }

    /// A program that knows this node and nothing of the machine's own.
    fn command(&self, program: &Path) -> Command {
        let directory = self.life.directory();
        let mut command = Command::new(program);
        command.current_dir(directory).env_clear();
        // As it is in the shell that runs the tests: both programs are scripts.
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        for (name, value) in [
            ("RABBITMQ_NODENAME", self.node_name()),
            ("RABBITMQ_DIST_PORT", self.ports.distribution.to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("ERL_EPMD_PORT", self.ports.epmd.to_string()),
            ("RABBITMQ_LOGS", "-".to_owned()),
            ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
            // With "input" the node's own script becomes the node instead of starting it, and signals reach the
            // right process; there is none to be read.
            ("RABBITMQ_ALLOW_INPUT", "true".to_owned()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG.to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
        ] {
            command.env(name, value);
        }
        for (name, file) in [
            ("HOME", "."),
            ("RABBITMQ_MNESIA_BASE", "data"),
            ("RABBITMQ_LOG_BASE", "."),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced.config"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins"),
            ("RABBITMQ_PLUGINS_EXPAND_DIR", "plugins"),
            ("RABBITMQ_PID_FILE", "pid"),
        ] {
            command.env(name, directory.join(file));
        }
        programs::as_server_user(&mut command);
        command
    }
}

/// Two schedulers that sleep when there is nothing to do: tests run beside it.
const ERLANG: &str = "-noinput -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2";

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn answers(port: u16) -> bool {
    TcpStream::connect(loopback(port)).is_ok()
}

/// Writes what a node reads when it starts, and gives all of it to the node's user.
fn prepare(directory: &Path, ports: Ports, settings: &[(String, String)]) -> Result<()> {
    let mut lines = vec![
        format!("listeners.tcp.1 = {}", loopback(ports.amqp)),
        "management.tcp.ip = 127.0.0.1".to_owned(),
        format!("management.tcp.port = {}", ports.management),
        // Of its own, not of the machine: a test must not be stopped by a full disk that it does not need.
        "vm_memory_high_watermark.absolute = 512MiB".to_owned(),
        "disk_free_limit.absolute = 50MB".to_owned(),
    ];
    lines.extend(settings.iter().map(|(name, value)| format!("{name} = {value}")));
    fs::write(directory.join("rabbitmq.conf"), lines.join("\n") + "\n")?;
    fs::write(directory.join("advanced.config"), "[].\n")?;
    fs::write(directory.join("enabled_plugins"), "[rabbitmq_management].\n")?;
    // Erlang's password between nodes. Nobody else may read it, or it is not accepted.
    let cookie = directory.join(".erlang.cookie");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&cookie)?;
    write!(file, "relais{:016x}", random())?;
    if let Some(user) = programs::server_user() {
        for path in [directory, &cookie] {
            chown(path, Some(user), Some(user))?;
        }
    }
    Ok(())
}

/// Random enough to keep names apart.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_node_comes_back_with_its_data_after_a_kill_and_leaves_nothing_behind() -> Result<()> {
        let mut server = RabbitMqServer::start().await?;
        let url = server.url("/");
        let vhost = server.vhost().await?;
        vhost.declare_queue("a queue").await?;
        server.write_down().await?;
        let Ports { amqp, epmd, .. } = server.ports;
        assert!(answers(amqp) && answers(epmd));

        server.kill9()?;
        assert!(!answers(amqp) && !answers(epmd), "a killed node lets nobody in");
        assert!(vhost.declare_queue("another").await.is_err());

        server.restart().await?;
        assert_eq!(url, server.url("/"));
        assert!(vhost.take("a queue", 1).await?.is_empty());
        drop(vhost);

        server.stop().await?;
        let gone = async {
            while answers(amqp) || answers(epmd) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // The kernel may keep a port open for a moment after its process has ended.
        assert!(tokio::time::timeout(Duration::from_secs(10), gone).await.is_ok(), "a stopped one does not either");
        Ok(())
    }
}
