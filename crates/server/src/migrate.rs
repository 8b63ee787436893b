//! `relais migrate`: brings the database up to date, for those who keep that apart from starting servers.

use relais_engine::Engine;

use crate::{
    cli::MigrateArgs,
    output,
    serve::{explain, open},
};

/// Migrates, and tells how far it came.
pub async fn run(args: MigrateArgs) -> anyhow::Result<()> {
    let config = args.load()?;
    let store = open(&config).await?;
    let applied = Engine::migrate(&store).await.map_err(|error| explain(error, &config))?;
    store.close().await;
    output::data(&match applied {
        0 => "the database is up to date".to_owned(),
        1 => "1 migration was applied".to_owned(),
        more => format!("{more} migrations were applied"),
    })?;
    Ok(())
}
