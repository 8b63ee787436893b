//! What else streams events to web pages: Nchan (nginx) and Pushpin, each with what it needs, as they come from Debian.
//!
//! Both keep messages in memory and know no users: what they do is the part of the work that is alike.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use relais_testkit::{ServerProcess, free_port};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};

use super::links::{Dialect, Links, PATIENCE, Seen, find, open};
use crate::{load::Connection, sample::Sample};

/// nginx with the module Nchan, with two workers.
pub const NCHAN: &str = "Nchan";

/// Pushpin, in front of a program that says which channel a page gets.
pub const PUSHPIN: &str = "Pushpin";

/// The request that publishes a text.
type Publication = Box<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

/// A server that streams events, and how it is spoken to.
pub struct Peer {
    process: ServerProcess,
    streams: SocketAddr,
    publishing: SocketAddr,
    stream: String,
    publish: Publication,
    answer: u16,
    dialect: Dialect,
    /// So many pages are opened at once.
    at_once: usize,
    /// What asks the program behind Pushpin.
    client: Option<ServerProcess>,
    /// What answers for that program.
    origin: Option<JoinHandle<()>>,
    _folder: TempDir,
}

/// What a peer came to.
pub struct Found {
    /// Bytes of memory for each link.
    pub bytes: f64,
    /// Events a second to all links.
    pub rate: f64,
    /// From a publication to a page, one at a time.
    pub latency: Sample,
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

impl Peer {
    /// Nchan, if there is one.
    pub async fn nchan() -> Result<Option<Self>> {
        let module = Path::new("/usr/lib/nginx/modules/ngx_nchan_module.so");
        if !module.exists() || !installed("nginx") {
            return Ok(None);
        }
        let (folder, address) = (tempfile::tempdir()?, SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
        let place = folder.path().display();
        let configuration = format!(
            "load_module {};\ndaemon off;\nworker_processes 2;\nworker_rlimit_nofile 20000;\npid {place}/pid;\n\
             error_log {place}/error.log;\nevents {{ worker_connections 19000; }}\nhttp {{\n access_log off;\n \
             client_body_temp_path {place}/body;\n proxy_temp_path {place}/proxy;\n fastcgi_temp_path {place}/fastcgi;\n \
             uwsgi_temp_path {place}/uwsgi;\n scgi_temp_path {place}/scgi;\n server {{\n  listen {address} backlog=4096;\n  \
             location = /ready {{ return 200; }}\n  \
             location = /publish {{ nchan_publisher; nchan_channel_id all; }}\n  \
             location = /stream {{ nchan_subscriber eventsource; nchan_channel_id all; \
             nchan_subscriber_first_message newest; }}\n }}\n}}\n",
            module.display()
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration)?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file);
        let mut process = ServerProcess::spawn_command(command)?;
        process.wait_for_http(&format!("http://{address}/ready"), PATIENCE).await?;
        Ok(Some(Self {
            process,
            streams: address,
            publishing: address,
            stream: "GET /stream HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n".to_owned(),
            publish: Box::new(|text| post("/publish", text)),
            answer: 201,
            dialect: Dialect { hello: b": hi", event: b"data: " },
            at_once: usize::MAX,
            client: None,
            origin: None,
            _folder: folder,
        }))
    }

