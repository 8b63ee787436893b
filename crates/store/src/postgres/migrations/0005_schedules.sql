-- Tasks that are submitted at the times which a cron expression names.
CREATE TABLE relais.schedule (
    name           text COLLATE "C" PRIMARY KEY,
    -- As it is declared. By name: a service or a client may go and come back.
    service        text NOT NULL,
    client_id      text NOT NULL,
    cron           text NOT NULL,
    time_zone      text NOT NULL,
    body           json NOT NULL,
    callback       json,
    correlation_id text,
    -- Runs that were missed: 0 are left out, 1 are made up for once, 2 all.
    missed         smallint NOT NULL,
    -- Runs while the one before goes on: 0 happen, 1 are left out.
    overlap        smallint NOT NULL,
    paused         boolean NOT NULL,
    -- How far it has come, which a new declaration leaves as it is.
    next_fire      timestamptz,
    last_run       timestamptz,
    last_task      uuid,
    last_error     text,
    last_error_at  timestamptz,
    runs           bigint NOT NULL DEFAULT 0,
    skipped        bigint NOT NULL DEFAULT 0,
    refused        bigint NOT NULL DEFAULT 0,
    missed_runs    bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX schedule_by_next_fire ON relais.schedule (next_fire) WHERE next_fire IS NOT NULL;
