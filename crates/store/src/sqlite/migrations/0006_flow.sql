-- What limits the flow of a service's tasks to its workers.
ALTER TABLE service ADD COLUMN max_running INTEGER;
ALTER TABLE service ADD COLUMN max_running_per_client INTEGER;
ALTER TABLE service ADD COLUMN rate_count INTEGER;
ALTER TABLE service ADD COLUMN rate_per_ms INTEGER;
ALTER TABLE service ADD COLUMN rate_burst INTEGER;
ALTER TABLE service ADD COLUMN fair_share INTEGER NOT NULL DEFAULT 0;
ALTER TABLE service ADD COLUMN dispatch_window INTEGER;
-- Whether any of that is so: 0 no, 1 whosever the tasks are, 2 by client. Kept by every declaration.
ALTER TABLE service ADD COLUMN flow INTEGER NOT NULL DEFAULT 0;

ALTER TABLE authorization ADD COLUMN max_running INTEGER;
ALTER TABLE authorization ADD COLUMN share INTEGER NOT NULL DEFAULT 1;

-- The flow of a service that has, or had, such limits.
CREATE TABLE flow (
    service_id  INTEGER PRIMARY KEY,
    -- When it is back at its rate, in nanoseconds since 1970.
    ahead_until INTEGER NOT NULL DEFAULT 0,
    -- Its virtual time: when the last start began.
    time        INTEGER NOT NULL DEFAULT 0,
    -- How many turns clients have had.
    turns       INTEGER NOT NULL DEFAULT 0,
    -- The last task that was published within a window: those behind it wait in the store.
    horizon     INTEGER NOT NULL DEFAULT 0
);

-- Where each client stands on a service where clients take turns: its virtual time (when its last start was paid for), and which
-- turn that was.
CREATE TABLE flow_client (
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    time       INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    PRIMARY KEY (service_id, client_id)
) WITHOUT ROWID;

-- Each client's tasks that wait, in the order in which they are handed out.
CREATE INDEX task_by_share ON task (service_id, client_id, rank, id) WHERE status = 0;