    /// Pushpin, if there is one.
    pub async fn pushpin() -> Result<Option<Self>> {
        if !installed("pushpin") {
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let origin = listener.local_addr()?;
        let answering = tokio::spawn(answer_pages(listener));
        let [http, publishing, push, sub, command] = ports()?;
        let place = folder.path().display();
        fs::write(folder.path().join("routes"), format!("* {origin}\n"))?;
        let configuration = format!(
            "[global]\ninclude={{libdir}}/internal.conf\nrundir={place}\nipc_prefix=bench-\nport_offset=0\n\
             stats_connection_ttl=120\n[runner]\nservices=condure,pushpin-proxy,pushpin-handler\nhttp_port=127.0.0.1:{http}\n\
             logdir={place}\nlog_level=1\nclient_buffer_size=8192\nclient_maxconn=19000\ncondure_bin=condure\n\
             [proxy]\nroutesfile={place}/routes\nsig_iss=pushpin\nsig_key=bench\n\
             zurl_out_specs=ipc://{place}/zurl-in\nzurl_out_stream_specs=ipc://{place}/zurl-in-stream\n\
             zurl_in_specs=ipc://{place}/zurl-out\n[handler]\npush_in_spec=tcp://127.0.0.1:{push}\npush_in_sub_specs=tcp://127.0.0.1:{sub}\n\
             push_in_sub_connect=false\npush_in_http_addr=127.0.0.1\npush_in_http_port={publishing}\n\
             push_in_http_max_headers_size=10000\npush_in_http_max_body_size=1000000\n\
             stats_spec=ipc://{{rundir}}/{{ipc_prefix}}stats\ncommand_spec=tcp://127.0.0.1:{command}\n\
             message_rate=10000000\nmessage_hwm=10000000\nmessage_wait=0\nid_cache_ttl=60\nconnection_subscription_max=20\n\
             subscription_linger=60\nstats_subscription_ttl=60\nstats_report_interval=10\nstats_format=tnetstring\n"
        );
        // What asks the program behind it. Debian starts it by itself, for all of the machine.
        let client = format!(
            "[General]\ninstance_id=\nin_spec=ipc://{place}/zurl-in\nin_stream_spec=ipc://{place}/zurl-in-stream\n\
             out_spec=ipc://{place}/zurl-out\nin_req_spec=ipc://{place}/zurl-req\nipc_file_mode=660\ndefpolicy=allow\n\
             allow=\ndeny=\nmax_open_requests=20000\nbuffer_size=200000\ntimeout=600\nin_hwm=100000\nout_hwm=100000\n"
        );
        let start = |program: &str, configuration: String| {
            let file = folder.path().join(format!("{program}.conf"));
            fs::write(&file, configuration)?;
            let mut command = Command::new(program);
            command.arg(format!("--config={}", file.display()));
            ServerProcess::spawn_command(command)
        };
        let client = start("zurl", client)?;
        let mut process = start("pushpin", configuration)?;
        process.wait_for_http(&format!("http://127.0.0.1:{http}/ready"), PATIENCE).await?;
        let publish = |text: &str| {
            let event = format!("event: notification\ndata: {text}\n\n");
            let item = serde_json::json!({"channel": "all", "formats": {"http-stream": {"content": event}}});
            post("/publish/", &serde_json::json!({"items": [item]}).to_string())
        };
        Ok(Some(Self {
            process,
            streams: SocketAddr::from((Ipv4Addr::LOCALHOST, http)),
            publishing: SocketAddr::from((Ipv4Addr::LOCALHOST, publishing)),
            stream: "GET /stream HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n".to_owned(),
            publish: Box::new(publish),
            answer: 200,
            dialect: Dialect { hello: b": hello", event: b"event: notification" },
            // It answers 500 to some of more.
            at_once: 250,
            client: Some(client),
            origin: Some(answering),
            _folder: folder,
        }))
    }

    /// Measures it as Relais is measured.
    pub async fn measure(&self, links: usize, messages: usize, samples: usize, payload: &str) -> Result<Found> {
        let latency = self.latency(samples).await?;
        let (seen, mut open) = (Arc::new(Seen::default()), Links::none());
        self.open(links / 10, &mut open, &seen).await?;
        let before = self.memory()?;
        self.open(links - links / 10, &mut open, &seen).await?;
        let bytes = self.memory()?.saturating_sub(before) as f64 / (links - links / 10) as f64;
        let (request, begin) = ((self.publish)(payload), Instant::now());
        let mut publisher = None;
        for _ in 0..messages {
            self.publish(&mut publisher, &request).await?;
        }
        seen.until(messages * links).await?;
        let rate = (messages * links) as f64 / begin.elapsed().as_secs_f64();
        Ok(Found { bytes, rate, latency })
    }

    async fn open(&self, mut links: usize, open: &mut Links, seen: &Arc<Seen>) -> Result<()> {
        while links > 0 {
            let count = links.min(self.at_once);
            let requests = std::iter::repeat_n(self.stream.clone(), count);
            open.open(self.streams, requests, self.dialect, seen).await?;
            links -= count;
        }
        Ok(())
    }

    async fn latency(&self, samples: usize) -> Result<Sample> {
        let mut link = open(0, self.streams, &self.stream).await?;
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let dialect = self.dialect;
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = link.read(&mut buffer).await {
                if [dialect.event, dialect.hello].iter().any(|needle| find(&buffer[..read], needle).is_some()) {
                    let _ = arrived.send(Instant::now());
                }
            }
        });
        tokio::time::timeout(PATIENCE, arrivals.recv()).await?.context("the link did not open")?;
        let (request, mut latencies) = ((self.publish)("x"), Vec::with_capacity(samples));
        let mut publisher = None;
        for _ in 0..samples {
            let begin = Instant::now();
            self.publish(&mut publisher, &request).await?;
            let arrived = tokio::time::timeout(PATIENCE, arrivals.recv()).await?.context("the link has ended")?;
            latencies.push(arrived.saturating_duration_since(begin));
        }
        reading.abort();
        Ok(Sample::new(latencies.len(), Duration::from_secs(1), latencies))
    }

