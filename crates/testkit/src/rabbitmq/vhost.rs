//! A virtual host for one test, on a node that the tests share.
//!
//! Creating one takes a tenth of a second, starting a node fifty times that.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::sync::OnceCell;
use url::Url;

use super::{Management, RabbitMqServer, TakenMessage, management::escaped, random};

/// Names a running node, with an administrator, for all tests: `amqp://guest:guest@127.0.0.1:5672`.
/// The management API is expected on the same host at port 15672, unless the URL says
/// `?management_port=…`. `cargo xtask test` sets it. Without it, every test process starts a node
/// of its own.
pub const RABBITMQ_VARIABLE: &str = "RELAIS_TEST_RABBITMQ";

/// An empty virtual host with a name of its own, deleted at the end with all that is in it.
#[derive(Debug)]
pub struct TestVhost {
    name: String,
    url: Url,
    management: Management,
    /// Whether there is a user of its own, of the same name.
    has_user: AtomicBool,
    /// Deleted already, by [`drop_now`](Self::drop_now).
    gone: bool,
}

impl TestVhost {
    /// Creates a virtual host on the shared node, which is started if need be.
    pub async fn create() -> Result<Self> {
        let (node, management) = shared_node().await?;
        Self::create_on(node, management).await
    }

    pub(super) async fn create_on(node: Url, management: Management) -> Result<Self> {
        let name = format!("relais_test_{}_{:016x}", std::process::id(), random());
        let mut url = node;
        url.set_path(&escaped(&name));
        let vhost = Self { name, url, management, has_user: AtomicBool::new(false), gone: false };
        vhost.management.put(&vhost.path("vhosts", &[]), json!({})).await.context("create a virtual host")?;
        let user = vhost.url.username();
        let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
        vhost.management.put(&vhost.path("permissions", &[user]), all).await.context("let the tests in")?;
        Ok(vhost)
    }

    /// How to connect to it.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Its name on the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's address: what to put a [`TcpProxy`](crate::TcpProxy) in front of.
    pub fn server_addr(&self) -> Result<SocketAddr> {
        let host = self.url.host_str().context("the node's URL names no host")?;
        (host.trim_matches(['[', ']']), self.url.port().unwrap_or(5672))
            .to_socket_addrs()?
            .next()
            .with_context(|| format!("{host} has no address"))
    }

    /// How to connect to it through another address, such as a proxy's.
    pub fn url_via(&self, address: SocketAddr) -> Result<String> {
        let mut url = self.url.clone();
        url.set_host(Some(&address.ip().to_string()))
            .and_then(|()| url.set_port(Some(address.port())).map_err(|()| url::ParseError::InvalidPort))
            .with_context(|| format!("lead {} through {address}", self.name))?;
        Ok(url.into())
    }

    /// The node's management API, with credentials.
    pub fn management_url(&self) -> String {
        let password = self.url.password().unwrap_or_default();
        format!("http://{}:{password}@{}", self.url.username(), self.management.authority())
    }

    /// How to connect to it with another password.
    pub fn url_with_password(&self, password: &str) -> Result<String> {
        let mut url = self.url.clone();
        url.set_password(Some(password)).map_err(|()| anyhow::anyhow!("the URL takes no password"))?;
        Ok(url.into())
    }

    /// How to connect to it as a user who may use nothing but what this regular expression matches.
    pub async fn url_restricted_to(&self, allowed: &str) -> Result<String> {
        let user = json!({"password": "restricted", "tags": ""});
        self.has_user.store(true, Ordering::Relaxed);
        self.management.put(&format!("users/{}", escaped(&self.name)), user).await.context("create a user")?;
        let may = json!({"configure": allowed, "write": allowed, "read": allowed});
        self.management.put(&self.path("permissions", &[&self.name]), may).await?;
        let mut url = self.url.clone();
        url.set_username(&self.name)
            .and_then(|()| url.set_password(Some("restricted")))
            .map_err(|()| anyhow::anyhow!("the URL takes no user"))?;
        Ok(url.into())
    }

    /// Declares a plain durable queue.
    pub async fn declare_queue(&self, queue: &str) -> Result<()> {
        self.management.put(&self.path("queues", &[queue]), json!({"durable": true})).await
    }

