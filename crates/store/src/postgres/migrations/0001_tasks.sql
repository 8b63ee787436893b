-- Everything is in a schema of its own, so that Relais can share a database with the application it serves.

-- What is declared ------------------------------------------------------------------------------------------------

CREATE TABLE relais.service (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text NOT NULL UNIQUE,
    queue_name      text NOT NULL,
    json_schema     json,
    paused          boolean NOT NULL DEFAULT false,
    capacity        integer,
    lease_ms        bigint NOT NULL,
    delivery_limit  integer NOT NULL,
    keep_finished_ms bigint,
    keep_any_ms     bigint,
    -- A service that is gone keeps its row for as long as it has tasks, and so that its numbering never starts again.
    deleted         boolean NOT NULL DEFAULT false
);

CREATE TABLE relais.client (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_id   text NOT NULL UNIQUE,
    secret_hash text NOT NULL,
    deleted     boolean NOT NULL DEFAULT false
);

CREATE TABLE relais."authorization" (
    client_id  integer NOT NULL REFERENCES relais.client,
    service_id integer NOT NULL REFERENCES relais.service,
    consume    boolean NOT NULL,
    work       boolean NOT NULL,
    capacity   integer,
    PRIMARY KEY (client_id, service_id)
);

-- One row: counts the changes to the three tables above, so that "has anything changed?" is cheap to ask.
CREATE TABLE relais.declared (
    single  boolean PRIMARY KEY DEFAULT true CHECK (single),
    version bigint NOT NULL
);
INSERT INTO relais.declared (version) VALUES (0);

-- Tasks -----------------------------------------------------------------------------------------------------------

-- No foreign keys: their check costs more than the row, and services and clients are never removed under their tasks.
CREATE TABLE relais.task (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id        uuid NOT NULL,
    service_id     integer NOT NULL,
    client_id      integer NOT NULL,
    -- Number within the service, without gaps, in the order of commits.
    seq            bigint NOT NULL,
    -- 0 PENDING, 1 IN_PROGRESS, 2 SUCCESS, 3 FAILURE, 4 CANCELLED
    status         smallint NOT NULL DEFAULT 0,
    attempt        integer NOT NULL DEFAULT 0,
    losses         integer NOT NULL DEFAULT 0,
    revision       bigint NOT NULL DEFAULT 0,
    progress       double precision NOT NULL DEFAULT 0,
    submitted      timestamptz NOT NULL DEFAULT statement_timestamp(),
    started        timestamptz,
    ended          timestamptz,
    lease_until    timestamptz,
    worker_host    text,
    correlation_id text,
    -- json, not jsonb: it keeps the text as it was given.
    request        json NOT NULL,
    response       json,
    error_message  text,
    callback       json
);

CREATE UNIQUE INDEX task_by_task_id ON relais.task (task_id);
-- Claims, operators' lists, purge.
CREATE INDEX task_by_service ON relais.task (service_id, status, id);
-- Consumers' lists.
CREATE INDEX task_by_client ON relais.task (client_id, service_id, status, id);
CREATE INDEX task_by_lease ON relais.task (lease_until) WHERE lease_until IS NOT NULL;

-- A busy queue turns its rows over many times a day: vacuum by number of dead rows, not by share of the table.
ALTER TABLE relais.task SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Counters --------------------------------------------------------------------------------------------------------

-- How many tasks came into a status, and how many left it, ever. Arrivals and departures are rows of their own, so that
-- submissions and claims do not wait for each other. client_id 0 stands for all clients.
CREATE TABLE relais.tally (
    service_id integer NOT NULL,
    client_id  integer NOT NULL,
    status     smallint NOT NULL,
    departed   boolean NOT NULL,
    n          bigint NOT NULL,
    -- On the row that numbers a service's tasks (all clients, arrived, PENDING): whether a capacity, of the service or of a
    -- client on it, has to be looked at before one is taken in. It stands on the row that submissions lock, so that what
    -- they see of it is never older than what they see of the number.
    limited    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (service_id, client_id, status, departed)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- How many of a service's tasks have left the queue, by number: the tree that places a task at a constant cost.
CREATE TABLE relais.departure (
    service_id integer NOT NULL,
    level      smallint NOT NULL,
    slot       bigint NOT NULL,
    n          bigint NOT NULL,
    PRIMARY KEY (service_id, level, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);

-- Around submissions ----------------------------------------------------------------------------------------------

CREATE TABLE relais.idempotency (
    service_id  integer NOT NULL,
    client_id   integer NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,
    task_id     uuid NOT NULL,
    position    bigint NOT NULL,
    created     timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (service_id, client_id, key)
);
CREATE INDEX idempotency_by_age ON relais.idempotency (created);

-- When a chore that one process does for all was last begun.
CREATE TABLE relais.chore (
    name  text PRIMARY KEY,
    begun timestamptz NOT NULL
);
