-- Outboxes that are declared. Their tables are elsewhere, in any database. "secrets" is encrypted like signing secrets.
CREATE TABLE outbox_declaration (
    name        TEXT NOT NULL PRIMARY KEY,
    declaration TEXT NOT NULL,
    secrets     TEXT NOT NULL,
    paused      INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- What processes say of the relays that they run.
CREATE TABLE relay_report (
    outbox  TEXT NOT NULL,
    process TEXT NOT NULL,
    report  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (outbox, process)
) WITHOUT ROWID;
CREATE INDEX relay_report_by_process ON relay_report (process);
