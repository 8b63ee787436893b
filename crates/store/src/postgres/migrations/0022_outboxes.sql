-- Outboxes that are declared. Their tables are elsewhere, in any database. "secrets" is encrypted like signing secrets.
CREATE TABLE relais.outbox_declaration (
    name        text PRIMARY KEY,
    declaration text NOT NULL,
    secrets     text NOT NULL,
    paused      boolean NOT NULL DEFAULT false
);

-- What processes say of the relays that they run.
CREATE TABLE relais.relay_report (
    outbox  text NOT NULL,
    process text NOT NULL,
    report  text NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (outbox, process)
);
CREATE INDEX relay_report_by_process ON relais.relay_report (process);
