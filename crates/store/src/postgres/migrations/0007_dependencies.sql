-- The task that it is a part of, by its public name.
ALTER TABLE relais.task ADD COLUMN parent_id uuid;
-- Whose trace it is part of: traceparent, and on a second line tracestate.
ALTER TABLE relais.task ADD COLUMN trace text;
ALTER TABLE relais.task ADD COLUMN batch_id uuid;
-- When it need not wait for other tasks any more: 0 all succeeded, 1 all ended, 2 any ended. None: it waits for none.
ALTER TABLE relais.task ADD COLUMN after_when smallint;
-- Whether others wait for it. Set with a new revision, so that whoever has read the row knows that it is another one.
ALTER TABLE relais.task ADD COLUMN followed boolean NOT NULL DEFAULT false;

-- Only tasks that have one pay for these.
CREATE INDEX task_by_correlation ON relais.task (client_id, correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX task_by_parent ON relais.task (client_id, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX task_by_batch ON relais.task (batch_id, id) WHERE batch_id IS NOT NULL;

-- Who waits for whom.
CREATE TABLE relais.dependency (
    -- The row of the one that waits.
    task            bigint NOT NULL,
    -- The row of the other, and its public name: it may be gone once it has ended.
    prerequisite    bigint NOT NULL,
    prerequisite_id uuid NOT NULL,
    -- How the other ended; none while it has not, or while nobody has told.
    outcome         smallint,
    PRIMARY KEY (task, prerequisite)
);
CREATE INDEX dependency_open ON relais.dependency (prerequisite, task) WHERE outcome IS NULL;

-- Tasks that ended, and of which those who wait for them were not told yet.
CREATE TABLE relais.ending (
    task   bigint PRIMARY KEY,
    status smallint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE relais.batch (
    batch_id       uuid PRIMARY KEY,
    client_id      integer NOT NULL,
    created        timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed         timestamptz,
    ended          timestamptz,
    callback       json,
    -- Where its callback lies, if it has one.
    lane           bigint,
    correlation_id text,
    trace          text,
    -- How many of its tasks are in each status: kept with every change of theirs.
    pending        bigint NOT NULL DEFAULT 0,
    in_progress    bigint NOT NULL DEFAULT 0,
    success        bigint NOT NULL DEFAULT 0,
    failure        bigint NOT NULL DEFAULT 0,
    cancelled      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX batch_by_client ON relais.batch (client_id, batch_id);
CREATE INDEX batch_by_end ON relais.batch (ended) WHERE ended IS NOT NULL;

-- What is told of a batch has no task and no service (0). Event 5: it has ended.
ALTER TABLE relais.callback ADD COLUMN batch_id uuid;
CREATE INDEX callback_by_batch ON relais.callback (batch_id) WHERE batch_id IS NOT NULL;
