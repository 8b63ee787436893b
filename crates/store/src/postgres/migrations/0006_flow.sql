-- What limits the flow of a service's tasks to its workers.
ALTER TABLE relais.service ADD COLUMN max_running integer;
ALTER TABLE relais.service ADD COLUMN max_running_per_client integer;
ALTER TABLE relais.service ADD COLUMN rate_count integer;
ALTER TABLE relais.service ADD COLUMN rate_per_ms bigint;
ALTER TABLE relais.service ADD COLUMN rate_burst integer;
ALTER TABLE relais.service ADD COLUMN fair_share boolean NOT NULL DEFAULT false;
ALTER TABLE relais.service ADD COLUMN dispatch_window integer;
-- Whether any of that is so: 0 no, 1 whosever the tasks are, 2 by client. Kept by every declaration.
ALTER TABLE relais.service ADD COLUMN flow smallint NOT NULL DEFAULT 0;

ALTER TABLE relais."authorization" ADD COLUMN max_running integer;
ALTER TABLE relais."authorization" ADD COLUMN share integer NOT NULL DEFAULT 1;

-- The flow of a service that has, or had, such limits. Claims lock it, and whoever publishes: they take turns.
CREATE TABLE relais.flow (
    service_id  integer PRIMARY KEY,
    -- When it is back at its rate, in nanoseconds since 1970.
    ahead_until bigint NOT NULL DEFAULT 0,
    -- Its virtual time: when the last start began.
    time        bigint NOT NULL DEFAULT 0,
    -- How many turns clients have had.
    turns       bigint NOT NULL DEFAULT 0,
    -- The last task that was published within a window: those behind it wait in the store.
    horizon     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Where each client stands on a service where clients take turns: its virtual time (when its last start was paid for), and which
-- turn that was.
CREATE TABLE relais.flow_client (
    service_id integer NOT NULL,
    client_id  integer NOT NULL,
    time       bigint NOT NULL,
    turn       bigint NOT NULL,
    PRIMARY KEY (service_id, client_id)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Each client's tasks that wait, in the order in which they are handed out.
CREATE INDEX task_by_share ON relais.task (service_id, client_id, rank, id) WHERE status = 0;
