-- The task that it is a part of, by its public name.
ALTER TABLE task ADD COLUMN parent_id TEXT;
-- Whose trace it is part of: traceparent, and on a second line tracestate.
ALTER TABLE task ADD COLUMN trace TEXT;
ALTER TABLE task ADD COLUMN batch_id TEXT;
-- When it need not wait for other tasks any more: 0 all succeeded, 1 all ended, 2 any ended. None: it waits for none.
ALTER TABLE task ADD COLUMN after_when INTEGER;
-- Whether others wait for it. Set with a new revision, so that whoever has read the row knows that it is another one.
ALTER TABLE task ADD COLUMN followed INTEGER NOT NULL DEFAULT 0;

-- Only tasks that have one pay for these.
CREATE INDEX task_by_correlation ON task (client_id, correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX task_by_parent ON task (client_id, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX task_by_batch ON task (batch_id, id) WHERE batch_id IS NOT NULL;

-- Who waits for whom.
CREATE TABLE dependency (
    -- The row of the one that waits.
    task            INTEGER NOT NULL,
    -- The row of the other, and its public name: it may be gone once it has ended.
    prerequisite    INTEGER NOT NULL,
    prerequisite_id TEXT NOT NULL,
    -- How the other ended; none while it has not, or while nobody has told.
    outcome         INTEGER,
    PRIMARY KEY (task, prerequisite)
);
CREATE INDEX dependency_open ON dependency (prerequisite, task) WHERE outcome IS NULL;

-- Tasks that ended, and of which those who wait for them were not told yet.
CREATE TABLE ending (
    task   INTEGER PRIMARY KEY,
    status INTEGER NOT NULL
);

CREATE TABLE batch (
    batch_id       TEXT NOT NULL PRIMARY KEY,
    client_id      INTEGER NOT NULL,
    created        INTEGER NOT NULL,
    closed         INTEGER,
    ended          INTEGER,
    callback       TEXT,
    -- Where its callback lies, if it has one.
    lane           INTEGER,
    correlation_id TEXT,
    trace          TEXT,
    -- How many of its tasks are in each status: kept with every change of theirs.
    pending        INTEGER NOT NULL DEFAULT 0,
    in_progress    INTEGER NOT NULL DEFAULT 0,
    success        INTEGER NOT NULL DEFAULT 0,
    failure        INTEGER NOT NULL DEFAULT 0,
    cancelled      INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batch_by_client ON batch (client_id, batch_id);
CREATE INDEX batch_by_end ON batch (ended) WHERE ended IS NOT NULL;

-- What is told of a batch has no task and no service (0). Event 5: it has ended.
ALTER TABLE callback ADD COLUMN batch_id TEXT;
CREATE INDEX callback_by_batch ON callback (batch_id) WHERE batch_id IS NOT NULL;
