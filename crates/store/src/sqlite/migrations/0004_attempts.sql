-- How often a task that failed is tried again (JSON; none means never), how long an attempt may take, and by how much each level of
-- priority comes before the one below.
ALTER TABLE service ADD COLUMN retry TEXT;
ALTER TABLE service ADD COLUMN timeout_ms INTEGER;
ALTER TABLE service ADD COLUMN priority_step_ms INTEGER NOT NULL DEFAULT 60000;

-- There is a sixth status: 5 waiting, which is PENDING to everybody but the queue.
ALTER TABLE task ADD COLUMN priority INTEGER NOT NULL DEFAULT 4;
-- The order in which tasks are handed out: when it was submitted, less the head start of its priority.
ALTER TABLE task ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
-- For when it was asked.
ALTER TABLE task ADD COLUMN scheduled INTEGER;
-- While it waits, when it comes into its queue.
ALTER TABLE task ADD COLUMN due INTEGER;
ALTER TABLE task ADD COLUMN expires INTEGER;
ALTER TABLE task ADD COLUMN deadline INTEGER;
-- When something happens to it by itself, whichever of the above that is.
ALTER TABLE task ADD COLUMN timer INTEGER;
-- Its own settings, where they are not the service's.
ALTER TABLE task ADD COLUMN timeout_ms INTEGER;
ALTER TABLE task ADD COLUMN retry TEXT;
ALTER TABLE task ADD COLUMN unique_key TEXT;
ALTER TABLE task ADD COLUMN error_kind TEXT;
ALTER TABLE task ADD COLUMN error_trace TEXT;

UPDATE task SET rank = submitted, timer = lease_until WHERE status < 2;

CREATE INDEX task_by_rank ON task (service_id, rank, id) WHERE status = 0;
CREATE INDEX task_by_timer ON task (timer) WHERE timer IS NOT NULL;
DROP INDEX task_by_lease;

-- Attempts before the current or last one, which the task tells of itself.
CREATE TABLE attempt (
    -- The task's id.
    task          INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    -- 1 success, 2 failure, 3 cancelled, 4 returned, 5 lost
    outcome       INTEGER NOT NULL,
    started       INTEGER,
    ended         INTEGER NOT NULL,
    worker_host   TEXT,
    error_message TEXT,
    error_kind    TEXT,
    error_trace   TEXT,
    response      TEXT,
    PRIMARY KEY (task, number)
) WITHOUT ROWID;

-- Words of clients of which a service has one task at a time. A row goes when its task ends, or when its time is up.
CREATE TABLE unique_key (
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    key        TEXT NOT NULL,
    task_id    TEXT NOT NULL,
    position   INTEGER NOT NULL,
    -- None: until the task has ended.
    until      INTEGER,
    PRIMARY KEY (service_id, client_id, key)
) WITHOUT ROWID;
CREATE INDEX unique_key_by_until ON unique_key (until) WHERE until IS NOT NULL;
