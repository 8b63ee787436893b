-- Processes that do tasks themselves. A row for each run of one; whoever begins under a name replaces the one that had it.
CREATE TABLE instance (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT NOT NULL UNIQUE,
    host      TEXT,
    version   TEXT NOT NULL,
    -- What becomes of its tasks if it dies: 0 done again, 1 failed, 2 to be decided
    policy    INTEGER NOT NULL,
    started   INTEGER NOT NULL,
    seen      INTEGER NOT NULL,
    -- Silent for longer than this, it is dead.
    until     INTEGER NOT NULL,
    -- It died, and it is to be decided what becomes of its tasks.
    undecided INTEGER NOT NULL DEFAULT 0
);

-- What a process has in hand: the ids of tasks, a JSON array. A row for each time that it took some. Tasks that are in progress
-- and listed here have no lease: the process answers for them. Tasks that are pending and listed here are its own all the
-- same, and it has not found it worth a write to say so. Tasks that have ended may be listed for a while.
CREATE TABLE hand (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    instance_id INTEGER NOT NULL,
    service_id  INTEGER NOT NULL,
    tasks       TEXT NOT NULL
);

-- Whether tasks of the service may be in hand; then claims look at what is. The column "flow" is 3 where nothing else limits
-- the service's flow.
ALTER TABLE service ADD COLUMN handed INTEGER NOT NULL DEFAULT 0;
