//! Reaches the server: TCP or a socket, with TLS where it is asked for. rustls with ring, like everything else here.

use std::{io, path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use rustls_platform_verifier::Verifier;
use socket2::{SockRef, TcpKeepalive};
use sqlx::postgres::PgSslMode;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use crate::{Address, CaptureError, connection::Wire};

type Result<T> = std::result::Result<T, CaptureError>;

/// A host that is gone without a word is noticed after a few of these.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The first bytes of a connection that wants TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

pub(crate) async fn connect(address: &Address) -> Result<Box<dyn Wire>> {
    let failed = |source| CaptureError::Connection { address: address.to_string(), source };
    if let Some(folder) = &address.socket {
        let file = folder.join(format!(".s.PGSQL.{}", address.port));
        return Ok(Box::new(UnixStream::connect(file).await.map_err(failed)?));
    }
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(failed)?;
    let verified = match address.tls {
        PgSslMode::Disable | PgSslMode::Allow => return Ok(Box::new(stream)),
        PgSslMode::Prefer | PgSslMode::Require => false,
        PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
    };
    stream.write_all(&SSL_REQUEST).await.map_err(failed)?;
    if stream.read_u8().await.map_err(failed)? != b'S' {
        return match address.tls {
            PgSslMode::Prefer => Ok(Box::new(stream)),
            _ => Err(CaptureError::Tls(format!("{address} has none, and the URL asks for it"))),
        };
    }
    let by_name = matches!(address.tls, PgSslMode::VerifyFull);
    let config = config(verified, by_name, address.root_certificates.as_deref())?;
    let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(io::Error::other(error)))?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(failed)?))
}

fn config(verified: bool, by_name: bool, roots: Option<&Path>) -> Result<ClientConfig> {
    let failed = |error: rustls::Error| CaptureError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if verified {
        let roots = roots.map_or(Ok(Vec::new()), read_certificates)?;
        let chain = Verifier::new_with_extra_roots(roots, Arc::clone(&provider)).map_err(failed)?;
        match by_name {
            true => Arc::new(chain),
            false => Arc::new(AnyName(chain)),
        }
    } else {
        Arc::new(Anybody(Arc::clone(&provider)))
    };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .dangerous() // is what rustls calls any verifier but its own
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let failed = |error: rustls::pki_types::pem::Error| CaptureError::Tls(format!("{}: {error}", path.display()));
    CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<std::result::Result<_, _>>().map_err(failed)
}

/// `sslmode=prefer` and `require`: the connection is encrypted, and nobody asks who is there. That is what they mean to
/// every client of PostgreSQL.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

/// `sslmode=verify-ca`: the certificate must be good, for whatever name.
#[derive(Debug)]
struct AnyName(Verifier);

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
