//! KEDA's external scaler, asked by a gRPC client the way KEDA asks it: the real binary, real stores.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use relais_scaler::proto::{
    GetMetricsRequest, IsActiveResponse, ScaledObjectRef, external_scaler_client::ExternalScalerClient,
};
use relais_testkit::{TestDatabase, free_port};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{
    Code, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// For anything that is waited for. Far more than it takes: it is there to fail a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

const DECLARATIONS: &str = r#"
services:
  - serviceName: resize
  - serviceName: ocr
clients:
  - {clientId: me, clientSecret: "my secret"}
authorizations:
  - {clientId: me, serviceName: resize, roles: [consume, work]}
  - {clientId: me, serviceName: ocr, roles: [consume, work]}
"#;

/// A server with a scaler, in a folder of its own.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
    scaler: u16,
    database: String,
    environment: Vec<(String, String)>,
    http: reqwest::Client,
}

impl Server {
    async fn start() -> Self {
        Self::start_on("sqlite:relais.db", &[]).await
    }

    async fn start_on(database: &str, environment: &[(&str, String)]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("services.yaml"), DECLARATIONS).unwrap();
        let (port, scaler) = (free_port().unwrap(), free_port().unwrap());
        let environment: Vec<_> = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let child = spawn(folder.path(), port, scaler, database, &environment);
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let server = Self { child, folder, port, scaler, database: database.to_owned(), environment, http };
        server.ready().await;
        server
    }

    /// Returns once the declarations are applied.
    async fn ready(&self) {
        let begun = Instant::now();
        loop {
            let answer = self.http.get(self.url("ocr/backlog")).basic_auth("me", Some("my secret")).send().await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the server did not become ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/v1/services/{path}", self.port)
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let request = self.http.post(self.url(path)).basic_auth("me", Some("my secret")).json(&body);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    async fn submit(&self, service: &str) {
        self.post(&format!("{service}/tasks"), json!({"body": {}})).await;
    }

    async fn claim(&self, service: &str) -> Value {
        self.post(&format!("{service}/claims"), json!({"wait": "10s"})).await["tasks"][0].clone()
    }

    async fn finish(&self, service: &str, task: &Value) {
        let message = json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": {"messageType": "success"}});
        let answer = self.post(&format!("{service}/messages"), message).await;
        assert_eq!(answer["outcomes"][0]["outcome"], "accepted", "{answer}");
    }

    async fn backlog(&self, service: &str) -> u64 {
        let request = self.http.get(self.url(&format!("{service}/backlog"))).basic_auth("me", Some("my secret"));
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        answer["data"]["backlog"].as_u64().unwrap()
    }

    fn client(&self) -> ExternalScalerClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.scaler)).unwrap();
        ExternalScalerClient::new(endpoint.connect_timeout(PATIENCE).connect_lazy())
    }

    /// A stream that has told how things are.
    async fn stream(&self, metadata: &[(&str, &str)], expected: bool) -> Streaming<IsActiveResponse> {
        let mut stream = self.client().stream_is_active(object(metadata)).await.unwrap().into_inner();
        assert_eq!(next(&mut stream).await, Some(expected));
        stream
    }

    fn terminate(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for its end, and tells its exit code.
    async fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "the server did not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The same server once more, on the same ports.
    async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.port, self.scaler, &self.database, &self.environment);
        self.ready().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, port: u16, scaler: u16, database: &str, environment: &[(String, String)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_relais"))
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--declarations", "services.yaml"])
        .env("RELAIS_DATABASE_URL", database)
        .env("RELAIS_SCALER_LISTEN", format!("127.0.0.1:{scaler}"))
        .env("RELAIS_AUTH_BCRYPT_COST", "4")
        .envs(environment.iter().cloned())
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What KEDA sends for a trigger with this metadata.
fn object(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let scaler_metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ScaledObjectRef { name: "resizer".to_owned(), namespace: "shop".to_owned(), scaler_metadata }
}

/// What the stream tells next; none at its end.
async fn next(stream: &mut Streaming<IsActiveResponse>) -> Option<bool> {
    let told = timeout(PATIENCE, stream.message()).await.expect("the stream tells nothing");
    told.unwrap().map(|told| told.result)
}

const RESIZE: &[(&str, &str)] = &[("service", "resize"), ("scalerAddress", "relais:9090")];

#[tokio::test]
async fn a_service_is_active_from_its_first_task_to_the_end_of_its_last() {
    let server = Server::start().await;
    let mut stream = server.stream(RESIZE, false).await;
    let begun = Instant::now();
    for _ in 0..10 {
        server.submit("resize").await;
        assert_eq!(next(&mut stream).await, Some(true));
        server.submit("resize").await;
        for _ in 0..2 {
            let task = server.claim("resize").await;
            server.finish("resize", &task).await;
        }
        assert_eq!(next(&mut stream).await, Some(false), "told once, when the last has ended");
    }
    // Without the wake-ups each of the twenty would have waited for a sweep, every five seconds.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn the_trigger_chooses_what_counts_and_the_activation_threshold() {
    let server = Server::start().await;
    let mut pending = server.stream(&[("service", "resize"), ("scope", "pending")], false).await;
    let mut three = server.stream(&[("service", "resize"), ("activationBacklog", "2")], false).await;
    server.submit("resize").await;
    assert_eq!(next(&mut pending).await, Some(true));
    let task = server.claim("resize").await;
    assert_eq!(next(&mut pending).await, Some(false), "it runs, and does not wait any more");
    let active = server.client().is_active(object(RESIZE)).await.unwrap().into_inner().result;
    assert!(active, "whoever works on it is still needed");
    server.submit("resize").await;
    assert_eq!(next(&mut pending).await, Some(true));
    server.submit("resize").await;
    assert_eq!(next(&mut three).await, Some(true), "nothing was told before");
    server.finish("resize", &task).await;
    assert_eq!(next(&mut three).await, Some(false));
}

#[tokio::test]
async fn the_scaler_metric_is_the_backlog() {
    let server = Server::start().await;
    let mut client = server.client();
    let trigger = object(&[("service", "resize"), ("targetBacklog", "2.5")]);
    let spec = client.get_metric_spec(trigger.clone()).await.unwrap().into_inner();
    let mut specs = client.stream_metric_spec(trigger.clone()).await.unwrap().into_inner();
    assert_eq!(timeout(PATIENCE, specs.message()).await.unwrap().unwrap(), Some(spec.clone()));
    let spec = &spec.metric_specs[0];
    assert_eq!((spec.metric_name.as_str(), spec.target_size, spec.target_size_float), ("relais-resize", 3, 2.5));
    for expected in [0, 1, 2] {
        let question =
            GetMetricsRequest { scaled_object_ref: Some(trigger.clone()), metric_name: "s0-relais-resize".to_owned() };
        let metrics = client.get_metrics(question).await.unwrap().into_inner();
        let value = &metrics.metric_values[0];
        assert_eq!((value.metric_name.as_str(), value.metric_value), ("s0-relais-resize", expected));
        assert_eq!(value.metric_value_float, expected as f64);
        assert_eq!(server.backlog("resize").await, expected as u64);
        server.submit("resize").await;
        if expected == 0 {
            server.claim("resize").await;
        }
    }
}

#[tokio::test]
async fn an_invalid_scaler_request_is_refused_with_a_reason() {
    let server = Server::start().await;
    let mut client = server.client();
    for (metadata, code, said) in [
        (&[("service", "nowhere")][..], Code::NotFound, "`nowhere`"),
        (&[], Code::InvalidArgument, "shop/resizer: service is missing"),
        (&[("service", "resize"), ("targetBacklog", "many")], Code::InvalidArgument, "targetBacklog is `many`"),
    ] {
        let question = || object(metadata);
        let asked = GetMetricsRequest { scaled_object_ref: Some(question()), metric_name: String::new() };
        let refusals = [
            client.is_active(question()).await.unwrap_err(),
            client.stream_is_active(question()).await.unwrap_err(),
            client.get_metric_spec(question()).await.unwrap_err(),
            client.stream_metric_spec(question()).await.unwrap_err(),
            client.get_metrics(asked).await.unwrap_err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.code(), code, "{refusal}");
            assert!(refusal.message().contains(said), "{refusal}");
        }
    }
    let nothing = client.get_metrics(GetMetricsRequest::default()).await.unwrap_err();
    assert_eq!(nothing.code(), Code::InvalidArgument);
    let huge = object(&[("service", &"x".repeat(1 << 20))]);
    assert!(client.is_active(huge).await.is_err(), "a question has a largest size");
    assert!(!client.is_active(object(RESIZE)).await.unwrap().into_inner().result, "it goes on answering");
}

