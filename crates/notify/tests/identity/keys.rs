//! Keys of these tests, made by openssl, and tokens signed with them. They guard nothing.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::{
    hmac,
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use serde_json::{Value, json};

pub const SECRET: &[u8] = b"32 bytes of a secret for a test.";

const RSA_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MIIEvwIBADANBgkqhkiG9w0BAQEFAASCBKkwggSlAgEAAoIBAQCk7PLZ/PyfF0Bv
MbpGkp97sJ9mBFmhmEjo5itL7HUzmqHMVAGI7TKxV7hXLWsLoT0sLP/IGYgPnJrx
scjSw1iQQ7aqaMEkKM9gdpLEfYCIJ1cS+SVWaKSFDnIBp99hV5kbWBrRSnZnCtue
ui+gWpE4Y/s3d7wxPrjs0ZKPLn6PauXqSr9W8Yty8ykTF4JqVRhG2egVrBgidJti
VTFUdmuYkL0Bdwu1PL1Orlb46IQGQn+gabpjxVllJWv429G8maVItT2osxz7t+Iz
0rwWgsFc8GDIIN7SCel2nsP+eV8DzhE06Sg6sp7jan2cMqzuL9WoHYMwpill+Tfj
niNVSEBtAgMBAAECggEABcShaA/XIFOecIp3RsLChVTY96cFISfJEazZIfjlZCEP
RxeUt9P/PvYVL6avlNLLvP40POyYVl7GXtfLsQQIK9V+b5PQgMyqQhKrkT0yxVrw
3+xASsxynT0Ig40k53aPl4X7kXXOpyMZVBdpaoI4YYCXrOneYQTd+q8IC+4W8DpB
Cd0YSvXuS/WdjwvE5yAHdjj60MEN36iLJ/FB+ygLn7VnSd4oYLJfQWoozNCDG5g3
N+y9DufO5mKTpyNKQaEmhoKIpv5vN5OVSXxxoGJrVJeTtelLVXN3FgNJ5DKHtxZi
XPTeHzpMf+D9sDen8CRYELu22VZ+7H9UziEQkYSwkQKBgQDfk/g4Lg4y89J0fLSj
xEGs39ecbojAPFF0Q9a1ivznqN5vLN18tsT1OghOGpbmAJdUbURhcO+2IrCOvEGv
elPg+jACqU9ZR+fTYN662nqH3h37pwATmsSSrpbQneiICRQXcxooWNw5CLTqqapM
XLTR1wuVSlldOYtCvmbdZNWk3QKBgQC815ZVYKbRoEM5eqQ2n/DJS5PI1tWcv/7b
J1iCMzjtjmTWv83GCR2WwbOEBH2mYwqjEpyt9KCNK5AaTBYvcnejHgNRey/hTHeR
sAiuvlvH8aEws7879PpkRS7bZMNLrlkg20tdlBLe3i6XMjs4Wt7VDDS4cP9glxBW
gVPAGVDI0QKBgQDDZxGkGCx0v8CJ6ov+LYKw0pogsEJ4sL8H/FplJGpRFbgCNpYF
b7/IC8ZCbN7BenbIZQ9Ekm4PI1ZoCYTnFuTEViUrzkn5X+zvQ1Smvlgk8y4FSTm5
6KQxBsHs5nXanwSeUgzkgnVGq6NjDJI4VzX5yBbpjad44Ngjp0FD8eL/SQKBgQCm
lfPrKxDd+Wd0DClSerM5j681y7ayyXf0MfhVGwSMI0H3Y0oN+bqdZBCNVDzXi6U1
h9SpbBQ5lIVRfW9QucSqI26/8VCiigcsgMKYDBsA/bm5McdwB8Les10Lcw8I8yty
3aDVUyt2aT9mZ4xwQVEzVcooLp5JwdlKxllwK6TlEQKBgQCC/LJk0kFycezes2FM
cC6L2b756UqGimPNkfdGh1O8FT0KUanRH7Z005aoQBUT62BwXHvKrlNy0zNEMvtl
5pXCWE/80zhDJbFWyEDYikbQCwxAgvOWF1nzh/QbkzhRY0fUdw5qhyojtCfUAOmc
7kgSQyQ4njTyNcm9IHqBUNO3Jw==
-----END PRIVATE KEY-----";
pub const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEApOzy2fz8nxdAbzG6RpKf
e7CfZgRZoZhI6OYrS+x1M5qhzFQBiO0ysVe4Vy1rC6E9LCz/yBmID5ya8bHI0sNY
kEO2qmjBJCjPYHaSxH2AiCdXEvklVmikhQ5yAaffYVeZG1ga0Up2ZwrbnrovoFqR
OGP7N3e8MT647NGSjy5+j2rl6kq/VvGLcvMpExeCalUYRtnoFawYInSbYlUxVHZr
mJC9AXcLtTy9Tq5W+OiEBkJ/oGm6Y8VZZSVr+NvRvJmlSLU9qLMc+7fiM9K8FoLB
XPBgyCDe0gnpdp7D/nlfA84RNOkoOrKe42p9nDKs7i/VqB2DMKYpZfk3454jVUhA
bQIDAQAB
-----END PUBLIC KEY-----";
const EC_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgQ2rez8tKB14CuHHt
Rv6WS0x8TKoPX9AKQziCMrf0mYOhRANCAAQsl4w58aKnTVYyyjZO3ykDym/b4NPe
tehMTd426GFtivYk9WpPOJ4l7O1vOwYncCU1owIEgkrU32SzdtZ644pA
-----END PRIVATE KEY-----";
pub const EC_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAELJeMOfGip01WMso2Tt8pA8pv2+DT
3rXoTE3eNuhhbYr2JPVqTzieJeztbzsGJ3AlNaMCBIJK1N9ks3bWeuOKQA==
-----END PUBLIC KEY-----";
const ED_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIDyGzjT66MqxqzH155ESabDpvwDsQprN4QhR7wsFQoHE
-----END PRIVATE KEY-----";
pub const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA3pd+j+XcMrpiwYcelyFUjT/XTPD5qebpFdv/RuxxeoQ=
-----END PUBLIC KEY-----";