    /// Declares a durable queue with arguments.
    pub async fn declare_queue_with(&self, queue: &str, arguments: serde_json::Value) -> Result<()> {
        let request = json!({"durable": true, "arguments": arguments});
        self.management.put(&self.path("queues", &[queue]), request).await
    }

    /// What the management API says of a queue.
    pub async fn queue(&self, queue: &str) -> Result<serde_json::Value> {
        self.management.get(&self.path("queues", &[queue])).await
    }

    /// Deletes a queue with all that is in it.
    pub async fn delete_queue(&self, queue: &str) -> Result<()> {
        self.management.delete(&self.path("queues", &[queue])).await
    }

    /// Forgets all that is in a queue.
    pub async fn purge_queue(&self, queue: &str) -> Result<()> {
        self.management.delete(&self.path("queues", &[queue, "contents"])).await
    }

    /// Declares a durable exchange: `direct`, `fanout`, `topic` or `headers`.
    pub async fn declare_exchange(&self, exchange: &str, kind: &str) -> Result<()> {
        let request = json!({"type": kind, "durable": true});
        self.management.put(&self.path("exchanges", &[exchange]), request).await
    }

    /// Leads what comes to an exchange with this routing key to a queue.
    pub async fn bind(&self, exchange: &str, queue: &str, routing_key: &str) -> Result<()> {
        let path = self.path("bindings", &["e", exchange, "q", queue]);
        self.management.post(&path, json!({"routing_key": routing_key})).await.map(drop)
    }

    /// Takes messages out of a queue for good, the oldest first, `at_most` so many.
    pub async fn take(&self, queue: &str, at_most: usize) -> Result<Vec<TakenMessage>> {
        self.management.take(&self.name, queue, at_most).await
    }

    /// Deletes the virtual host, whoever is still connected to it, and reports what goes wrong;
    /// going out of scope does the same and keeps silent.
    pub async fn drop_now(mut self) -> Result<()> {
        self.gone = true;
        self.management.delete(&self.path("vhosts", &[])).await
    }

    /// `kind/<this virtual host>/names…`, as the management API spells it.
    fn path(&self, kind: &str, names: &[&str]) -> String {
        let mut path = format!("{kind}/{}", escaped(&self.name));
        for name in names {
            path.push('/');
            path.push_str(&escaped(name));
        }
        path
    }
}

impl Drop for TestVhost {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let (management, path) = (self.management.clone(), self.path("vhosts", &[]));
        let user = self.has_user.load(Ordering::Relaxed).then(|| format!("users/{}", escaped(&self.name)));
        // The test's runtime may be shutting down, so this brings its own, in a thread of its own.
        let deleting = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                if let Some(user) = user {
                    management.delete(&user).await?;
                }
                management.delete(&path).await
            })
        });
        // What remains goes away with the node; a test is not failed for it.
        let _ = deleting.join();
    }
}

/// The URL of a virtual host.
pub(super) fn amqp_url(address: SocketAddr, user: &str, password: &str, vhost: &str) -> Url {
    let url = format!("amqp://{user}:{password}@{address}/{}", escaped(vhost));
    Url::parse(&url).expect("made of an address and escaped names")
}

/// The node that the environment names, or this process's own, started by the first test. It is
/// never dropped, being static: its guardian ends it with the process.
async fn shared_node() -> Result<(Url, Management)> {
    static OWN: OnceCell<RabbitMqServer> = OnceCell::const_new();
    let Ok(url) = std::env::var(RABBITMQ_VARIABLE) else {
        let own = OWN.get_or_try_init(RabbitMqServer::start).await?;
        return Ok((amqp_url(own.addr(), super::USER, super::USER, "/"), own.management()));
    };
    let mut url = Url::parse(&url).with_context(|| format!("{RABBITMQ_VARIABLE} is not a URL: {url}"))?;
    let host = url.host_str().with_context(|| format!("{RABBITMQ_VARIABLE} names no host"))?;
    let port = url.query_pairs().find(|(name, _)| name == "management_port").map(|(_, port)| port.into_owned());
    let authority = format!("{host}:{}", port.as_deref().unwrap_or("15672"));
    let management = Management::new(authority, url.username(), url.password().unwrap_or_default());
    url.set_query(None);
    Ok((url, management))
}
