//! A push service of a test's own, and browsers that have subscribed there: they decrypt what arrives with their private keys.
//!
//! The key agreement is not that of the code under test: the browser's side is by the crate `p256`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use p256::{PublicKey, SecretKey, ecdh::diffie_hellman, elliptic_curve::sec1::ToSec1Point as _};
use relais_tests::app::DEADLINE;
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
    rand::{SecureRandom as _, SystemRandom},
    signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

/// A push as it has arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Arrived {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// A status, and how many seconds to wait.
type Reply = (u16, Option<u32>);

struct Shared {
    arrived: watch::Sender<Vec<Arrived>>,
    script: Mutex<VecDeque<Reply>>,
}

/// A push service that takes all pushes, unless it is told otherwise.
pub struct PushService {
    pub port: u16,
    shared: Arc<Shared>,
}

impl PushService {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared { arrived: watch::channel(Vec::new()).0, script: Mutex::default() });
        let router = Router::new().fallback(take).with_state(Arc::clone(&shared));
        // Ends with the test's runtime.
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, shared }
    }

    /// What it answers to the next pushes.
    pub fn will(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.script.lock().unwrap_or_else(PoisonError::into_inner).extend(replies);
    }

    /// A browser that subscribes here. The name is that of its endpoint.
    pub fn browser(&self, name: &str) -> Browser {
        let random = SystemRandom::new();
        let (mut secret, mut auth) = ([0; 32], [0; 16]);
        random.fill(&mut secret).and_then(|()| random.fill(&mut auth)).expect("random bytes");
        let path = format!("/push/{name}");
        Browser {
            endpoint: format!("http://127.0.0.1:{}{path}", self.port),
            path,
            origin: format!("http://127.0.0.1:{}", self.port),
            secret: SecretKey::from_slice(&secret).expect("a key"),
            auth,
        }
    }

    /// All pushes so far.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.shared.arrived.borrow().clone()
    }

    /// All pushes, once there are so many.
    pub async fn wait_for(&self, count: usize) -> Vec<Arrived> {
        let mut seen = self.shared.arrived.subscribe();
        let reached = tokio::time::timeout(DEADLINE, seen.wait_for(|arrived| arrived.len() >= count)).await;
        assert!(reached.is_ok(), "{} of {count} pushes came", self.arrived().len());
        self.arrived()
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let arrived = Arrived {
        path: parts.uri.to_string(),
        headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: body.to_vec(),
    };
    let reply = shared.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (status, wait) = reply.unwrap_or((201, None));
    shared.arrived.send_modify(|all| all.push(arrived));
    let mut response = (StatusCode::from_u16(status).unwrap_or_default(), Bytes::new()).into_response();
    if let Some(seconds) = wait {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

/// Bytes that HKDF gives.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const N: usize>(from: &Prk, info: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    from.expand(info, Length(N)).and_then(|output| output.fill(&mut bytes)).expect("bytes");
    bytes
}

/// A browser with a subscription.
pub struct Browser {
    pub endpoint: String,
    path: String,
    origin: String,
    secret: SecretKey,
    auth: [u8; 16],
}

impl Browser {
    fn public(&self) -> Box<[u8]> {
        self.secret.public_key().to_sec1_point(false).as_bytes().into()
    }

    /// What a page of it sends to Relais: `PushSubscription.toJSON()`.
    pub fn subscription(&self) -> Value {
        let keys = json!({"p256dh": URL_SAFE_NO_PAD.encode(self.public()), "auth": URL_SAFE_NO_PAD.encode(self.auth)});
        json!({"endpoint": self.endpoint, "expirationTime": null, "keys": keys})
    }

    /// Those of these pushes that are for it.
    pub fn mine<'a>(&self, arrived: &'a [Arrived]) -> Vec<&'a Arrived> {
        arrived.iter().filter(|push| push.path == self.path).collect()
    }

    /// What those say that are for it.
    pub fn read(&self, arrived: &[Arrived]) -> Vec<Value> {
        self.mine(arrived).into_iter().map(|push| self.decrypt(push)).collect()
    }

    /// What a push says (RFC 8188, RFC 8291).
    pub fn decrypt(&self, push: &Arrived) -> Value {
        assert_eq!(push.header("content-encoding"), "aes128gcm");
        let (salt, rest) = push.body.split_at(16);
        assert_eq!((&rest[..4], rest[4]), (&4096_u32.to_be_bytes()[..], 65));
        let (theirs, record) = rest[5..].split_at(65);
        assert!(push.body.len() <= 4096);
        let point = PublicKey::from_sec1_bytes(theirs).expect("the server's key");
        let secret = diffie_hellman(self.secret.to_nonzero_scalar(), point.as_affine());
        let who = [b"WebPush: info\0".as_slice(), &self.public(), theirs];
        let input: [u8; 32] =
            expand(&Salt::new(HKDF_SHA256, &self.auth).extract(secret.raw_secret_bytes().as_slice()), &who);
        let keys = Salt::new(HKDF_SHA256, salt).extract(&input);
        let key: [u8; 16] = expand(&keys, &[b"Content-Encoding: aes128gcm\0"]);
        let nonce = Nonce::assume_unique_for_key(expand(&keys, &[b"Content-Encoding: nonce\0"]));
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("a key"));
        let mut record = record.to_vec();
        let text = key.open_in_place(nonce, Aad::empty(), &mut record).expect("it is for this browser");
        // Padding is zeros behind the byte that ends the text.
        let end = text.iter().rposition(|byte| *byte != 0).expect("an end");
        assert_eq!(text[end], 2);
        serde_json::from_slice(&text[..end]).expect("JSON")
    }

    /// The claims that a push is signed with, by the key that the browser was told.
    pub fn verify(&self, push: &Arrived, key: &str) -> Value {
        let (token, public) = push
            .header("authorization")
            .strip_prefix("vapid t=")
            .and_then(|rest| rest.split_once(", k="))
            .expect("the scheme of RFC 8292");
        assert_eq!(public, key);
        let (signed, signature) = token.rsplit_once('.').expect("a JWT");
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).expect("base64url");
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(public));
        public.verify(signed.as_bytes(), &decode(signature)).expect("the signature");
        let claims: Value =
            serde_json::from_slice(&decode(signed.split_once('.').expect("a JWT").1)).expect("the claims");
        assert_eq!(claims["aud"], self.origin);
        claims
    }
}
