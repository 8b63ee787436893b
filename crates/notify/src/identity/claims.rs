//! What a token says, once its signature is verified.

use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::{
    Identity, TokenRefused,
    object::{NotObject, Object},
};
use crate::AudienceKey;

/// What is demanded of the claims of a token, and where they are.
///
/// The name of a claim that is not there may be a path into nested claims, such as `realm_access.groups`.
#[derive(Debug, Clone)]
pub struct ClaimRules {
    /// The claim that is the user. By default `sub`.
    pub user_claim: String,
    /// The claim with the user's audiences, `{TYPE: [target, …]}`; none where tokens have no say in it. By default
    /// `audiences`. A token without the claim has none.
    pub audiences_claim: Option<String>,
    /// `iss` must be one of these; empty: anything.
    pub iss: Vec<String>,
    /// `aud` must be, or contain, one of these; empty: anything.
    pub aud: Vec<String>,
    /// By how much clocks may differ. By default a minute.
    pub leeway: Duration,
    /// Whether a token without `exp` is refused. By default it is.
    pub exp_required: bool,
}

impl Default for ClaimRules {
    fn default() -> Self {
        Self {
            user_claim: "sub".to_owned(),
            audiences_claim: Some("audiences".to_owned()),
            iss: Vec::new(),
            aud: Vec::new(),
            leeway: Duration::from_secs(60),
            exp_required: true,
        }
    }
}

impl ClaimRules {
    /// Who the claims say the user is, if they are valid now.
    pub(super) fn identity(&self, claims: &str, now: Timestamp) -> Result<Identity, TokenRefused> {
        let claims = Object::parse(claims).map_err(|why| match why {
            NotObject::Duplicate => TokenRefused::Duplicate("claims"),
            NotObject::Other => TokenRefused::Malformed("the claims are not a JSON object"),
        })?;
        let expires = self.expires(&claims, now)?;
        self.check_origin(&claims)?;
        let user = find(&claims, &self.user_claim)?;
        let user = user.ok_or_else(|| TokenRefused::MissingClaim(self.user_claim.clone()))?;
        let user: String = read(&self.user_claim, user, "a text")?;
        let audiences = match &self.audiences_claim {
            Some(name) => match find(&claims, name)? {
                Some(text) => audiences(name, text)?,
                None => Vec::new(),
            },
            None => Vec::new(),
        };
        Ok(Identity::new(user, audiences, expires)?)
    }

    /// From when on the token is refused: the leeway is part of it.
    fn expires(&self, claims: &Object<'_>, now: Timestamp) -> Result<Option<Timestamp>, TokenRefused> {
        if let Some(not_before) = time(claims, "nbf")?
            && now.checked_add(self.leeway).is_ok_and(|now| now < not_before)
        {
            return Err(TokenRefused::NotYetValid);
        }
        let Some(exp) = time(claims, "exp")? else {
            let missing = || TokenRefused::MissingClaim("exp".to_owned());
            return if self.exp_required { Err(missing()) } else { Ok(None) };
        };
        let expires = exp.checked_add(self.leeway).unwrap_or(Timestamp::MAX);
        if now >= expires { Err(TokenRefused::Expired) } else { Ok(Some(expires)) }
    }

    /// Whether it comes from where it should, and is for this server.
    fn check_origin(&self, claims: &Object<'_>) -> Result<(), TokenRefused> {
        if !self.iss.is_empty() {
            let iss = claims.get("iss").map(|text| read::<String>("iss", text, "a text")).transpose()?;
            if !iss.is_some_and(|iss| self.iss.contains(&iss)) {
                return Err(TokenRefused::WrongIssuer);
            }
        }
        if !self.aud.is_empty() {
            let aud = claims.get("aud").map_or(Ok(Vec::new()), |text| match serde_json::from_str(text) {
                Ok(one) => Ok(vec![one]),
                Err(_) => read::<Vec<String>>("aud", text, "a text or a list of texts"),
            })?;
            if !aud.iter().any(|aud| self.aud.contains(aud)) {
                return Err(TokenRefused::WrongAudience);
            }
        }
        Ok(())
    }
}

/// The audiences of `{TYPE: [target, …]}`.
pub(super) fn audiences(claim: &str, text: &str) -> Result<Vec<AudienceKey>, TokenRefused> {
    let mut audiences = Vec::new();
    for (kind, targets) in object(claim, text)?.into_entries() {
        let targets: Vec<String> = read(claim, targets, "an object of lists of texts")?;
        audiences.extend(targets.into_iter().map(|target| AudienceKey::new(kind.clone(), target)));
    }
    Ok(audiences)
}

/// The text of a claim: by its name, which may have dots in it, or by a path.
fn find<'a>(claims: &Object<'a>, path: &str) -> Result<Option<&'a str>, TokenRefused> {
    if let Some(text) = claims.get(path) {
        return Ok(Some(text));
    }
    let Some((first, rest)) = path.split_once('.') else { return Ok(None) };
    let Some(text) = claims.get(first) else { return Ok(None) };
    find(&object(first, text)?, rest)
}

fn object<'a>(claim: &str, text: &'a str) -> Result<Object<'a>, TokenRefused> {
    Object::parse(text).map_err(|why| match why {
        NotObject::Duplicate => TokenRefused::Duplicate("claims"),
        NotObject::Other => TokenRefused::BadClaim { claim: claim.to_owned(), expected: "an object" },
    })
}

fn read<T: DeserializeOwned>(claim: &str, text: &str, expected: &'static str) -> Result<T, TokenRefused> {
    serde_json::from_str(text).map_err(|_| TokenRefused::BadClaim { claim: claim.to_owned(), expected })
}

/// A number of seconds since 1970, perhaps with a fraction; without it, and no further than times go.
fn time(claims: &Object<'_>, claim: &str) -> Result<Option<Timestamp>, TokenRefused> {
    let Some(text) = claims.get(claim) else { return Ok(None) };
    const EXPECTED: &str = "a number of seconds";
    // The conversion saturates.
    let seconds = read::<f64>(claim, text, EXPECTED)? as i64;
    let seconds = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(seconds)
        .map(Some)
        .map_err(|_| TokenRefused::BadClaim { claim: claim.to_owned(), expected: EXPECTED })
}
