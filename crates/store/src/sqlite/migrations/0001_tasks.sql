-- Booleans are 0 and 1, moments are milliseconds since 1970.

-- What is declared ------------------------------------------------------------------------------------------------

CREATE TABLE service (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    name            TEXT NOT NULL UNIQUE,
    queue_name      TEXT NOT NULL,
    json_schema     TEXT,
    paused          INTEGER NOT NULL DEFAULT 0,
    capacity        INTEGER,
    lease_ms        INTEGER NOT NULL,
    delivery_limit  INTEGER NOT NULL,
    keep_finished_ms INTEGER,
    keep_any_ms     INTEGER,
    -- A service that is gone keeps its row for as long as it has tasks, and so that its numbering never starts again.
    deleted         INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE client (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id   TEXT NOT NULL UNIQUE,
    secret_hash TEXT NOT NULL,
    deleted     INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE "authorization" (
    client_id  INTEGER NOT NULL REFERENCES client,
    service_id INTEGER NOT NULL REFERENCES service,
    consume    INTEGER NOT NULL,
    work       INTEGER NOT NULL,
    capacity   INTEGER,
    PRIMARY KEY (client_id, service_id)
);

-- One row: counts the changes to the three tables above, so that "has anything changed?" is cheap to ask.
CREATE TABLE declared (
    single  INTEGER PRIMARY KEY DEFAULT 1 CHECK (single = 1),
    version INTEGER NOT NULL
);
INSERT INTO declared (version) VALUES (0);

-- Tasks -----------------------------------------------------------------------------------------------------------

-- No foreign keys: their check costs more than the row, and services and clients are never removed under their tasks.
CREATE TABLE task (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id        TEXT NOT NULL,
    service_id     INTEGER NOT NULL,
    client_id      INTEGER NOT NULL,
    -- Number within the service, without gaps, in the order of commits.
    seq            INTEGER NOT NULL,
    -- 0 PENDING, 1 IN_PROGRESS, 2 SUCCESS, 3 FAILURE, 4 CANCELLED
    status         INTEGER NOT NULL DEFAULT 0,
    attempt        INTEGER NOT NULL DEFAULT 0,
    losses         INTEGER NOT NULL DEFAULT 0,
    revision       INTEGER NOT NULL DEFAULT 0,
    progress       REAL NOT NULL DEFAULT 0,
    submitted      INTEGER NOT NULL,
    started        INTEGER,
    ended          INTEGER,
    lease_until    INTEGER,
    worker_host    TEXT,
    correlation_id TEXT,
    request        TEXT NOT NULL,
    response       TEXT,
    error_message  TEXT,
    callback       TEXT
);

CREATE UNIQUE INDEX task_by_task_id ON task (task_id);
-- Claims, operators' lists, purge.
CREATE INDEX task_by_service ON task (service_id, status, id);
-- Consumers' lists.
CREATE INDEX task_by_client ON task (client_id, service_id, status, id);
CREATE INDEX task_by_lease ON task (lease_until) WHERE lease_until IS NOT NULL;

-- Counters --------------------------------------------------------------------------------------------------------

-- How many tasks came into a status, and how many left it, ever. client_id 0 stands for all clients.
CREATE TABLE tally (
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    departed   INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (service_id, client_id, status, departed)
);

-- How many of a service's tasks have left the queue, by number: the tree that places a task at a constant cost.
CREATE TABLE departure (
    service_id INTEGER NOT NULL,
    level      INTEGER NOT NULL,
    slot       INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (service_id, level, slot)
);

-- Around submissions ----------------------------------------------------------------------------------------------

CREATE TABLE idempotency (
    service_id  INTEGER NOT NULL,
    client_id   INTEGER NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    task_id     TEXT NOT NULL,
    position    INTEGER NOT NULL,
    created     INTEGER NOT NULL,
    PRIMARY KEY (service_id, client_id, key)
);
CREATE INDEX idempotency_by_age ON idempotency (created);

-- When a chore that one process does for all was last begun.
CREATE TABLE chore (
    name  TEXT PRIMARY KEY,
    begun INTEGER NOT NULL
);
