//! Why something is refused. What a token says is shortened before it gets into a message. Tokens and secrets never do.

use std::time::Duration;

use super::{InvalidIdentity, LEAST_SECRET_BYTES};

/// Why a token or a ticket does not prove who somebody is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// It is too long.
    #[error("the token has {found} bytes, and at most {limit} are allowed")]
    TooLong {
        /// How many it has.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
    /// It can not be read.
    #[error("the token can not be read: {0}")]
    Malformed(&'static str),
    /// It is signed by an algorithm that is not supported, or not at all.
    #[error("the algorithm {alg:?} is not one of HS256, RS256, ES256 and EdDSA")]
    UnsupportedAlgorithm {
        /// What its header says, shortened.
        alg: String,
    },
    /// The key is for another algorithm.
    #[error("the token names another algorithm than that of the key")]
    WrongAlgorithm,
    /// It demands something of the verifier that is not supported.
    #[error("the token has critical header parameters, and none are supported")]
    CriticalHeader,
    /// There are no keys yet.
    #[error("no keys are loaded yet")]
    NoKeys,
    /// No key of the JWKS has this id. Perhaps the JWKS has changed.
    #[error("the JWKS has no key with the id {kid:?}")]
    UnknownKid {
        /// The id, shortened.
        kid: String,
    },
    /// No key has signed it.
    #[error("the signature is wrong")]
    BadSignature,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// Its time has not come.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// A claim is not there.
    #[error("the claim `{0}` is missing")]
    MissingClaim(String),
    /// A claim is something else than it should be.
    #[error("the claim `{claim}` must be {expected}")]
    BadClaim {
        /// Which one.
        claim: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An object has a name twice, so that two readers might understand it differently.
    #[error("a name is there twice in the {0} of the token")]
    Duplicate(&'static str),
    /// It comes from somebody else.
    #[error("the token has another issuer")]
    WrongIssuer,
    /// It is for somebody else.
    #[error("the token is for another audience (`aud`)")]
    WrongAudience,
    /// It says something about the user that can not be.
    #[error(transparent)]
    Identity(#[from] InvalidIdentity),
    /// It says that the user belongs to an audience of a type that nobody has declared.
    #[error(transparent)]
    UnknownType(#[from] crate::UnknownAudienceType),
    /// It is a ticket, and tickets are not accepted.
    #[error("tickets are not accepted: there is no key for them")]
    NoTickets,
    /// It is not a ticket, and only tickets are accepted.
    #[error("only tickets are accepted: there are no keys for other tokens")]
    NoTokens,
}

/// Why keys are refused. The message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysRefused {
    /// There is no secret.
    #[error("there is no HS256 secret; make one with `openssl rand -base64 48`")]
    NoSecret,
    /// A secret can be guessed.
    #[error(
        "an HS256 secret must have at least {LEAST_SECRET_BYTES} bytes, and this one has {found}; \
         make one with `openssl rand -base64 48`"
    )]
    WeakSecret {
        /// How many bytes it has.
        found: usize,
    },
    /// A key was given where a secret belongs. A public key is known to all, and would let them sign.
    #[error("the HS256 secret is a PEM document; give it as a public key instead")]
    SecretIsPem,
    /// A private key was given where a public one belongs.
    #[error("this is a private key; give the public one: `openssl pkey -in private.pem -pubout`")]
    PrivateKey,
    /// There is no public key.
    #[error("there is no PEM section `PUBLIC KEY`; make one with `openssl pkey -in private.pem -pubout`")]
    NoPublicKey,
    /// A public key is of another kind.
    #[error("the public key must be RSA (2048 to 8192 bits), EC on the curve P-256 (uncompressed), or Ed25519")]
    UnsupportedPublicKey,
    /// It is not a JWKS.
    #[error("this is not a JWKS: a JSON object whose `keys` is a list is expected")]
    NotJwks,
    /// There are too many keys in the JWKS.
    #[error("the JWKS has {found} keys, and at most {limit} are allowed")]
    TooManyKeys {
        /// How many it has.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
    /// No key of the JWKS can be used.
    #[error("none of the {skipped} keys of the JWKS can verify RS256, ES256 or EdDSA signatures")]
    NoUsableKey {
        /// How many keys it has.
        skipped: usize,
    },
    /// The keys are given once and for all.
    #[error("the keys of this verifier do not come from a JWKS")]
    NotFromJwks,
}

/// Why a ticket is not issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketRefused {
    /// The identity can not be.
    #[error(transparent)]
    Identity(#[from] InvalidIdentity),
    /// It would say that the user belongs to an audience of a type that nobody has declared.
    #[error(transparent)]
    UnknownType(#[from] crate::UnknownAudienceType),
    /// The identity that it is issued for has expired.
    #[error("the identity has expired")]
    Expired,
    /// It would be valid for too short, or for too long.
    #[error("a ticket is valid for 1 to {} seconds", longest.as_secs())]
    BadTtl {
        /// The longest ttl.
        longest: Duration,
    },
    /// It would not fit into an address.
    #[error(
        "the ticket would have {found} bytes, and at most {limit} are allowed; declare audiences with members instead"
    )]
    TooLong {
        /// How many it would have.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
}

/// The start of a text from a token that nobody has verified.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
