//! The instances on the store, from the command line.

use anyhow::Result;
use relais_tests::instance::Instance;
use serde_json::Value;

use crate::{sqlite, type_in, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_listed_while_it_runs_and_there_is_nothing_to_decide_about_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    let mut known = Value::Null;
    until("the server is known", async || {
        known = serde_json::from_str(&type_in(&server, "instance list --json")?.data()?)?;
        Ok(known["instances"].as_array().is_some_and(|known| known.len() == 1))
    })
    .await?;
    let one = &known["instances"][0];
    assert_eq!((&one["status"], &one["inHand"], &one["crashPolicy"]), (&"alive".into(), &0.into(), &"restart".into()));
    let name = one["name"].as_str().unwrap_or_default();
    let table = type_in(&server, "instance list")?.data()?;
    assert!(table.starts_with("INSTANCE") && table.contains(name), "{table}");
    let alive = type_in(&server, &format!("instance resolve {name} --restart"))?.refusal()?;
    assert!(alive.contains("409003") && alive.contains("the instance is alive"), "{alive}");
    let nobody = type_in(&server, "instance resolve nobody --fail")?.refusal()?;
    assert!(nobody.contains("404010") && nobody.contains("hint: `relais instance list`"), "{nobody}");
    Ok(())
}
