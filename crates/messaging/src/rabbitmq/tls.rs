//! TLS for `amqps`: rustls with ring, like everything else here, and the system's certificates.
//!
//! Not the library's own, which brings thirty crates for client certificates in a format that nobody asked for.

use std::{io, path::Path, sync::Arc};

use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::BrokerError;

/// What is needed to talk TLS, made once.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Trusts the system's authorities, and those in a file.
    pub(super) fn new(root_certificates: Option<&Path>) -> Result<Self, BrokerError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = root_certificates.map_or(Ok(Vec::new()), read_certificates)?;
        let verifier = Verifier::new_with_extra_roots(roots, Arc::clone(&provider)).map_err(BrokerError::Tls)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(BrokerError::Tls)?
            .dangerous() // is what rustls calls any verifier but its own
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Makes sure that the other end is `host`.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BrokerError> {
    let failed = |source| BrokerError::RootCertificates { path: path.to_owned(), source };
    let certificates = CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(failed)?;
    if certificates.is_empty() {
        return Err(BrokerError::NoRootCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}
