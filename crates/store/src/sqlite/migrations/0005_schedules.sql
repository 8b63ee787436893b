-- Tasks that are submitted at the times which a cron expression names.
CREATE TABLE schedule (
    name           TEXT PRIMARY KEY,
    -- As it is declared. By name: a service or a client may go and come back.
    service        TEXT NOT NULL,
    client_id      TEXT NOT NULL,
    cron           TEXT NOT NULL,
    time_zone      TEXT NOT NULL,
    body           TEXT NOT NULL,
    callback       TEXT,
    correlation_id TEXT,
    -- Runs that were missed: 0 are left out, 1 are made up for once, 2 all.
    missed         INTEGER NOT NULL,
    -- Runs while the one before goes on: 0 happen, 1 are left out.
    overlap        INTEGER NOT NULL,
    paused         INTEGER NOT NULL,
    -- How far it has come, which a new declaration leaves as it is.
    next_fire      INTEGER,
    last_run       INTEGER,
    last_task      TEXT,
    last_error     TEXT,
    last_error_at  INTEGER,
    runs           INTEGER NOT NULL DEFAULT 0,
    skipped        INTEGER NOT NULL DEFAULT 0,
    refused        INTEGER NOT NULL DEFAULT 0,
    missed_runs    INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX schedule_by_next_fire ON schedule (next_fire) WHERE next_fire IS NOT NULL;
