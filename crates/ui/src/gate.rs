//! Who is looking: sessions, tokens against forged forms, language and theme.
//!
//! A session is a cookie that the server has signed, and a row that says that it is open: any process on the same store
//! with the same configuration takes it, until it expires or is ended. A cookie that was not signed is not looked up.
//! Where nobody has a token there are no sessions, and only this machine is let in, by the same rule as for the admin
//! API, but for what a browser adds to a request by itself.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension,
    extract::{ConnectInfo, FromRequestParts, Path, State},
    http::{HeaderMap, Method, StatusCode, Version, header, request::Parts},
    response::{IntoResponse as _, Redirect, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use maud::html;
use relais_engine::{Actor, Operator, chain};
use relais_http::Peer;

use crate::{
    Ui,
    error::{Answer, Explained as _},
    form::{Fields, Form, Query, encoded},
    layout,
    words::{Language, Words},
};

const SESSION: &str = "relais_session";
const LANGUAGE: &str = "relais_language";
const THEME: &str = "relais_theme";

/// So many sign-ins may fail...
const MOST_FAILURES: u32 = 20;
/// ...in this time, from one address, in one process.
const FAILURES_IN: Duration = Duration::from_secs(60);

/// How the page is to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theme {
    Auto,
    Light,
    Dark,
}

impl Theme {
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::Light, Self::Dark];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// What a browser prefers.
#[derive(Debug, Clone)]
pub(crate) struct Taste {
    pub(crate) language: Language,
    pub(crate) theme: Theme,
    /// The page that is asked for, path and query.
    pub(crate) here: String,
}

impl Taste {
    fn of(parts: &Parts) -> Self {
        let chosen = cookie(&parts.headers, LANGUAGE).and_then(|code| Language::parse(&code));
        let accepted = || Language::accepted(parts.headers.get(header::ACCEPT_LANGUAGE)?.to_str().ok()?);
        let theme = cookie(&parts.headers, THEME);
        let theme = Theme::ALL.into_iter().find(|known| Some(known.as_str()) == theme.as_deref());
        Self {
            language: chosen.or_else(accepted).unwrap_or(Language::English),
            theme: theme.unwrap_or(Theme::Auto),
            here: parts.uri.path_and_query().map_or("/ui", |here| here.as_str()).to_owned(),
        }
    }

    pub(crate) fn words(&self) -> &'static Words {
        self.language.words()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Taste {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(parts))
    }
}

/// Somebody who was let in.
pub(crate) struct Visitor {
    pub(crate) operator: Operator,
    pub(crate) taste: Taste,
    /// What every form has to bring back.
    pub(crate) csrf: String,
    /// The name of the session of whoever has signed in, and can sign out.
    pub(crate) session: Option<String>,
}

impl Visitor {
    pub(crate) fn words(&self) -> &'static Words {
        self.taste.words()
    }
}

impl FromRequestParts<Ui> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, ui: &Ui) -> Result<Self, Response> {
        let taste = Taste::of(parts);
        if parts.method != Method::GET && !from_own_page(&parts.headers) {
            return Err(layout::refused(&taste, StatusCode::FORBIDDEN, taste.words().forged));
        }
        let (actor, bound, session) = match session(ui, &taste, &parts.headers).await? {
            Some((actor, nonce)) => {
                let name = named(ui, &nonce);
                (actor, nonce, Some(name))
            }
            None if !ui.options.operators.is_empty() => {
                let target = if parts.method == Method::GET { taste.here.as_str() } else { "/ui" };
                return Err(Redirect::to(&format!("/ui/sign-in?back={}", encoded(target))).into_response());
            }
            None if is_here(parts) => (Actor::local("dashboard"), "local".to_owned(), None),
            None => return Err(layout::refused(&taste, StatusCode::FORBIDDEN, taste.words().only_here)),
        };
        let csrf = ui.key.sign("csrf", &bound);
        Ok(Self { operator: ui.engine.operator(actor), taste, csrf, session })
    }
}

/// Somebody who was let in, and a form that they sent from one of our pages.
pub(crate) struct Sent(pub(crate) Visitor, pub(crate) Fields);

impl axum::extract::FromRequest<Ui> for Sent {
    type Rejection = Response;

    async fn from_request(request: axum::extract::Request, ui: &Ui) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, ui).await?;
        let request = axum::extract::Request::from_parts(parts, body);
        let Form(fields) = Form::from_request(request, ui).await?;
        if fields.any("csrf") != Some(visitor.csrf.as_str()) {
            return Err(layout::refused(&visitor.taste, StatusCode::FORBIDDEN, visitor.words().forged));
        }
        Ok(Self(visitor, fields))
    }
}

