-- Callbacks that were stored so far were never called, and do not say which endpoint they share.
UPDATE task SET callback = NULL WHERE callback IS NOT NULL;

-- How long to wait before each new try, in milliseconds: a JSON array.
ALTER TABLE service ADD COLUMN callback_retries TEXT;
-- Where on the broker a client may be told: a JSON array.
ALTER TABLE client ADD COLUMN destinations TEXT;

-- What callbacks are signed with. Kept as it is: a signature needs the secret itself.
CREATE TABLE signing_secret (
    client_id INTEGER NOT NULL REFERENCES client,
    secret    TEXT NOT NULL,
    created   INTEGER NOT NULL,
    expires   INTEGER,
    PRIMARY KEY (client_id, secret)
);

-- What is to be told, and what became of it. Written with the change that it tells of.
CREATE TABLE callback (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The task's id.
    task       INTEGER NOT NULL,
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    -- 0 started, 1 progress, 2 success, 3 failure, 4 cancelled
    event      INTEGER NOT NULL,
    -- The task's when it happened. With the task's public name, this is the callback's name on the wire.
    revision   INTEGER NOT NULL,
    -- The client and the endpoint.
    lane       INTEGER NOT NULL,
    -- Whether more is told of this task, so that order matters.
    chain      INTEGER NOT NULL,
    -- 0 PENDING, 1 SUCCESS, 2 FAILURE
    status     INTEGER NOT NULL DEFAULT 0,
    -- Whether it ended because nobody lives there any more: nothing else is told of the task.
    gone       INTEGER NOT NULL DEFAULT 0,
    -- When to send it next; while it is being sent, when to send it again if nothing is heard. None once it has ended, and
    -- while it waits for the one before it.
    due        INTEGER,
    -- Whether somebody is sending it.
    held       INTEGER NOT NULL DEFAULT 0,
    -- How often it was tried since it was last asked for, and how often ever.
    tries      INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    created    INTEGER NOT NULL,
    ended      INTEGER,
    -- What the task was like, if this is not its end.
    started    INTEGER,
    progress   REAL
);

CREATE INDEX callback_by_lane ON callback (lane, due) WHERE due IS NOT NULL;
CREATE INDEX callback_by_task ON callback (task, id);
CREATE INDEX callback_failed ON callback (id) WHERE status = 2;

CREATE TABLE callback_attempt (
    callback    INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    http_status INTEGER,
    error       TEXT,
    answer      TEXT,
    PRIMARY KEY (callback, number)
);

-- Endpoints that do not answer. A row stays until its endpoint does.
CREATE TABLE callback_lane (
    lane         INTEGER PRIMARY KEY,
    parks        INTEGER NOT NULL,
    parked_until INTEGER NOT NULL
);
