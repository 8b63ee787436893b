//! How both databases come by their tables. The migrations themselves are SQL, and lie with their drivers.

use relais_core::StoreError;
use sqlx::{
    SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

/// A driver's migrations, numbered from 1 in their order: a name and the SQL of each.
pub(crate) type Steps = &'static [(&'static str, &'static str)];

/// Runs those that were not run yet; `table` remembers which were.
pub(crate) fn migrator(table: &'static str, steps: Steps) -> Migrator {
    let migrations = (1..)
        .zip(steps)
        .map(|(version, &(name, sql))| {
            Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name(table);
    migrator
}

/// What a failed migration means; `error` is the driver's way with failures of the database.
pub(crate) fn failed(failure: MigrateError, error: impl Fn(sqlx::Error) -> StoreError) -> StoreError {
    match failure {
        MigrateError::VersionMissing(version) => StoreError::Schema(format!(
            "the database was made by a newer version of Relais (it has migration {version}); run that version"
        )),
        MigrateError::Execute(failure) | MigrateError::ExecuteMigration(failure, _) => error(failure),
        other => StoreError::Failed(other.into()),
    }
}
