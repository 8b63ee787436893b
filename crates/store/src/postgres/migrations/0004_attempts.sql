-- How often a task that failed is tried again (JSON; none means never), how long an attempt may take, and by how much each level of
-- priority comes before the one below.
ALTER TABLE relais.service ADD COLUMN retry text;
ALTER TABLE relais.service ADD COLUMN timeout_ms bigint;
ALTER TABLE relais.service ADD COLUMN priority_step_ms bigint NOT NULL DEFAULT 60000;

-- There is a sixth status: 5 waiting, which is PENDING to everybody but the queue.
ALTER TABLE relais.task ADD COLUMN priority smallint NOT NULL DEFAULT 4;
-- The order in which tasks are handed out: when it was submitted, in milliseconds, less the head start of its priority.
ALTER TABLE relais.task ADD COLUMN rank bigint NOT NULL DEFAULT 0;
-- Its service while it is in its queue, none otherwise. Only the index that claims walk has it, so no plan can take another one.
ALTER TABLE relais.task ADD COLUMN queue_id integer GENERATED ALWAYS AS (CASE WHEN status = 0 THEN service_id END) STORED;
ALTER TABLE relais.task ADD COLUMN failures integer NOT NULL DEFAULT 0;
-- For when it was asked.
ALTER TABLE relais.task ADD COLUMN scheduled timestamptz;
-- While it waits, when it comes into its queue.
ALTER TABLE relais.task ADD COLUMN due timestamptz;
ALTER TABLE relais.task ADD COLUMN expires timestamptz;
ALTER TABLE relais.task ADD COLUMN deadline timestamptz;
-- When something happens to it by itself, whichever of the above that is.
ALTER TABLE relais.task ADD COLUMN timer timestamptz;
-- Its own settings, where they are not the service's.
ALTER TABLE relais.task ADD COLUMN timeout_ms bigint;
ALTER TABLE relais.task ADD COLUMN retry text;
ALTER TABLE relais.task ADD COLUMN unique_key text;
ALTER TABLE relais.task ADD COLUMN error_kind text;
ALTER TABLE relais.task ADD COLUMN error_trace text;

UPDATE relais.task SET rank = (extract(epoch FROM submitted) * 1000)::bigint, timer = lease_until WHERE status < 2;

CREATE INDEX task_by_rank ON relais.task (queue_id, rank, id) WHERE queue_id IS NOT NULL;
CREATE INDEX task_by_timer ON relais.task (timer) WHERE timer IS NOT NULL;
DROP INDEX relais.task_by_lease;

-- Attempts before the current or last one, which the task tells of itself.
CREATE TABLE relais.attempt (
    -- The task's id.
    task          bigint NOT NULL,
    number        integer NOT NULL,
    -- 1 success, 2 failure, 3 cancelled, 4 returned, 5 lost
    outcome       smallint NOT NULL,
    started       timestamptz,
    ended         timestamptz NOT NULL,
    worker_host   text,
    error_message text,
    error_kind    text,
    error_trace   text,
    response      json,
    PRIMARY KEY (task, number)
);

-- Words of clients of which a service has one task at a time. A row goes when its task ends, or when its time is up.
CREATE TABLE relais.unique_key (
    service_id integer NOT NULL,
    client_id  integer NOT NULL,
    key        text NOT NULL,
    task_id    uuid NOT NULL,
    position   bigint NOT NULL,
    -- None: until the task has ended.
    until      timestamptz,
    PRIMARY KEY (service_id, client_id, key)
);
CREATE INDEX unique_key_by_until ON relais.unique_key (until) WHERE until IS NOT NULL;