    /// Publishes, on the connection of the last time where that is kept.
    async fn publish(&self, publisher: &mut Option<Connection>, request: &[u8]) -> Result<()> {
        let mut connection = match publisher.take() {
            Some(connection) => connection,
            None => Connection::open(self.publishing).await?,
        };
        connection.expect(request, self.answer).await?;
        // Pushpin closes it after each answer.
        *publisher = self.origin.is_none().then_some(connection);
        Ok(())
    }

    /// The memory of all its processes.
    fn memory(&self) -> Result<u64> {
        let client = self.client.as_ref().map(ServerProcess::id);
        descendants(self.process.id())?.into_iter().chain(client).map(memory_of).sum()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(origin) = &self.origin {
            origin.abort();
        }
    }
}

fn ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    for port in &mut ports {
        *port = free_port()?;
    }
    Ok(ports)
}

fn installed(program: &str) -> bool {
    let folders: Vec<PathBuf> =
        std::env::var_os("PATH").iter().flat_map(|path| std::env::split_paths(path).collect::<Vec<_>>()).collect();
    folders.iter().any(|folder| folder.join(program).is_file())
}

/// Answers each page that it gets the channel `all`.
async fn answer_pages(listener: TcpListener) {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nGrip-Hold: stream\r\nGrip-Channel: all\r\n\
        Content-Length: 9\r\n\r\n: hello\n\n";
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut buffer, mut kept) = (vec![0; 16 * 1024], 0);
            while let Ok(read @ 1..) = stream.read(&mut buffer[kept..]).await {
                kept += read;
                while let Some(end) = find(&buffer[..kept], b"\r\n\r\n") {
                    buffer.copy_within(end + 4..kept, 0);
                    kept -= end + 4;
                    if stream.write_all(ANSWER).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}

/// A process and all that it has started.
fn descendants(root: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(id) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(status) = fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let fields: Vec<&str> = status.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        if let Some(parent) = fields.get(1).and_then(|parent| parent.parse::<u32>().ok()) {
            parents.push((id, parent));
        }
    }
    let (mut found, mut at) = (vec![root], 0);
    while let Some(&id) = found.get(at) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == id).map(|(child, _)| *child));
        at += 1;
    }
    Ok(found)
}

/// What is in memory of a process; what it shares counts in parts.
pub fn memory_of(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let Ok(text) = fs::read_to_string(&path) else { return Ok(0) };
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).with_context(|| format!("no Pss in {path}"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
