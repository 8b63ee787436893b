-- Processes that do tasks themselves. A row for each run of one; whoever begins under a name replaces the one that had it.
CREATE TABLE relais.instance (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name      text NOT NULL UNIQUE,
    host      text,
    version   text NOT NULL,
    -- What becomes of its tasks if it dies: 0 done again, 1 failed, 2 to be decided
    policy    smallint NOT NULL,
    started   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Silent for longer than this, it is dead.
    until     timestamptz NOT NULL,
    -- It died, and it is to be decided what becomes of its tasks.
    undecided boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What a process has in hand: the ids of tasks. A row for each time that it took some. Tasks that are in progress and listed
-- here have no lease: the process answers for them. Tasks that are pending and listed here are its own all the same, and it
-- has not found it worth a write to say so. Tasks that have ended may be listed for a while.
CREATE TABLE relais.hand (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance_id bigint NOT NULL,
    service_id  integer NOT NULL,
    tasks       bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE relais.hand ALTER COLUMN tasks SET STORAGE EXTERNAL;
CREATE INDEX hand_by_service ON relais.hand (service_id);
CREATE INDEX hand_by_instance ON relais.hand (instance_id);

-- Whether tasks of the service may be in hand; then claims take turns, and look at what is. Once so, always so. The column
-- "flow" is 3 where nothing else limits the service's flow.
ALTER TABLE relais.service ADD COLUMN handed boolean NOT NULL DEFAULT false;
