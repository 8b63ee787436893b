//! The receivers of docs/guides/callbacks.md: they are what the guide shows, they take what Relais sends, and they
//! refuse everything else.
#![expect(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use relais_callback::{
    HttpSender, HttpSenderOptions,
    signature::{generate_secret, sign, sign_all, verify},
};
use relais_core::{
    CallbackDelivery, CallbackSender, CallbackType, Client, ClientId, ClientKey, NotificationRights, Reply,
    ReplyOutcome, SigningSecret, Timestamp,
};

#[path = "../examples/verify.rs"]
#[expect(dead_code, reason = "its main is for those who run it")]
mod example;

const ID: &str = "01a1e14b-0c5e-7a5d-8f3b-2c8f0e6d1a47-3";
const BODY: &str = r#"{"taskId":"01a1e14b-0c5e-7a5d-8f3b-2c8f0e6d1a47","status":"SUCCESS","response":"déjà vu"}"#;

/// Who checks a callback.
#[derive(Debug, Clone, Copy)]
enum Receiver {
    Python,
    Node,
    Rust,
}

impl Receiver {
    const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Rust];

    /// Its file, from the root of the repository, and how the guide calls its language.
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("examples/callbacks/verify.py", "python"),
            Self::Node => ("examples/callbacks/verify.mjs", "javascript"),
            Self::Rust => ("crates/callback/examples/verify.rs", "rust"),
        }
    }

    /// Whether a callback is taken for genuine.
    fn accepts(self, callback: &Signed) -> bool {
        let Signed { secret, id, timestamp, header, body } = callback;
        if let Self::Rust = self {
            return example::check(secret, id, timestamp, header, body.as_bytes()).is_ok();
        }
        let mut child = self.spawn(secret, &[id, timestamp, header], Stdio::piped());
        child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        // Its own word: a program that broke down has refused nothing.
        match (output.status.code(), output.stdout.as_slice()) {
            (Some(0), b"accepted\n") => true,
            (Some(1), b"refused\n") => false,
            _ => panic!("{self:?} broke down: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }

    fn spawn(self, secret: &str, arguments: &[&str], stderr: Stdio) -> Child {
        let program = match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Rust => panic!("this one is no program"),
        };
        Command::new(program)
            .arg(root().join(self.file().0))
            .args(arguments)
            .env("RELAIS_SIGNING_SECRET", secret)
            .env("PORT", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{program} is needed to test the guide ({error}); cargo xtask test installs it")
            })
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn now() -> Timestamp {
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    Timestamp::from_millis(i64::try_from(since_1970.as_millis()).unwrap())
}

/// What a receiver is given, and knows.
#[derive(Debug, Clone)]
struct Signed {
    secret: String,
    id: String,
    timestamp: String,
    header: String,
    body: String,
}

/// A callback that was signed at this time.
fn signed(at: Timestamp) -> Signed {
    let secret = generate_secret().unwrap();
    let header = sign(&secret, ID, at, BODY.as_bytes()).unwrap();
    let timestamp = (at.as_millis() / 1000).to_string();
    Signed { secret, id: ID.to_owned(), timestamp, header, body: BODY.to_owned() }
}

fn in_use(secret: &str) -> SigningSecret {
    SigningSecret { secret: secret.to_owned(), created: now(), expires: None }
}

#[test]
fn the_receiver_accepts_a_valid_signature() {
    for receiver in Receiver::ALL {
        let genuine = signed(now());
        assert!(receiver.accepts(&genuine), "{receiver:?}");
        let recent = signed(now().before(Duration::from_secs(240)));
        assert!(receiver.accepts(&recent), "{receiver:?}: four minutes are not old");
    }
}

#[test]
fn the_receiver_accepts_both_secrets_during_rotation() {
    let (new, old, at) = (generate_secret().unwrap(), generate_secret().unwrap(), now());
    let header = sign_all(&[in_use(&new), in_use(&old)], ID, at, BODY.as_bytes()).unwrap().unwrap();
    for receiver in Receiver::ALL {
        for secret in [&new, &old] {
            let callback = Signed { secret: secret.clone(), header: header.clone(), ..signed(at) };
            assert!(receiver.accepts(&callback), "{receiver:?}");
        }
        let callback = Signed { secret: generate_secret().unwrap(), header: header.clone(), ..signed(at) };
        assert!(!receiver.accepts(&callback), "{receiver:?}: neither of them");
    }
}

#[test]
fn the_receiver_refuses_an_invalid_signature() {
    let genuine = signed(now());
    let with = |change: fn(&mut Signed)| {
        let mut callback = genuine.clone();
        change(&mut callback);
        callback
    };
    let forged = [
        ("a changed body", with(|c| c.body = c.body.replace("SUCCESS", "FAILURE"))),
        ("an empty body", with(|c| c.body.clear())),
        ("a changed id", with(|c| c.id.push('0'))),
        ("a changed timestamp", with(|c| c.timestamp = (c.timestamp.parse::<u64>().unwrap() + 1).to_string())),
        ("an old timestamp", signed(now().before(Duration::from_secs(330)))),
        ("a timestamp of tomorrow", signed(now().after(Duration::from_secs(86_400)))),
        ("another secret", with(|c| c.secret = generate_secret().unwrap())),
        ("no signature", with(|c| c.header.clear())),
        ("an empty signature", with(|c| c.header = "v1,".to_owned())),
        ("a signature of another version", with(|c| c.header = c.header.replace("v1,", "v2,"))),
        ("half a signature", with(|c| c.header.truncate(20))),
        ("garbage", with(|c| c.header = "garbage v1 ,, v1,???? v1,Zm9v \u{e9}".to_owned())),
        ("no timestamp", with(|c| c.timestamp.clear())),
        ("a timestamp that is none", with(|c| c.timestamp = "soon".to_owned())),
        ("a timestamp of too many digits", with(|c| c.timestamp = "1".repeat(5000))),
    ];
    for receiver in Receiver::ALL {
        for (what, callback) in &forged {
            assert!(!receiver.accepts(callback), "{receiver:?} accepts {what}");
        }
    }
}

/// A receiver that runs, until the test is over.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
    port: u16,
}

impl Running {
    fn start(receiver: Receiver, secret: &str) -> Self {
        let mut child = receiver.spawn(secret, &[], Stdio::null());
        let mut running = Self { lines: BufReader::new(child.stdout.take().unwrap()), child, port: 0 };
        running.port = running.line().strip_prefix("listening on ").unwrap().parse().unwrap();
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn receivers_accept_callbacks_and_drop_duplicates() {
    for receiver in [Receiver::Python, Receiver::Node] {
        let secret = generate_secret().unwrap();
        let mut running = Running::start(receiver, &secret);
        let options = HttpSenderOptions {
            allow_http: true,
            allow_networks: vec!["127.0.0.0/8".to_owned()],
            ports: vec![running.port],
            ..HttpSenderOptions::default()
        };
        let callback_sender = HttpSender::new(options).unwrap();
        let delivery = |id: &str, secret: &str, gzip| CallbackDelivery {
            id: id.to_owned(),
            kind: CallbackType::Http,
            target: format!("http://127.0.0.1:{}/done", running.port),
            client: Arc::new(Client {
                key: ClientKey(1),
                client_id: ClientId::new("shop").unwrap(),
                secret_hash: String::new(),
                signing_secrets: vec![in_use(secret)],
                destinations: Vec::new(),
                notifications: NotificationRights::default(),
            }),
            body: BODY.to_owned(),
            gzip,
            trace: None,
            now: now(),
        };
        let (first, second, forged) = (
            delivery("t-1", &secret, false),
            delivery("t-2", &secret, true),
            delivery("t-3", &generate_secret().unwrap(), false),
        );

        for (delivery, status) in [(&first, 204), (&first, 204), (&forged, 401), (&second, 204)] {
            let reply = callback_sender.send(delivery).await;
            assert_eq!(reply.status, Some(status), "{receiver:?}: {reply:?}");
        }
        assert!(matches!(callback_sender.send(&forged).await, Reply { outcome: ReplyOutcome::Refused { .. }, .. }));
        assert_eq!([running.line(), running.line()], ["taken t-1 SUCCESS", "taken t-2 SUCCESS"], "{receiver:?}");
    }
}

/// What the guide shows between its markers.
fn shown(name: &str, language: &str) -> String {
    let guide = std::fs::read_to_string(root().join("docs/guides/callbacks.md")).unwrap();
    let begin = format!("<!-- {name} -->\n```{language}\n");
    let after = guide.split_once(&begin).unwrap_or_else(|| panic!("the guide does not show {name}")).1;
    after.split_once("```\n<!-- end -->\n").unwrap().0.to_owned()
}

#[test]
fn the_bytes_in_the_guide_are_genuine() {
    let bytes = shown("bytes", "http");
    let (head, body) = bytes.trim_end().split_once("\n\n").unwrap();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap();
    assert_eq!(header("content-length"), body.len().to_string());
    let (id, timestamp, signature) = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let at = Timestamp::from_millis(timestamp.parse::<i64>().unwrap() * 1000);
    let secret = "whsec_NWpEbLE3zv93+bOQoG97TlFRZnPp3v+l";
    assert_eq!(verify(secret, id, timestamp, body.as_bytes(), signature, Duration::ZERO, at), Ok(()));
}

#[test]
fn the_guide_shows_the_examples_as_they_are() {
    for receiver in Receiver::ALL {
        let (file, language) = receiver.file();
        let shown = shown(file, language);
        let code = std::fs::read_to_string(root().join(file)).unwrap();
        assert_eq!(shown, code, "copy {file} into docs/guides/callbacks.md, or the other way round");
    }
}