/// Something that signs tokens.
pub enum Signer {
    Hs256(Vec<u8>),
    Rs256(RsaKeyPair),
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

impl Signer {
    pub fn hs256() -> Self {
        Self::Hs256(SECRET.to_vec())
    }

    pub fn rs256() -> Self {
        Self::Rs256(RsaKeyPair::from_pkcs8(&der(RSA_PRIVATE)).unwrap())
    }

    pub fn es256() -> Self {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        Self::Es256(EcdsaKeyPair::from_pkcs8(algorithm, &der(EC_PRIVATE), &SystemRandom::new()).unwrap())
    }

    pub fn eddsa() -> Self {
        Self::EdDsa(Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der(ED_PRIVATE)).unwrap())
    }

    /// A key that nobody has seen before.
    pub fn new_es256() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self::Es256(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap())
    }

    pub fn alg(&self) -> &'static str {
        match self {
            Self::Hs256(_) => "HS256",
            Self::Rs256(_) => "RS256",
            Self::Es256(_) => "ES256",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Hs256(secret) => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec(),
            Self::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Self::Es256(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::EdDsa(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with this text as header and this text as claims.
    pub fn token_of(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        format!("{signed}.{}", encoded(self.sign(signed.as_bytes())))
    }

    pub fn token(&self, claims: &Value) -> String {
        self.token_of(&json!({"typ": "JWT", "alg": self.alg()}).to_string(), &claims.to_string())
    }

    pub fn token_by(&self, kid: &str, claims: &Value) -> String {
        self.token_of(&json!({"alg": self.alg(), "kid": kid}).to_string(), &claims.to_string())
    }

    /// Its public key, as an entry of a JWKS.
    pub fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Hs256(secret) => json!({"kty": "oct", "kid": kid, "k": encoded(secret)}),
            Self::Rs256(key) => {
                let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": encoded(n), "e": encoded(e)})
            }
            Self::Es256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": encoded(x), "y": encoded(y)})
            }
            Self::EdDsa(key) => {
                let x = encoded(key.public_key());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "key_ops": ["verify"], "x": x})
            }
        }
    }
}

pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn jwks(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

fn der(pem: &str) -> Vec<u8> {
    STANDARD.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap()
}
