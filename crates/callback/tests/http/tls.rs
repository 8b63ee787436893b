//! Certificates: who is trusted, and what is told of those who are not.

use std::{fs, path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use relais_callback::{HttpSender, HttpSenderError, HttpSenderOptions};
use relais_core::ReplyOutcome;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::{
    receiver::{LOOPBACK, Receiver, answer_once},
    support::*,
};

const NAME: &str = "receiver.test";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// An authority of one's own, and its certificate in a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("roots.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("roots.pem")
    }

    /// A receiver with a certificate of this authority.
    async fn receiver(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Receiver {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate = params.signed_by(&key, issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        Receiver::on(listener, Some(tls), |connection| answer_once(connection, OK.into()))
    }
}

fn sender_for(port: u16, roots: Option<PathBuf>) -> HttpSender {
    let options = HttpSenderOptions { root_certificates: roots, allow_http: false, ..options(port) };
    HttpSender::with_resolver(options, Script::new(&[&["127.0.0.1"]])).unwrap()
}

fn target(port: u16) -> String {
    format!("https://{NAME}:{port}/hook")
}

#[tokio::test]
async fn an_authority_that_the_operator_trusts_is_trusted() {
    let authority = Authority::new("ours");
    let mut receiver = authority.receiver(NAME, |_| {}).await;
    let callback_sender = sender_for(receiver.port(), Some(authority.file()));
    let reply = send(&callback_sender, &target(receiver.port())).await;
    assert_eq!((reply.outcome, why(&reply)), (ReplyOutcome::Delivered, ""));
    assert_eq!(receiver.request().await.body, BODY.as_bytes());
}

#[tokio::test]
async fn an_unknown_certificate_authority_is_not_trusted() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let receiver = authority.receiver(NAME, |_| {}).await;
    for roots in [None, Some(other.file())] {
        let reply = send(&sender_for(receiver.port(), roots), &target(receiver.port())).await;
        let error = "the certificate is not trusted: its issuer is unknown";
        assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, error, None));
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let authority = Authority::new("ours");
    let receiver = authority.receiver("other.test", |_| {}).await;
    let reply = send(&sender_for(receiver.port(), Some(authority.file())), &target(receiver.port())).await;
    let error = "the certificate is not trusted: it is for another name";
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, error));
}

#[tokio::test]
async fn a_certificate_out_of_its_time_is_not_trusted() {
    let authority = Authority::new("ours");
    let expired = authority.receiver(NAME, |params| params.not_after = date_time_ymd(2001, 1, 1)).await;
    let early = authority.receiver(NAME, |params| params.not_before = date_time_ymd(3000, 1, 1)).await;
    for (receiver, error) in [(expired, "it has expired"), (early, "it is not valid yet")] {
        let reply = send(&sender_for(receiver.port(), Some(authority.file())), &target(receiver.port())).await;
        assert_eq!(reply.outcome, UNWELL);
        assert_eq!(why(&reply), format!("the certificate is not trusted: {error}"));
    }
}

#[tokio::test]
async fn an_endpoint_without_tls_is_reported() {
    let receiver = Receiver::start(|mut connection| async move {
        connection.say("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        connection.left_alone().await;
    })
    .await;
    let reply = send(&sender_for(receiver.port(), None), &target(receiver.port())).await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "the endpoint does not speak TLS"));
}

#[tokio::test]
async fn the_deadline_covers_the_handshake() {
    let receiver = Receiver::start(|mut connection| async move { connection.left_alone().await }).await;
    let options = hurried(receiver.port());
    let callback_sender = HttpSender::with_resolver(options, Script::new(&[&["127.0.0.1"]])).unwrap();
    let (reply, took) = timed(&callback_sender, &target(receiver.port())).await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "no answer within 300ms"));
    assert!((SHORT..AT_MOST).contains(&took), "{took:?}");
}

#[test]
fn a_file_without_certificates_is_refused() {
    let folder = TempDir::new().unwrap();
    let with = |name: &str| {
        HttpSender::new(HttpSenderOptions {
            root_certificates: Some(folder.path().join(name)),
            ..HttpSenderOptions::default()
        })
    };
    fs::write(folder.path().join("empty.pem"), "nothing").unwrap();
    assert!(matches!(with("missing.pem"), Err(HttpSenderError::RootCertificates { .. })));
    assert!(matches!(with("empty.pem"), Err(HttpSenderError::NoRootCertificate { .. })));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(folder.path().join("broken.pem"), broken).unwrap();
    assert!(matches!(with("broken.pem"), Err(HttpSenderError::Setup(_))));
}
