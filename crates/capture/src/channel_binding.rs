//! What SCRAM binds to: the hash of the server's certificate, `tls-server-end-point` of RFC 5929.
//!
//! Reads only as much of a certificate as says how it is signed. Certificates whose signature has no hash of its own (Ed25519), or
//! names it in its parameters (RSA-PSS), can not be bound to here.

use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// `1.2.840.113549.1.1` and `1.2.840.10045.4`, as they are encoded.
const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
const ECDSA: [u8; 6] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];

/// The hash of a certificate by the function of its signature; SHA-256 where that is MD5 or SHA-1.
pub(crate) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (fields, _) = element(certificate)?;
    let (_signed, rest) = element(fields)?;
    let (algorithm, _) = element(rest)?;
    let (oid, _) = element(algorithm)?;
    let of_rsa = oid.strip_prefix(&RSA);
    let of_ecdsa = oid.strip_prefix(&ECDSA);
    match (of_rsa, of_ecdsa) {
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => Some(Sha256::digest(certificate).to_vec()),
        (Some([12]), _) | (_, Some([3, 3])) => Some(Sha384::digest(certificate).to_vec()),
        (Some([13]), _) | (_, Some([3, 4])) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The content of the first DER element, and what is behind it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_bound_to_nothing() {
        for der in [&[][..], &[0x30], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 2, 0x30, 0], &[0x30, 0x80]] {
            assert_eq!(end_point(der), None, "{der:?}");
        }
    }
}
