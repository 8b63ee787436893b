//! Scripts, styles and the icon, inside the binary. Their addresses carry a digest of them, so that browsers may keep
//! them.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest as _, Sha256};

struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const ASSETS: [Asset; 3] = [
    Asset { name: "relais.css", kind: "text/css; charset=utf-8", text: include_str!("../assets/relais.css") },
    Asset { name: "relais.js", kind: "text/javascript; charset=utf-8", text: include_str!("../assets/relais.js") },
    Asset { name: "relais.svg", kind: "image/svg+xml", text: include_str!("../assets/relais.svg") },
];

static DIGESTS: LazyLock<[String; 3]> = LazyLock::new(|| ASSETS.each_ref().map(|asset| digest(asset.text)));

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Where a file is.
pub(crate) fn address(name: &str) -> String {
    let digest = ASSETS.iter().zip(DIGESTS.iter()).find(|(asset, _)| asset.name == name).map(|(_, digest)| digest);
    format!("/ui/assets/{name}?v={}", digest.map_or("", String::as_str))
}

/// A file. Needs nobody to be signed in: the sign-in page looks like all the others.
pub(crate) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let found = ASSETS.iter().zip(DIGESTS.iter()).find(|(asset, _)| asset.name == name);
    let Some((asset, digest)) = found else { return StatusCode::NOT_FOUND.into_response() };
    let tag = format!("\"{digest}\"");
    let caching =
        [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, "public, max-age=31536000, immutable".to_owned())];
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag)) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (caching, [(header::CONTENT_TYPE, asset.kind)], asset.text).into_response()
}
