-- Callbacks that were stored so far were never called, and do not say which endpoint they share.
UPDATE relais.task SET callback = NULL WHERE callback IS NOT NULL;

-- How long to wait before each new try, in milliseconds: a JSON array.
ALTER TABLE relais.service ADD COLUMN callback_retries text;
-- Where on the broker a client may be told: a JSON array.
ALTER TABLE relais.client ADD COLUMN destinations text;

-- What callbacks are signed with. Kept as it is: a signature needs the secret itself.
CREATE TABLE relais.signing_secret (
    client_id integer NOT NULL REFERENCES relais.client,
    secret    text NOT NULL,
    created   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires   timestamptz,
    PRIMARY KEY (client_id, secret)
);

-- What is to be told, and what became of it. Written with the change that it tells of.
CREATE TABLE relais.callback (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The task's id.
    task       bigint NOT NULL,
    service_id integer NOT NULL,
    client_id  integer NOT NULL,
    -- 0 started, 1 progress, 2 success, 3 failure, 4 cancelled
    event      smallint NOT NULL,
    -- The task's when it happened. With the task's public name, this is the callback's name on the wire.
    revision   bigint NOT NULL,
    -- The client and the endpoint.
    lane       bigint NOT NULL,
    -- Whether more is told of this task, so that order matters.
    chain      boolean NOT NULL,
    -- 0 PENDING, 1 SUCCESS, 2 FAILURE
    status     smallint NOT NULL DEFAULT 0,
    -- Whether it ended because nobody lives there any more: nothing else is told of the task.
    gone       boolean NOT NULL DEFAULT false,
    -- When to send it next; while it is being sent, when to send it again if nothing is heard. None once it has ended, and
    -- while it waits for the one before it.
    due        timestamptz,
    -- Whether somebody is sending it.
    held       boolean NOT NULL DEFAULT false,
    -- How often it was tried since it was last asked for, and how often ever.
    tries      integer NOT NULL DEFAULT 0,
    attempts   integer NOT NULL DEFAULT 0,
    created    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended      timestamptz,
    -- What the task was like, if this is not its end.
    started    timestamptz,
    progress   double precision
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

CREATE INDEX callback_by_lane ON relais.callback (lane, due) WHERE due IS NOT NULL;
CREATE INDEX callback_by_task ON relais.callback (task, id);
CREATE INDEX callback_failed ON relais.callback (id) WHERE status = 2;

CREATE TABLE relais.callback_attempt (
    callback    bigint NOT NULL,
    number      integer NOT NULL,
    at          timestamptz NOT NULL,
    duration_ms bigint NOT NULL,
    http_status integer,
    error       text,
    answer      text,
    PRIMARY KEY (callback, number)
);

-- Endpoints that do not answer. A row stays until its endpoint does.
CREATE TABLE relais.callback_lane (
    lane         bigint PRIMARY KEY,
    parks        integer NOT NULL,
    parked_until timestamptz NOT NULL
);