/// Whether a form comes from one of our own pages, as far as the browser tells.
fn from_own_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin") {
        return false;
    }
    match (text("origin"), text("host")) {
        (Some(origin), Some(host)) => origin.split_once("://").is_some_and(|(_, named)| named == host),
        _ => true,
    }
}

/// Whether the request comes from this machine, by the name of this machine, and through nobody else.
fn is_here(parts: &Parts) -> bool {
    let headers = &parts.headers;
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let forwarded = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let ours = text("sec-fetch-site").is_none_or(|site| ["none", "same-origin"].contains(&site));
    // A page of another site may lead here, but not read what it would be shown.
    let led = parts.method == Method::GET && text("sec-fetch-mode") == Some("navigate");
    parts.version >= Version::HTTP_11
        && peer.is_some_and(is_loopback)
        && !forwarded.iter().any(|name| headers.contains_key(*name))
        && (ours || led)
        && text("host").is_some_and(is_local_name)
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
}

/// Who signed in, and what belongs to the session alone, if it is open.
async fn session(ui: &Ui, taste: &Taste, headers: &HeaderMap) -> Result<Option<(Actor, String)>, Response> {
    let Some((actor, nonce)) = signed(ui, headers) else { return Ok(None) };
    match ui.engine.session_is_open(&named(ui, &nonce)).await {
        Ok(open) => Ok(open.then_some((actor, nonce))),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "it can not be told whether a session is open");
            Err(layout::refused(taste, StatusCode::SERVICE_UNAVAILABLE, taste.words().store_away))
        }
    }
}

/// What a session is called where it is kept: whoever reads that can not make a cookie of it.
fn named(ui: &Ui, nonce: &str) -> String {
    ui.key.sign("session name", nonce)
}