#[tokio::test]
async fn hundreds_of_scaler_streams_are_notified_at_once() {
    let server = Server::start().await;
    let mut streams = Vec::new();
    for index in 0..300 {
        let service = if index % 3 == 0 { "ocr" } else { "resize" };
        streams.push((service, server.stream(&[("service", service)], false).await));
    }
    // Those that went away are not told, and hold nobody up.
    streams.truncate(200);
    server.submit("resize").await;
    for (_, stream) in streams.iter_mut().filter(|(service, _)| *service == "resize") {
        assert_eq!(next(stream).await, Some(true));
    }
    server.submit("ocr").await;
    for (_, stream) in streams.iter_mut().filter(|(service, _)| *service == "ocr") {
        assert_eq!(next(stream).await, Some(true), "the other service's task was not told to it");
    }
}

#[tokio::test]
async fn scaler_streams_end_on_shutdown_and_resume_with_the_current_state() {
    let mut server = Server::start().await;
    let mut client = server.client();
    let mut active = client.stream_is_active(object(RESIZE)).await.unwrap().into_inner();
    let mut specs = client.stream_metric_spec(object(RESIZE)).await.unwrap().into_inner();
    assert_eq!(next(&mut active).await, Some(false));
    assert!(timeout(PATIENCE, specs.message()).await.unwrap().unwrap().is_some());
    server.submit("resize").await;
    assert_eq!(next(&mut active).await, Some(true));
    let begun = Instant::now();
    server.terminate();
    assert_eq!(next(&mut active).await, None, "it ends, and is not cut off");
    assert!(timeout(PATIENCE, specs.message()).await.unwrap().unwrap().is_none());
    assert_eq!(server.ended().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(20), "nobody waits for the grace: {:?}", begun.elapsed());
    assert_eq!(client.is_active(object(RESIZE)).await.unwrap_err().code(), Code::Unavailable);
    server.restart().await;
    // The same client, which finds its way back.
    let mut active = client.stream_is_active(object(RESIZE)).await.unwrap().into_inner();
    assert_eq!(next(&mut active).await, Some(true), "the task is still there");
    // Killed, it is cut off, which KEDA sees as well.
    server.child.kill().unwrap();
    assert!(timeout(PATIENCE, active.message()).await.unwrap().is_err());
}

