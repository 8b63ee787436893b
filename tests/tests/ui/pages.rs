//! Every page, as it looks: in both languages, light and dark, wide and narrow, with nothing that keeps people out.

use anyhow::{Result, ensure};
use relais_tests::browser::{Browser, Look};

use super::world::{World, accessible, pictures};

const WIDE: u32 = 1380;
const NARROW: u32 = 390;

async fn all_pages(world: &World) -> Vec<(&'static str, String)> {
    let callback = world.callback().await;
    vec![
        ("overview", "/ui".to_owned()),
        ("tasks", "/ui/tasks".to_owned()),
        ("search", "/ui/tasks?q=service:resize+status:failure+since:1h".to_owned()),
        ("nothing", "/ui/tasks?q=service:nowhere+nonsense".to_owned()),
        ("task-failed", format!("/ui/tasks/{}", world.failed)),
        ("task-done", format!("/ui/tasks/{}", world.done)),
        ("task-running", format!("/ui/tasks/{}", world.running)),
        ("task-pending", format!("/ui/tasks/{}", world.pending)),
        ("task-part", format!("/ui/tasks/{}", world.part)),
        ("task-next-part", format!("/ui/tasks/{}", world.next_part)),
        ("batch", format!("/ui/batches/{}", world.batch)),
        ("services", "/ui/services".to_owned()),
        ("service", "/ui/services/resize".to_owned()),
        ("workers", "/ui/workers".to_owned()),
        ("schedules", "/ui/schedules".to_owned()),
        ("schedule", "/ui/schedules/nightly".to_owned()),
        ("outboxes", "/ui/outboxes".to_owned()),
        ("captures", "/ui/captures".to_owned()),
        ("notifications", "/ui/notifications".to_owned()),
        ("notification-sources", "/ui/notification-sources".to_owned()),
        ("audiences", "/ui/audiences?type=GROUP&target=teachers".to_owned()),
        ("callbacks", "/ui/callbacks".to_owned()),
        ("callback", format!("/ui/callbacks/{callback}")),
        ("dead-letters", "/ui/dead-letters".to_owned()),
        ("clients", "/ui/clients".to_owned()),
        ("events", "/ui/events".to_owned()),
        ("audit", "/ui/audit".to_owned()),
    ]
}

/// Looks at every page, keeps a picture of each, and asks axe where that is wanted.
async fn sweep(look: Look, axe: bool) -> Result<()> {
    let world = World::start(|_| {}).await;
    let folder = pictures()?;
    let browser = Browser::start().await?;
    browser.look(look).await?;
    for (name, path) in all_pages(&world).await {
        browser.open(&world.url(&path)).await?;
        let what = format!("{name}-{}-{}-{}", look.language, look.theme, look.width);
        browser.picture(&folder.join(format!("{what}.png"))).await?;
        browser.no_complaints(&what)?;
        let page = browser
            .ask(
                "({lang: document.documentElement.lang, hacked: window.hacked ?? null, title: document.title,
                   bg: getComputedStyle(document.body).backgroundColor, h1: document.querySelectorAll('main h1').length,
                   wide: document.documentElement.scrollWidth - document.documentElement.clientWidth})",
            )
            .await?;
        ensure!(page["lang"] == look.language, "{what} is in {}", page["lang"]);
        ensure!(page["hacked"].is_null(), "{what}: what a worker wrote became a script");
        ensure!(page["h1"] == 1, "{what} has {} titles", page["h1"]);
        ensure!(page["wide"] == 0, "{what} is {} wider than its window", page["wide"]);
        let dark = page["bg"] == "rgb(14, 15, 18)";
        ensure!(dark == (look.theme == "dark"), "{what} has the background {}", page["bg"]);
        if axe {
            accessible(&browser, &what).await?;
            browser.complaints();
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_in_english_light_and_wide() -> Result<()> {
    sweep(Look { language: "en", theme: "light", width: WIDE }, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_in_french_dark_and_narrow() -> Result<()> {
    sweep(Look { language: "fr", theme: "dark", width: NARROW }, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_in_english_dark_and_narrow_and_in_french_light_and_wide() -> Result<()> {
    sweep(Look { language: "en", theme: "dark", width: NARROW }, false).await?;
    sweep(Look { language: "fr", theme: "light", width: WIDE }, false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn language_and_theme_can_be_chosen_and_stay_so() -> Result<()> {
    let world = World::start(|_| {}).await;
    let browser = Browser::start().await?;
    browser.look(Look { language: "en", theme: "light", width: WIDE }).await?;
    browser.open(&world.url("/ui/tasks?q=status:failure")).await?;
    browser.go("document.querySelector('a[hreflang=fr]').click()").await?;
    ensure!(browser.ask("location.pathname + location.search").await? == "/ui/tasks?q=status:failure", "where one was");
    ensure!(browser.text().await?.contains("Tâches"));
    browser.go("document.querySelector('a[href^=\"/ui/theme/dark\"]').click()").await?;
    ensure!(browser.ask("document.documentElement.dataset.theme").await? == "dark");
    browser.open(&world.url("/ui")).await?;
    ensure!(browser.ask("document.documentElement.lang + document.documentElement.dataset.theme").await? == "frdark");
    browser.no_complaints("choosing")
}

/// The tests would notice what they promise to notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_violation_of_the_content_security_policy_is_blocked_and_noticed() -> Result<()> {
    let world = World::start(|_| {}).await;
    let browser = Browser::start().await?;
    browser.open(&world.url("/ui")).await?;
    let script =
        "{ const s = document.createElement('script'); s.textContent = 'window.hacked = 3'; document.body.append(s);
                    document.body.setAttribute('style', 'color: red'); window.hacked ?? null }";
    ensure!(browser.ask(script).await?.is_null(), "a script in the page ran");
    browser.ask("new Promise((done) => setTimeout(done, 0))").await?;
    let complaints = browser.complaints();
    ensure!(complaints.iter().any(|one| one.contains("Content Security Policy")), "{complaints:?}");
    Ok(())
}