/// `name.expires.nonce.signature`, if it was signed and has not expired.
fn signed(ui: &Ui, headers: &HeaderMap) -> Option<(Actor, String)> {
    let cookie = cookie(headers, SESSION)?;
    let (signed, signature) = cookie.rsplit_once('.')?;
    if !ui.key.is_signed("session", signed, signature) {
        return None;
    }
    let mut parts = signed.split('.');
    let (name, expires, nonce) = (parts.next()?, parts.next()?, parts.next()?);
    if expires.parse::<u64>().ok()? < seconds_now() {
        return None;
    }
    let name = String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
    // As they are now: roles may have changed.
    Some((ui.options.operators.by_name(&name, "dashboard")?, nonce.to_owned()))
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Asks for a token.
pub(crate) async fn sign_in_page(State(ui): State<Ui>, taste: Taste, Query(query): Query) -> Response {
    if ui.options.operators.is_empty() {
        return Redirect::to("/ui").into_response();
    }
    sign_in_form(&taste, query.get("back"), None, StatusCode::OK)
}

fn sign_in_form(taste: &Taste, back: Option<&str>, wrong: Option<&str>, status: StatusCode) -> Response {
    let words = taste.words();
    let main = html! {
        div.signin {
            h1 { (words.sign_in) }
            p.muted { (words.sign_in_hint) }
            @if let Some(wrong) = wrong { p.flash.bad role="alert" { (wrong) } }
            form method="post" action="/ui/sign-in" {
                input type="hidden" name="back" value=(own_page(back));
                label for="token" { (words.token) }
                input #token type="password" name="token" required autofocus autocomplete="current-password"
                    spellcheck="false" aria-describedby="token-hint";
                p.hint #token-hint { (words.token_hint) }
                button.primary type="submit" { (words.sign_in) }
            }
        }
    };
    (status, layout::bare(taste, words.sign_in, &main)).into_response()
}

/// Takes a token, and begins a session.
pub(crate) async fn sign_in(
    State(ui): State<Ui>,
    taste: Taste,
    headers: HeaderMap,
    peer: Option<Extension<Peer>>,
    Form(fields): Form,
) -> Response {
    let peer = peer.map(|Extension(peer)| peer.address());
    let (words, back) = (taste.words(), fields.get("back"));
    if !from_own_page(&headers) {
        return layout::refused(&taste, StatusCode::FORBIDDEN, words.forged);
    }
    if too_many(&ui, peer) {
        return sign_in_form(&taste, back, Some(words.too_many_tries), StatusCode::TOO_MANY_REQUESTS);
    }
    let given = fields.any("token").unwrap_or_default().trim();
    let Some(actor) = ui.options.operators.recognise(given, "dashboard") else {
        fail(&ui, peer);
        tracing::warn!(?peer, "somebody could not sign in to the dashboard");
        return sign_in_form(&taste, back, Some(words.wrong_token), StatusCode::FORBIDDEN);
    };
    let mut nonce = [0; 16];
    if getrandom::fill(&mut nonce).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let age = ui.options.session.as_secs();
    let nonce = URL_SAFE_NO_PAD.encode(nonce);
    let signed = format!("{}.{}.{nonce}", URL_SAFE_NO_PAD.encode(&actor.name), seconds_now().saturating_add(age));
    let signature = ui.key.sign("session", &signed);
    if let Err(error) = ui.engine.open_session(&actor, &named(&ui, &nonce), ui.options.session).await {
        tracing::warn!(error = %chain(&error), "nobody can sign in to the dashboard");
        return sign_in_form(&taste, back, Some(words.store_away), StatusCode::SERVICE_UNAVAILABLE);
    }
    let secure = if over_tls(&headers) { "; Secure" } else { "" };
    let cookie = format!("{SESSION}={signed}.{signature}; Path=/ui; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    ([(header::SET_COOKIE, cookie)], Redirect::to(&own_page(back))).into_response()
}

/// Ends a session, or all sessions of whoever asks.
pub(crate) async fn sign_out(Sent(visitor, fields): Sent) -> Answer {
    if let Some(session) = &visitor.session {
        let everywhere = fields.get("everywhere").is_some();
        let (engine, actor) = (visitor.operator.engine(), visitor.operator.actor());
        engine.end_session(actor, session, everywhere).await.or_explain(&visitor)?;
    }
    let cookie = format!("{SESSION}=; Path=/ui; Max-Age=0; HttpOnly; SameSite=Strict");
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/ui/sign-in")).into_response())
}

/// Remembers a language.
pub(crate) async fn choose_language(Path(code): Path<String>, Query(query): Query) -> Response {
    match Language::parse(&code) {
        Some(language) => remember(LANGUAGE, language.code(), query.get("back")),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Remembers a theme.
pub(crate) async fn choose_theme(Path(name): Path<String>, Query(query): Query) -> Response {
    match Theme::ALL.into_iter().find(|theme| theme.as_str() == name) {
        Some(theme) => remember(THEME, theme.as_str(), query.get("back")),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn remember(name: &str, value: &str, back: Option<&str>) -> Response {
    let cookie = format!("{name}={value}; Path=/ui; Max-Age=31536000; SameSite=Lax; HttpOnly");
    ([(header::SET_COOKIE, cookie)], Redirect::to(&own_page(back))).into_response()
}

/// One of our own pages; the first one for whatever else is asked for.
pub(crate) fn own_page(back: Option<&str>) -> String {
    let ours = |page: &&str| {
        let rest = page.strip_prefix("/ui");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
            && !page.contains(['\\', '\r', '\n'])
            && !page.starts_with("/ui/sign")
    };
    back.filter(ours).unwrap_or("/ui").to_owned()
}

fn over_tls(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"))
}

/// Whether too many tries from this address have failed lately. Others may sign in all the same.
fn too_many(ui: &Ui, peer: Option<IpAddr>) -> bool {
    let mut failures = ui.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    failures.retain(|_, (since, _)| since.elapsed() <= FAILURES_IN);
    failures.get(&peer).is_some_and(|(_, count)| *count >= MOST_FAILURES)
}

fn fail(ui: &Ui, peer: Option<IpAddr>) {
    let mut failures = ui.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    failures.entry(peer).or_insert_with(|| (Instant::now(), 0)).1 += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_redirects_only_within_the_dashboard() {
        assert_eq!(own_page(Some("/ui/tasks?q=a")), "/ui/tasks?q=a");
        assert_eq!(own_page(Some("/ui?x=1")), "/ui?x=1");
        for other in ["", "https://example.org", "//example.org", "/uix", "/ui\\x", "/ui/sign-in", "/v1", "/ui/a\r\nb"]
        {
            assert_eq!(own_page(Some(other)), "/ui", "{other}");
        }
    }

    #[test]
    fn a_cross_site_form_is_recognised() {
        let headers = |pairs: &[(&'static str, &str)]| -> HeaderMap {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
        };
        assert!(from_own_page(&headers(&[("host", "h:1"), ("origin", "http://h:1")])));
        assert!(from_own_page(&headers(&[("host", "h:1"), ("sec-fetch-site", "same-origin")])));
        for bad in
            [("origin", "http://other"), ("origin", "null"), ("origin", "http://h:2"), ("sec-fetch-site", "same-site")]
        {
            assert!(!from_own_page(&headers(&[("host", "h:1"), bad])), "{bad:?}");
        }
        assert!(is_local_name("localhost:80") && is_local_name("[::1]:80") && is_local_name("127.0.0.1"));
        assert!(!is_local_name("localhost.example.org") && !is_local_name("192.0.2.1"));
    }
}