#[tokio::test]
async fn a_submission_to_one_process_activates_the_scaler_of_another() {
    let database = TestDatabase::create().await.unwrap();
    let one = Server::start_on(database.url(), &[]).await;
    let other = Server::start_on(database.url(), &[]).await;
    let mut stream = other.stream(RESIZE, false).await;
    let begun = Instant::now();
    for _ in 0..5 {
        one.submit("resize").await;
        assert_eq!(next(&mut stream).await, Some(true));
        let task = one.claim("resize").await;
        one.finish("resize", &task).await;
        assert_eq!(next(&mut stream).await, Some(false));
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "by wake-ups, not by sweeps: {:?}", begun.elapsed());
}

#[tokio::test]
async fn with_a_certificate_the_scaler_serves_tls_only_and_is_healthy() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = (files.path().join("tls.crt"), files.path().join("tls.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let path = |path: &Path| path.display().to_string();
    let server = Server::start_on(
        "sqlite:relais.db",
        &[("RELAIS_SCALER_CERTIFICATE", path(&certificate)), ("RELAIS_SCALER_KEY", path(&key))],
    )
    .await;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(made.cert.pem())).domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", server.scaler)).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect_lazy();
    let mut client = ExternalScalerClient::new(channel.clone());
    assert!(!client.is_active(object(RESIZE)).await.unwrap().into_inner().result);
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let question = tonic_health::pb::HealthCheckRequest { service: "externalscaler.ExternalScaler".to_owned() };
    assert_eq!(health.check(question).await.unwrap().into_inner().status, 1, "serving");
    assert!(server.client().is_active(object(RESIZE)).await.is_err(), "in the open nobody is answered");
}

#[tokio::test]
async fn a_scaler_that_can_not_listen_fails_the_server_start() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    std::fs::write(folder.path().join("no.pem"), "not a certificate").unwrap();
    for (environment, said) in [
        (vec![("RELAIS_SCALER_LISTEN", address.as_str())], "scaler.listen"),
        (vec![("RELAIS_SCALER_LISTEN", "nowhere")], "scaler.listen"),
        (vec![("RELAIS_SCALER_LISTEN", "127.0.0.1:0"), ("RELAIS_SCALER_CERTIFICATE", "no.pem")], "belong together"),
        (
            vec![
                ("RELAIS_SCALER_LISTEN", "127.0.0.1:0"),
                ("RELAIS_SCALER_CERTIFICATE", "no.pem"),
                ("RELAIS_SCALER_KEY", "no.pem"),
            ],
            "can not be used",
        ),
        (
            vec![
                ("RELAIS_SCALER_LISTEN", "127.0.0.1:0"),
                ("RELAIS_SCALER_CERTIFICATE", "gone.pem"),
                ("RELAIS_SCALER_KEY", "gone.pem"),
            ],
            "gone.pem can not be read",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_relais"))
            .args(["serve", "--listen", "127.0.0.1:0", "--database", "sqlite:relais.db"])
            .envs(environment.iter().copied())
            .current_dir(folder.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{environment:?}: {stderr}");
    }
}
