-- What is declared of audiences: a type (with an empty target), or a target with its members as JSON. Those who belong to a
-- target are in "membership". A target that is "gone" is declared no more, and its members have still to be removed.
CREATE TABLE relais.audience_declaration (
    type    text NOT NULL,
    target  text NOT NULL,
    members text NOT NULL,
    gone    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (type, target)
);

-- Notification sources that are declared. "secrets" is encrypted like signing secrets.
CREATE TABLE relais.notification_source_declaration (
    name        text PRIMARY KEY,
    declaration text NOT NULL,
    secrets     text NOT NULL,
    paused      boolean NOT NULL DEFAULT false
);

-- What processes say of the notification sources that they run.
CREATE TABLE relais.notification_source_report (
    source  text NOT NULL,
    process text NOT NULL,
    report  text NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (source, process)
);
CREATE INDEX notification_source_report_by_process ON relais.notification_source_report (process);
