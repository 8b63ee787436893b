-- What is declared of audiences: a type (with an empty target), or a target with its members as JSON. Those who belong to a
-- target are in "membership". A target that is "gone" is declared no more, and its members have still to be removed.
CREATE TABLE audience_declaration (
    type    TEXT NOT NULL,
    target  TEXT NOT NULL,
    members TEXT NOT NULL,
    gone    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (type, target)
) WITHOUT ROWID;

-- Notification sources that are declared. "secrets" is encrypted like signing secrets.
CREATE TABLE notification_source_declaration (
    name        TEXT NOT NULL PRIMARY KEY,
    declaration TEXT NOT NULL,
    secrets     TEXT NOT NULL,
    paused      INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- What processes say of the notification sources that they run.
CREATE TABLE notification_source_report (
    source  TEXT NOT NULL,
    process TEXT NOT NULL,
    report  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (source, process)
) WITHOUT ROWID;
CREATE INDEX notification_source_report_by_process ON notification_source_report (process);
