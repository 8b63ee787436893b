//! The dashboard without a browser: what is sent, what is refused, and that a button that is not shown can not be
//! pressed either.

use anyhow::{Context as _, Result, ensure};
use relais_engine::{Credentials, OperatorRole};
use reqwest::{Client, Response, redirect::Policy};

use super::world::World;

fn client() -> Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(Client::builder().no_proxy().redirect(Policy::none()).build()?)
}

/// The token against forged forms, out of a page.
fn csrf(page: &str) -> Result<String> {
    let (_, rest) = page.split_once("name=\"csrf\" value=\"").context("no form on the page")?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

async fn post(world: &World, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Response> {
    let mut request = client()?.post(world.url(path)).header("content-type", "application/x-www-form-urlencoded");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Ok(request.body(body.to_owned()).send().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_has_the_policy_and_assets_can_be_kept() -> Result<()> {
    let world = World::start(|_| {}).await;
    let client = client()?;
    for path in ["/ui", "/ui/nowhere", "/ui/tasks/nonsense", "/ui/assets/relais.css", "/ui/assets/nothing"] {
        let answer = client.get(world.url(path)).send().await?;
        let policy = answer.headers().get("content-security-policy").context(path)?.to_str()?.to_owned();
        ensure!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{path}: {policy}");
        ensure!(!policy.contains("unsafe"), "{path}");
        ensure!(answer.headers().contains_key("x-content-type-options"), "{path}");
    }
    let page = client.get(world.url("/ui")).send().await?;
    ensure!(page.headers()["cache-control"] == "no-store");
    let page = page.text().await?;
    ensure!(!page.contains(" style=") && !page.contains("<style") && !page.contains(" onclick="), "nothing inline");
    ensure!(!page.contains("src=\"http") && !page.contains("href=\"http"), "nothing from elsewhere");
    let address = page.split("href=\"").find(|part| part.starts_with("/ui/assets/relais.css")).context("no style")?;
    let address = address.split('"').next().unwrap_or_default();
    let first = client.get(world.url(address)).send().await?;
    let tag = first.headers()["etag"].to_str()?.to_owned();
    ensure!(first.headers()["cache-control"].to_str()?.contains("immutable"));
    let again = client.get(world.url(address)).header("if-none-match", &tag).send().await?;
    ensure!(again.status() == 304);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audiences_say_who_changes_them_and_sources_what_they_hear() -> Result<()> {
    let world = World::start(|_| {}).await;
    let declared = serde_json::json!({
        "audiences": [{"type": "GROUP", "target": "teachers", "members": [{"target": "ann"}, {"type": "GROUP", "target": "1b"}]}],
        "notificationSources": [{
            "sourceName": "ends", "bus": {"channels": ["task.*.failure"]},
            "audience": {"type": "GROUP", "targets": ["teachers"]},
        }],
    });
    world.app.apply(declared).await;
    world
        .app
        .caller()
        .put("/admin/audiences/GROUP/1b/members", &serde_json::json!({"members": [{"target": "bob"}]}))
        .await
        .data();
    let page = async |path: &str| anyhow::Ok(client()?.get(world.url(path)).send().await?.text().await?);
    for (path, shown) in [
        ("/ui/notifications", ["/ui/notification-sources", "/ui/audiences", "Audiences"]),
        ("/ui/audiences?type=GROUP&target=teachers", ["only the declaration changes them", "ann", "GROUP:1b"]),
        ("/ui/audiences?type=GROUP&target=1b", ["It is not declared", "bob", "teachers"]),
        ("/ui/notification-sources", ["ends", "task.*.failure", "teachers"]),
        // Nobody hears events in this process.
        ("/ui/notification-sources/ends", ["in trouble", "no process hears its events", "task.*.failure"]),
    ] {
        let text = page(path).await?;
        for part in shown {
            ensure!(text.to_lowercase().contains(&part.to_lowercase()), "{path} does not show {part:?}");
        }
    }
    let paused = csrf(&page("/ui/notification-sources/ends").await?)?;
    let own = world.url("");
    let answer = post(
        &world,
        "/ui/notification-sources/ends/pause",
        &[("origin", own.trim_end_matches('/'))],
        &format!("csrf={paused}"),
    )
    .await?;
    ensure!(answer.status().is_redirection(), "{}", answer.status());
    ensure!(page("/ui/notification-sources").await?.contains("Paused"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_for_notifications_are_shown_in_both_languages() -> Result<()> {
    let world = World::start(|_| {}).await;
    for (language, shown) in [
        ("en", ["Sends to", "Changes members of", "Tickets for a user and", "Tickets for a user<"]),
        (
            "fr",
            ["Envoie à", "Modifie les membres de", "Tickets pour un utilisateur et", "Tickets pour un utilisateur<"],
        ),
    ] {
        let request = client()?.get(world.url("/ui/clients")).header("accept-language", language);
        let page = request.send().await?.text().await?;
        let types =
            ["<code>GROUP</code>", "<code>*</code>", "<code>FORMATION</code>", "<code>&lt;b&gt;any&lt;/b&gt;</code>"];
        for text in shown.iter().chain(&types) {
            ensure!(page.contains(text), "{text} is not on {page}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_only_this_machine_is_let_in() -> Result<()> {
    let world = World::start(|_| {}).await;
    let client = client()?;
    ensure!(client.get(world.url("/ui")).send().await?.status() == 200);
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.7"),
        ("forwarded", "for=192.0.2.7"),
        ("via", "1.1 proxy"),
        ("host", "relais.example.org"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let answer = client.get(world.url("/ui")).header(name, value).send().await?;
        ensure!(answer.status() == 403, "{name}: {}", answer.status());
    }
    let led = client.get(world.url("/ui")).header("sec-fetch-site", "cross-site").header("sec-fetch-mode", "navigate");
    ensure!(led.send().await?.status() == 200, "a link may lead here");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_of_others_are_refused() -> Result<()> {
    let world = World::start(|_| {}).await;
    let page = client()?.get(world.url("/ui/services/resize")).send().await?.text().await?;
    let csrf = csrf(&page)?;
    let pause = "/ui/services/resize/pause";
    let origin = world.url("");
    for (what, headers, body) in [
        ("no token", vec![], String::new()),
        ("a wrong token", vec![], "csrf=x".to_owned()),
        ("another site", vec![("origin", "http://example.org")], format!("csrf={csrf}")),
        ("another site, hidden", vec![("origin", "null")], format!("csrf={csrf}")),
        ("a site beside", vec![("sec-fetch-site", "same-site")], format!("csrf={csrf}")),
    ] {
        ensure!(post(&world, pause, &headers, &body).await?.status() == 403, "{what}");
    }
    ensure!(world.app.caller().get("/admin/services/resize").await.data()["paused"] == false);
    let own = post(&world, pause, &[("origin", origin.as_str())], &format!("csrf={csrf}&back=//example.org")).await?;
    ensure!(own.status() == 303 && own.headers()["location"] == "/ui?said=paused", "{:?}", own.headers());
    ensure!(world.app.caller().get("/admin/services/resize").await.data()["paused"] == true);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_may_do_no_more_by_hand_and_neither_over_the_api() -> Result<()> {
    let operators = Credentials::default()
        .with("ada", OperatorRole::Admin, "the token of ada")?
        .with("olga", OperatorRole::Operator, "the token of olga")?
        .with("rita", OperatorRole::ReadOnly, "the token of rita")?;
    let world = World::start(|api| api.operators = operators).await;
    let http = client()?;
    ensure!(http.get(world.url("/ui/tasks")).send().await?.headers()["location"] == "/ui/sign-in?back=%2Fui%2Ftasks");
    ensure!(http.get(world.url("/ui/live")).send().await?.status() == 303, "nor a stream");
    let acts = [
        ("/ui/services/resize/pause", "", OperatorRole::Operator),
        ("/ui/services/resize/resume", "", OperatorRole::Operator),
        ("/ui/services/resize/limits", "&maxRunning=3", OperatorRole::Operator),
        ("/ui/schedules/rare/run", "", OperatorRole::Operator),
        ("/ui/schedules/rare/pause", "", OperatorRole::Operator),
        ("/ui/callbacks/redeliver", "&since=1h", OperatorRole::Operator),
        ("/ui/tasks/act", "&do=retry&which=all&q=service:resize&confirmed=yes", OperatorRole::Operator),
        ("/ui/events", "&channel=a.b&payload=1", OperatorRole::Operator),
        ("/ui/clients/globex/secret", "", OperatorRole::Admin),
    ];
    for (name, role) in
        [("rita", OperatorRole::ReadOnly), ("olga", OperatorRole::Operator), ("ada", OperatorRole::Admin)]
    {
        let signed = post(&world, "/ui/sign-in", &[], &format!("token=the+token+of+{name}&back=/ui/audit")).await?;
        ensure!(signed.status() == 303 && signed.headers()["location"] == "/ui/audit", "{name}");
        let cookie = signed.headers()["set-cookie"].to_str()?.to_owned();
        ensure!(
            cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/ui"),
            "{cookie}"
        );
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        let page = http.get(world.url("/ui")).header("cookie", &cookie).send().await?.text().await?;
        let csrf = csrf(&page)?;
        for (path, fields, needs) in &acts {
            let done = post(&world, path, &[("cookie", &cookie)], &format!("csrf={csrf}{fields}")).await?;
            let allowed = role >= *needs;
            let status = done.status().as_u16();
            ensure!(
                allowed == (status == 303 || status == 200) && (allowed || status == 403),
                "{name} {path}: {status}"
            );
        }
        let bad = cookie.replacen('.', "x.", 1);
        ensure!(http.get(world.url("/ui")).header("cookie", bad).send().await?.status() == 303, "a forged session");
        let bearer = format!("Bearer the token of {name}");
        let api = world.app.caller().with("authorization", &bearer);
        ensure!(api.get("/admin/services").await.status == 200, "{name} may look");
        let paused = api.post_nothing("/admin/services/ocr/pause").await.status;
        ensure!((paused == 200) == (role >= OperatorRole::Operator), "{name}: {paused}");
        let rotated = api.post_nothing("/admin/clients/globex/secret").await.status;
        ensure!((rotated == 200) == (role >= OperatorRole::Admin), "{name}: {rotated}");
        let secrets = api.get("/admin/clients/globex/signing-secrets").await.status;
        ensure!(secrets == 404 || (secrets == 200) == (role >= OperatorRole::Admin), "{name}: {secrets}");
    }
    let audit = world.audit().await;
    for line in [
        "rita service.pause resize",
        "olga service.limits resize",
        "ada client.secret globex",
        "olga service.pause ocr",
    ] {
        ensure!(audit.iter().any(|entry| entry == line), "{line} is not in {audit:#?}");
    }
    Ok(())
}

/// Signs in; gives the cookie and what forms have to bring back.
async fn sign_in(world: &World, name: &str) -> Result<(String, String)> {
    let signed = post(world, "/ui/sign-in", &[], &format!("token=the+token+of+{name}")).await?;
    let cookie = signed.headers()["set-cookie"].to_str()?.split(';').next().unwrap_or_default().to_owned();
    let page = client()?.get(world.url("/ui")).header("cookie", &cookie).send().await?.text().await?;
    let csrf = csrf(&page)?;
    Ok((cookie, csrf))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_ended_opens_nothing_any_more() -> Result<()> {
    let operators = Credentials::default().with("ada", OperatorRole::Admin, "the token of ada")?.with(
        "olga",
        OperatorRole::Operator,
        "the token of olga",
    )?;
    let world = World::start(|api| api.operators = operators).await;
    let opens = async |cookie: &str| -> Result<bool> {
        Ok(client()?.get(world.url("/ui/audit")).header("cookie", cookie).send().await?.status() == 200)
    };
    let (here, here_csrf) = sign_in(&world, "ada").await?;
    let (there, there_csrf) = sign_in(&world, "ada").await?;
    let (elsewhere, _) = sign_in(&world, "ada").await?;
    let (other, _) = sign_in(&world, "olga").await?;
    let without = post(&world, "/ui/sign-out", &[("cookie", &here)], "").await?.status();
    ensure!(without == 403 && opens(&here).await?, "a forged form signs nobody out");
    let out = post(&world, "/ui/sign-out", &[("cookie", &here)], &format!("csrf={here_csrf}")).await?;
    ensure!(out.status() == 303 && out.headers()["location"] == "/ui/sign-in");
    ensure!(!opens(&here).await?, "a copy of the cookie is worth nothing");
    ensure!(opens(&there).await? && opens(&elsewhere).await? && opens(&other).await?, "the others are open");
    let all = format!("csrf={there_csrf}&everywhere=yes");
    ensure!(post(&world, "/ui/sign-out", &[("cookie", &there)], &all).await?.status() == 303);
    ensure!(!opens(&there).await? && !opens(&elsewhere).await?, "hers, everywhere");
    ensure!(opens(&other).await?, "and nobody else's");
    let log = world.app.engine.list_audit(None, 1).await?.entries;
    ensure!(log[0].action == "sign-out" && log[0].detail.as_deref() == Some("everywhere"), "{log:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_of_operator_tokens_are_slowed_down() -> Result<()> {
    let operators = Credentials::default().with("ada", OperatorRole::Admin, "the token of ada")?;
    let world = World::start(|api| api.operators = operators).await;
    let mut last = 0;
    for _ in 0..25 {
        last = post(&world, "/ui/sign-in", &[], "token=guess").await?.status().as_u16();
    }
    ensure!(last == 429, "{last}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_addresses_and_forms_are_answered_and_break_nothing() -> Result<()> {
    let world = World::start(|_| {}).await;
    let http = client()?;
    for path in [
        "/ui/tasks?q=%00%ff%22%3E%3Cscript%3E",
        "/ui/tasks?cursor=nonsense",
        "/ui/tasks?q=since:999999999d",
        "/ui/tasks?q=until:soon",
        "/ui/tasks?q=client:nobody",
        "/ui/tasks/00000000-0000-7000-8000-000000000000",
        "/ui/services/%2e%2e%2fetc",
        "/ui/services/%ff",
        "/ui/schedules/nothing",
        "/ui/outboxes/nothing",
        "/ui/captures/nothing",
        "/ui/notification-sources/nothing",
        "/ui/audiences?type=%3Cscript%3E&target=%00",
        "/ui/callbacks/nothing",
        "/ui/callbacks?status=NONSENSE&cursor=zz",
        "/ui/audit?cursor=%20",
        "/ui/language/xx",
        "/ui/theme/pink",
        "/ui/live?topic=task:00000000-0000-7000-8000-000000000000",
    ] {
        let answer = http.get(world.url(path)).send().await?;
        let status = answer.status();
        ensure!(status.is_success() || status.is_client_error(), "{path}: {status}");
        ensure!(!answer.text().await?.contains("<script>"), "{path}");
    }
    let page = http.get(world.url("/ui/tasks?q=service:ocr")).send().await?.text().await?;
    let csrf = csrf(&page)?;
    for body in [
        "&do=retry&which=all&q=",
        "&do=nonsense",
        "&do=cancel&task=nonsense",
        "&do=cancel&task=",
        "&confirmed=yes&which=all&q=x",
    ] {
        let status = post(&world, "/ui/tasks/act", &[], &format!("csrf={csrf}{body}")).await?.status();
        ensure!(!status.is_server_error(), "{body}: {status}");
    }
    ensure!(world.app.pending("ocr").await == 5, "nothing was done");
    Ok(())
}
