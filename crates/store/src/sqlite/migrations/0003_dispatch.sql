-- How a service's tasks reach its workers: 0 the built-in queue, 1 RabbitMQ.
ALTER TABLE service ADD COLUMN transport INTEGER NOT NULL DEFAULT 0;
-- Its queues on a broker, where there are none yet: 0 classic, 1 quorum.
ALTER TABLE service ADD COLUMN queue_kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE service ADD COLUMN message_ttl_ms INTEGER;
ALTER TABLE service ADD COLUMN max_length INTEGER;
-- While its unfinished tasks are to be dispatched again, because the broker does not have them: how far that has come, how
-- far it goes, and whether those that a worker had are among them.
ALTER TABLE service ADD COLUMN again_after INTEGER;
ALTER TABLE service ADD COLUMN again_until INTEGER;
ALTER TABLE service ADD COLUMN again_running INTEGER;

-- What is to be published to a broker. Written with the task, removed when the broker has confirmed.
CREATE TABLE dispatch (
    service_id INTEGER NOT NULL,
    task_id    TEXT NOT NULL,
    -- When anybody may take it; before that it is in somebody's hand.
    due        INTEGER NOT NULL,
    -- How often the broker has lost it: what was published before that is not done.
    round      INTEGER NOT NULL DEFAULT 0,
    -- Public names begin with the time, so this is the order of arrival.
    PRIMARY KEY (service_id, task_id)
) WITHOUT ROWID;
