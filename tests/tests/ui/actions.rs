//! What can be done on the pages, done by clicking.

use anyhow::{Result, ensure};
use relais_tests::browser::{Browser, Look};
use serde_json::json;

use super::world::{World, accessible, pictures};

const DESKTOP: Look = Look { language: "en", theme: "light", width: 1380 };

async fn begin() -> Result<(World, Browser)> {
    let (world, browser) = (World::start(|_| {}).await, Browser::start().await?);
    browser.look(DESKTOP).await?;
    Ok((world, browser))
}

/// Presses the button with this text.
fn button(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('main button')].find((one) => one.textContent.trim().startsWith({})).click()",
        json!(text)
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_retried_and_cancelled() -> Result<()> {
    let (world, browser) = begin().await?;
    browser.open(&world.url(&format!("/ui/tasks/{}", world.failed))).await?;
    let text = browser.text().await?;
    ensure!(text.contains("at line 1") || text.contains("worker-1"), "{text}");
    ensure!(text.contains("12345678901234567890123"), "big numbers keep their digits");
    ensure!(!text.contains("sk-very-secret") && text.contains("•••"), "what is declared secret is masked");
    browser.go(&button("Retry")).await?;
    let text = browser.text().await?;
    ensure!(text.contains("done once more") && text.contains("Why is it waiting?"), "{text}");
    browser.ask("document.querySelector('details.careful > summary').click()").await?;
    browser.go("document.querySelector('details.careful button.danger').click()").await?;
    ensure!(browser.text().await?.contains("Cancelled"));
    let audit = world.audit().await;
    ensure!(audit[0] == format!("local task.cancel {}", world.failed), "{audit:?}");
    ensure!(audit[1] == format!("local task.retry {}", world.failed), "{audit:?}");
    browser.no_complaints("retry and cancel")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_are_chosen_previewed_and_then_acted_on() -> Result<()> {
    let (world, browser) = begin().await?;
    // Some, by their boxes.
    browser.open(&world.url("/ui/tasks?q=service:ocr+status:pending")).await?;
    ensure!(browser.text().await?.contains("5 tasks"), "the count is honest");
    browser.ask("[...document.querySelectorAll('input[name=task]')].slice(0, 2).forEach((box) => box.click())").await?;
    ensure!(browser.ask("document.querySelector('.chosen-count').textContent").await? == " (2)");
    browser.go(&button("Cancel")).await?;
    ensure!(browser.text().await?.contains("Cancel 2 tasks?"), "first the preview");
    ensure!(world.app.pending("ocr").await == 5, "nothing was done yet");
    accessible(&browser, "preview").await?;
    browser.picture(&pictures()?.join("preview.png")).await?;
    browser.go(&button("Cancel them")).await?;
    ensure!(browser.text().await?.contains("2 tasks are cancelled"));
    ensure!(world.app.pending("ocr").await == 3);
    // All that match.
    browser.ask("document.querySelector('input[name=which][value=all]').click()").await?;
    browser.go(&button("Cancel")).await?;
    ensure!(browser.text().await?.contains("Cancel 3 tasks?"));
    // What comes after the preview was not meant.
    world.app.client("acme").submit("ocr", json!({})).await;
    browser.go(&button("Cancel them")).await?;
    ensure!(world.app.pending("ocr").await == 1);
    // Once more.
    browser.open(&world.url("/ui/tasks?q=service:ocr+status:cancelled")).await?;
    browser.ask("document.querySelector('#all-rows').click()").await?;
    browser.go(&button("Retry")).await?;
    browser.go(&button("Retry")).await?;
    ensure!(world.app.pending("ocr").await == 6);
    // Nothing chosen is said so; all of everything is not offered.
    browser.open(&world.url("/ui/tasks")).await?;
    ensure!(browser.ask("document.querySelector('input[name=which][value=all]') === null").await? == true);
    browser.no_complaints("many")?;
    browser.go(&button("Retry")).await?;
    ensure!(browser.text().await?.contains("No task was selected"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_page_links_to_its_parts_dependencies_and_batch() -> Result<()> {
    let (world, browser) = begin().await?;
    let link = |task: &str| format!("document.querySelector('.links a[href=\"/ui/tasks/{task}\"]').click()");
    browser.open(&world.url(&format!("/ui/tasks/{}", world.done))).await?;
    let text = browser.text().await?;
    ensure!(text.contains("Its parts") && !text.contains("Waited for by"), "{text}");
    browser.go(&link(&world.part)).await?;
    let text = browser.text().await?;
    ensure!(
        text.contains("Part of") && text.contains("Waited for by") && text.contains("0 of 2 tasks have ended"),
        "{text}"
    );
    browser.go(&link(&world.next_part)).await?;
    let text = browser.text().await?;
    ensure!(text.contains("Waits for (all to succeed)") && text.contains("not ended yet"), "{text}");
    ensure!(text.contains("It starts when 1 other tasks have succeeded"), "it is said why it waits: {text}");
    browser.go(&link(&world.done)).await?;
    browser.go("document.querySelector('.links dd p a').click()").await?;
    ensure!(browser.ask("document.querySelectorAll('tbody tr').length").await? == 2, "its parts as a list");
    ensure!(browser.ask("document.querySelector('#search').value").await? == format!("parent:{}", world.done));
    // The batch.
    browser.open(&world.url(&format!("/ui/tasks/{}", world.part))).await?;
    browser.go("document.querySelector('.links a[href^=\"/ui/batches/\"]').click()").await?;
    ensure!(browser.text().await?.contains(&world.batch));
    browser.ask("document.querySelector('details.careful > summary').click()").await?;
    browser.go("document.querySelector('details.careful button.danger').click()").await?;
    let text = browser.text().await?;
    ensure!(text.contains("its unfinished tasks are cancelled") && text.contains("2 of 2 tasks have ended"), "{text}");
    browser.go("document.querySelector('section[aria-labelledby=counts] > p a').click()").await?;
    ensure!(browser.ask("document.querySelectorAll('tbody tr').length").await? == 2, "its tasks as a list");
    let audit = world.audit().await;
    ensure!(audit[0] == format!("local batch.cancel {}", world.batch), "{audit:?}");
    // The admin API tells the same.
    let seen = world.app.caller().get(&format!("/admin/tasks/{}", world.done)).await.data();
    ensure!(seen["children"]["tasks"].as_array().is_some_and(|parts| parts.len() == 2), "{seen}");
    ensure!(seen["children"]["more"] == false && seen.get("waitedForBy").is_none(), "{seen}");
    browser.no_complaints("links")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_paused_resumed_and_limited() -> Result<()> {
    let (world, browser) = begin().await?;
    browser.open(&world.url("/ui/services/resize")).await?;
    ensure!(browser.text().await?.contains("curl -u CLIENT_ID:CLIENT_SECRET"));
    browser.ask("document.querySelector('details.careful > summary').click()").await?;
    browser.go("document.querySelector('details.careful button.danger').click()").await?;
    ensure!(world.app.caller().get("/admin/services/resize").await.data()["paused"] == true);
    browser.open(&world.url(&format!("/ui/tasks/{}", world.pending))).await?;
    ensure!(browser.text().await?.contains("Its service is paused."), "it is said why it waits");
    browser.open(&world.url("/ui")).await?;
    ensure!(browser.text().await?.contains("resize is paused; 1 tasks wait"));
    browser.open(&world.url("/ui/services/resize")).await?;
    browser.go(&button("Resume")).await?;
    ensure!(world.app.caller().get("/admin/services/resize").await.data()["paused"] == false);
    browser
        .go("document.querySelector('#maxRunning').value = '1'; document.querySelector('#capacity').value = '';
             document.querySelector('#rateLimit').value = '5/1s'; document.querySelector('form.limits button').click()")
        .await?;
    ensure!(browser.text().await?.contains("The limits are in force."));
    let state = world.app.caller().get("/admin/services/resize").await.data();
    ensure!(state["maxRunning"] == 1 && state["capacity"].is_null() && state["rateLimit"]["count"] == 5, "{state}");
    ensure!(state["jsonSchema"].is_object(), "nothing else has changed");
    browser.open(&world.url(&format!("/ui/tasks/{}", world.pending))).await?;
    ensure!(browser.text().await?.contains("1 of at most 1 tasks of its service run already."));
    browser.no_complaints("service")?;
    browser.open(&world.url("/ui/services/resize")).await?;
    browser
        .go("document.querySelector('#rateLimit').value = 'soon'; document.querySelector('form.limits button').click()")
        .await?;
    ensure!(browser.text().await?.contains("must be like 100/1s"), "what is wrong is said");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_callbacks_clients_and_events_are_acted_on() -> Result<()> {
    let (world, browser) = begin().await?;
    browser.open(&world.url("/ui/schedules")).await?;
    ensure!(browser.text().await?.contains("every Monday to Friday"));
    browser.ask("document.querySelector('details.careful > summary').click()").await?;
    browser.go("document.querySelector('details.careful button.danger').click()").await?;
    ensure!(browser.text().await?.contains("A task was submitted."));
    ensure!(world.app.pending("report-all").await == 1);
    browser.go(&button("Pause")).await?;
    ensure!(world.app.caller().get("/admin/schedules/nightly").await.data()["paused"] == true);
    browser.go(&button("Resume")).await?;
    ensure!(world.app.caller().get("/admin/schedules/nightly").await.data()["paused"] == false);

    let callback = world.callback().await;
    browser.open(&world.url(&format!("/ui/callbacks/{callback}"))).await?;
    ensure!(browser.text().await?.contains("https://relais.invalid/told"));
    browser.open(&world.url("/ui/callbacks")).await?;
    browser.go("document.querySelector('form[action=\"/ui/callbacks/redeliver\"] button').click()").await?;
    ensure!(browser.text().await?.contains("callbacks are sent again"));

    browser.open(&world.url("/ui/clients")).await?;
    browser.ask("document.querySelector('details.careful > summary').click()").await?;
    browser.go("document.querySelector('details.careful button.danger').click()").await?;
    let secret = browser.ask("document.querySelector('pre.secret').textContent").await?;
    let acme = world.app.caller().basic("acme", secret.as_str().unwrap_or_default());
    ensure!(acme.get("/v1/services").await.status == 200, "the secret that was shown opens");
    ensure!(world.app.client("acme").get("/v1/services").await.status == 403, "the one before does not");

    browser.open(&world.url("/ui/events")).await?;
    browser
        .go("document.querySelector('#channel').value = 'orders.created'; document.querySelector('form.stack button').click()")
        .await?;
    ensure!(browser.text().await?.contains("orders.created"));
    browser.no_complaints("the others")?;

    browser.open(&world.url("/ui/audit")).await?;
    let text = browser.text().await?;
    for action in ["schedule.run", "schedule.pause", "callbacks.redeliver", "client.secret", "event.publish"] {
        ensure!(text.contains(action), "{action} is not in the log: {text}");
    }
    ensure!(!text.contains(secret.as_str().unwrap_or("?")), "no secret is in the log");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_is_enough() -> Result<()> {
    let (world, browser) = begin().await?;
    browser.open(&world.url("/ui")).await?;
    // The search field completes its words.
    browser.press("/").await?;
    browser.until("document.activeElement.id === 'search'").await?;
    browser.until("document.querySelectorAll('.completions li').length === 9").await?;
    accessible(&browser, "completions").await?;
    for key in ["s", "t", "a"] {
        browser.press(key).await?;
    }
    browser.until("document.querySelectorAll('.completions li').length === 1").await?;
    browser.press("Tab").await?;
    browser.until("document.querySelector('#search').value === 'status:'").await?;
    browser.press("ArrowDown").await?;
    browser.press("ArrowDown").await?;
    browser.press("Enter").await?;
    browser.until("document.querySelector('#search').value === 'status:running '").await?;
    browser.go("document.querySelector('#search').form.requestSubmit()").await?;
    ensure!(browser.ask("document.querySelectorAll('tbody tr').length").await? == 1);
    // Down the list, into a task, and elsewhere.
    browser.press("j").await?;
    browser.until("document.querySelector('tbody tr.at') !== null").await?;
    browser.press("x").await?;
    browser.until("document.querySelector('input[name=task]').checked").await?;
    browser.press("?").await?;
    browser.until("document.querySelector('#help').open").await?;
    accessible(&browser, "help").await?;
    // At once, before the browser has drawn the page without the dialog.
    browser
        .ask(
            "document.querySelector('#help button').click();
             document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'g', bubbles: true}))",
        )
        .await?;
    browser.until("!document.querySelector('#help').open").await?;
    browser.press_and_go("w").await?;
    ensure!(browser.ask("location.pathname").await? == "/ui/workers");
    browser.no_complaints("the keyboard")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_but_liveness_works_without_scripts() -> Result<()> {
    let (world, browser) = begin().await?;
    browser.send("Emulation.setScriptExecutionDisabled", json!({"value": true})).await?;
    browser.open(&world.url("/ui/tasks?q=service:ocr")).await?;
    // Scripts of the page do not run; ours come from outside of it.
    ensure!(browser.ask("document.documentElement.dataset.following ?? null").await?.is_null());
    browser.go("document.querySelector('input[name=task]').checked = true; document.querySelector('button[value=cancel]').click()").await?;
    ensure!(browser.text().await?.contains("Cancel 1 tasks?"));
    browser.go(&button("Cancel them")).await?;
    ensure!(world.app.pending("ocr").await == 4);
    ensure!(browser.ask("document.querySelector('details.careful') === null || true").await? == true);
    browser.no_complaints("without scripts")
}
