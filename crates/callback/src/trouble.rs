//! What went wrong on the way, in words for operators and clients.
//!
//! The HTTP client wraps its errors several layers deep, and prints them for programmers. What it is about is somewhere
//! inside: it is looked for by type, never by text.

use std::{error::Error, io};

use relais_core::NotAllowed;
use rustls::CertificateError;

use crate::resolve::Unresolved;

/// Why there was no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// It may not be sent there: not the endpoint's fault, and no better next time.
    Forbidden(String),
    /// The endpoint can not be reached, or does not speak as it should.
    Unwell(String),
    /// No connection came about in time.
    Late,
}

/// Finds out what an error is about: the innermost cause that means something.
pub(crate) fn trouble(error: &(dyn Error + 'static)) -> SendError {
    let mut found = None;
    let mut next = Some(error);
    while let Some(error) = next {
        found = known(error).or(found);
        next = error.source();
    }
    found.unwrap_or_else(|| SendError::Unwell("the connection failed".to_owned()))
}

fn known(error: &(dyn Error + 'static)) -> Option<SendError> {
    if let Some(NotAllowed(why)) = error.downcast_ref() {
        return Some(SendError::Forbidden(why.clone()));
    }
    if let Some(unresolved) = error.downcast_ref::<Unresolved>() {
        return Some(SendError::Unwell(unresolved.to_string()));
    }
    if error.downcast_ref().is_some_and(reqwest::Error::is_timeout) {
        return Some(SendError::Late);
    }
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(SendError::Unwell(tls(error)));
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return http(error).map(|words| SendError::Unwell(words.to_owned()));
    }
    let error = error.downcast_ref::<io::Error>()?;
    // An I/O error does not count what it wraps among its sources.
    match error.get_ref() {
        Some(inner) => known(inner).or_else(|| plain(error)),
        None => plain(error),
    }
}

fn plain(error: &io::Error) -> Option<SendError> {
    use io::ErrorKind as E;
    let words = match error.kind() {
        E::TimedOut => return Some(SendError::Late),
        E::ConnectionRefused => "connection refused",
        E::ConnectionReset | E::BrokenPipe | E::ConnectionAborted => "the connection was cut",
        E::UnexpectedEof => "the connection was closed before there was an answer",
        E::HostUnreachable => "the host can not be reached",
        E::NetworkUnreachable => "the network can not be reached",
        _ => return None,
    };
    Some(SendError::Unwell(words.to_owned()))
}

fn http(error: &hyper::Error) -> Option<&'static str> {
    match error {
        error if error.is_parse_too_large() => Some("the headers of the answer are too large"),
        error if error.is_parse() => Some("the answer is not HTTP"),
        error if error.is_incomplete_message() => Some("the connection was closed before there was an answer"),
        _ => None,
    }
}

fn tls(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(why) => format!("the certificate is not trusted: {}", certificate(why)),
        E::NoCertificatesPresented => "the certificate is not trusted: there is none".to_owned(),
        E::InvalidMessage(_) => "the endpoint does not speak TLS".to_owned(),
        E::AlertReceived(_) => "the endpoint refused the TLS handshake".to_owned(),
        E::PeerIncompatible(_) => "the endpoint speaks no version of TLS that is safe".to_owned(),
        _ => "the TLS handshake failed".to_owned(),
    }
}

fn certificate(error: &CertificateError) -> &'static str {
    use CertificateError as E;
    match error {
        E::UnknownIssuer => "its issuer is unknown",
        E::Expired | E::ExpiredContext { .. } => "it has expired",
        E::NotValidYet | E::NotValidYetContext { .. } => "it is not valid yet",
        E::NotValidForName | E::NotValidForNameContext { .. } => "it is for another name",
        E::Revoked => "it was revoked",
        E::BadSignature => "its signature is wrong",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => "it is not for servers",
        _ => "it is not valid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_send_error_is_found() {
        let inner = NotAllowed("the address 10.0.0.1 is not allowed".to_owned());
        let wrapped = io::Error::other(io::Error::other(inner));
        assert_eq!(trouble(&wrapped), SendError::Forbidden("the address 10.0.0.1 is not allowed".to_owned()));
        let tls = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::General("x".to_owned()));
        assert_eq!(trouble(&tls), SendError::Unwell("the TLS handshake failed".to_owned()));
        assert_eq!(trouble(&io::Error::from(io::ErrorKind::TimedOut)), SendError::Late);
    }

    #[test]
    fn an_unknown_send_error_is_not_shown_in_detail() {
        assert_eq!(trouble(&std::fmt::Error), SendError::Unwell("the connection failed".to_owned()));
    }
}
