-- Captures that are declared. Their tables are elsewhere. "secrets" is encrypted like signing secrets.
CREATE TABLE capture_declaration (
    name        TEXT NOT NULL PRIMARY KEY,
    declaration TEXT NOT NULL,
    secrets     TEXT NOT NULL,
    paused      INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- What processes say of the captures that they run.
CREATE TABLE capture_report (
    capture TEXT NOT NULL,
    process TEXT NOT NULL,
    report  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (capture, process)
) WITHOUT ROWID;
CREATE INDEX capture_report_by_process ON capture_report (process);
