//! Reaches the server: TCP or a socket, with TLS where it is asked for. rustls with ring, like everything else here.
//!
//! `sslmode` means what it means to libpq, but that `allow` is `disable`, as it is to sqlx, which makes the other connections.

use std::{borrow::Cow, io, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use socket2::{SockRef, TcpKeepalive};
use sqlx::postgres::PgSslMode;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use crate::{Address, CaptureError, channel_binding::end_point, connection::Wire};

type Result<T> = std::result::Result<T, CaptureError>;

/// A host that is gone without a word is noticed after a few of these.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The first bytes of a connection that wants TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// The way to a server, and what channel binding binds to, if it is by TLS and the certificate allows it.
pub(crate) struct Reached {
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) end_point: Option<Vec<u8>>,
}

impl Reached {
    fn plainly(wire: impl Wire + 'static) -> Self {
        Self { wire: Box::new(wire), end_point: None }
    }
}

pub(crate) async fn connect(address: &Address) -> Result<Reached> {
    let failed = |source| CaptureError::Connection { address: address.to_string(), source };
    if let Some(folder) = &address.socket {
        let file = folder.join(format!(".s.PGSQL.{}", address.port));
        return Ok(Reached::plainly(UnixStream::connect(file).await.map_err(failed)?));
    }
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(failed)?;
    if matches!(address.tls, PgSslMode::Disable | PgSslMode::Allow) {
        return Ok(Reached::plainly(stream));
    }
    // Before anything is sent: a file that can not be read is no trouble of the server.
    let config = config(address)?;
    stream.write_all(&SSL_REQUEST).await.map_err(failed)?;
    if stream.read_u8().await.map_err(failed)? != b'S' {
        return match address.tls {
            PgSslMode::Prefer => Ok(Reached::plainly(stream)),
            _ => Err(CaptureError::Tls(format!("{address} has none, and the URL asks for it"))),
        };
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(io::Error::other(error)))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(failed)?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let end_point = certificate.and_then(|certificate| end_point(certificate));
    Ok(Reached { wire: Box::new(stream), end_point })
}

fn config(address: &Address) -> Result<ClientConfig> {
    let failed = |error: rustls::Error| CaptureError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = || match &address.root_certificates {
        // These alone: whoever names a root does not want others to vouch for the server.
        Some(roots) => chain_to(roots, &provider),
        None => Ok(Arc::new(Verifier::new(Arc::clone(&provider)).map_err(failed)?) as Arc<dyn ServerCertVerifier>),
    };
    let verifier: Arc<dyn ServerCertVerifier> = match address.tls {
        PgSslMode::VerifyFull => chain()?,
        PgSslMode::VerifyCa => Arc::new(AnyName(chain()?)),
        PgSslMode::Require if address.root_certificates.is_some() => Arc::new(AnyName(chain()?)),
        _ => Arc::new(Anybody(Arc::clone(&provider))),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .dangerous() // is what rustls calls any verifier but its own
        .with_custom_certificate_verifier(verifier);
    match &address.client_certificate {
        Some((certificate, key)) => {
            config.with_client_auth_cert(read_pem(certificate)?, read_key(key)?).map_err(failed)
        }
        None => Ok(config.with_no_client_auth()),
    }
}

fn chain_to(roots: &str, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>> {
    let mut store = RootCertStore::empty();
    for root in read_pem(roots)? {
        store.add(root).map_err(|error| CaptureError::Tls(error.to_string()))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider));
    Ok(verifier.build().map_err(|error| CaptureError::Tls(format!("{}: {error}", named(roots))))?)
}

fn read_pem(given: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<_, _> = CertificateDer::pem_slice_iter(&text_of(given)?).collect();
    read.map_err(|error| CaptureError::Tls(format!("{}: {error}", named(given))))
}

fn read_key(given: &str) -> Result<PrivateKeyDer<'static>> {
    let read = PrivateKeyDer::from_pem_slice(&text_of(given)?);
    read.map_err(|error| CaptureError::Tls(format!("{}: {error}", named(given))))
}

fn is_text(given: &str) -> bool {
    given.trim_start().starts_with("-----BEGIN")
}

/// PEM itself, or that of a file, as sqlx takes both.
fn text_of(given: &str) -> Result<Cow<'_, [u8]>> {
    if is_text(given) {
        return Ok(Cow::Borrowed(given.as_bytes()));
    }
    let read = std::fs::read(given);
    read.map(Cow::Owned).map_err(|error| CaptureError::Tls(format!("{given} can not be read: {error}")))
}

/// What an error calls it: a key must not be in one.
fn named(given: &str) -> &str {
    if is_text(given) { "what the URL has" } else { given }
}

/// `sslmode=prefer`, and `require` without a root certificate: the connection is encrypted, and nobody asks who is there. That
/// is what they mean to every client of PostgreSQL.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

/// `sslmode=verify-ca`, and `require` with a root certificate: the certificate must be good, for whatever name.
#[derive(Debug)]
struct AnyName(Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
