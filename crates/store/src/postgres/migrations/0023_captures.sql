-- Captures that are declared. Their tables are elsewhere. "secrets" is encrypted like signing secrets.
CREATE TABLE relais.capture_declaration (
    name        text PRIMARY KEY,
    declaration text NOT NULL,
    secrets     text NOT NULL,
    paused      boolean NOT NULL DEFAULT false
);

-- What processes say of the captures that they run.
CREATE TABLE relais.capture_report (
    capture text NOT NULL,
    process text NOT NULL,
    report  text NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (capture, process)
);
CREATE INDEX capture_report_by_process ON relais.capture_report (process);
