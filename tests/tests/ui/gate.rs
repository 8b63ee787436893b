//! Signing in, and what each role may do, in the browser.

use anyhow::{Result, ensure};
use relais_engine::{Credentials, OperatorRole};
use relais_tests::browser::{Browser, Look};

use super::world::{World, accessible, pictures};

fn operators() -> Credentials {
    let roles = [("ada", OperatorRole::Admin), ("olga", OperatorRole::Operator), ("rita", OperatorRole::ReadOnly)];
    roles.into_iter().fold(Credentials::default(), |all, (name, role)| {
        all.with(name, role, &format!("the token of {name}")).expect("names and tokens that differ")
    })
}

async fn sign_in(browser: &Browser, world: &World, token: &str) -> Result<()> {
    browser.open(&world.url("/ui/clients")).await?;
    ensure!(browser.ask("location.pathname").await? == "/ui/sign-in");
    browser
        .go(&format!(
            "document.querySelector('#token').value = '{token}'; document.querySelector('main form').requestSubmit()"
        ))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_leads_to_the_requested_page_and_a_sign_out_ends_the_session() -> Result<()> {
    let world = World::start(|api| api.operators = operators()).await;
    let browser = Browser::start().await?;
    browser.look(Look { language: "fr", theme: "light", width: 1380 }).await?;
    browser.open(&world.url("/ui")).await?;
    browser.picture(&pictures()?.join("sign-in.png")).await?;
    accessible(&browser, "sign-in").await?;
    browser.no_complaints("sign-in")?;
    sign_in(&browser, &world, "nonsense").await?;
    ensure!(browser.text().await?.contains("Personne n’a ce jeton."));
    browser.complaints();
    sign_in(&browser, &world, "the token of ada").await?;
    ensure!(browser.ask("location.pathname").await? == "/ui/clients", "where one wanted to go");
    ensure!(browser.text().await?.contains("ada"));
    ensure!(browser.ask("document.cookie").await? == "", "no script sees the session");
    ensure!(world.audit().await.contains(&"ada sign-in ".to_owned()));
    browser.go("document.querySelector('form[action=\"/ui/sign-out\"] button').click()").await?;
    browser.open(&world.url("/ui")).await?;
    ensure!(browser.ask("location.pathname").await? == "/ui/sign-in");
    browser.no_complaints("signing in and out")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_is_shown_what_it_may_do() -> Result<()> {
    let world = World::start(|api| api.operators = operators()).await;
    for (token, acts, declares) in
        [("the token of rita", false, false), ("the token of olga", true, false), ("the token of ada", true, true)]
    {
        let browser = Browser::start().await?;
        sign_in(&browser, &world, token).await?;
        let rotate = browser.ask("document.querySelector('details.careful') !== null").await?;
        ensure!(rotate == declares, "{token}: secrets");
        browser.open(&world.url(&format!("/ui/tasks/{}", world.failed))).await?;
        let retry = browser.ask("document.querySelector('.headtools form') !== null").await?;
        ensure!(retry == acts, "{token}: retry");
        browser.open(&world.url("/ui/services/resize")).await?;
        let limits = browser.ask("!document.querySelector('#capacity').disabled").await?;
        ensure!(limits == acts, "{token}: limits");
        browser.no_complaints(token)?;
    }
    Ok(())
}
