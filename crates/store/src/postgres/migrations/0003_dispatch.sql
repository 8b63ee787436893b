-- How a service's tasks reach its workers: 0 the built-in queue, 1 RabbitMQ.
ALTER TABLE relais.service ADD COLUMN transport smallint NOT NULL DEFAULT 0;
-- Its queues on a broker, where there are none yet: 0 classic, 1 quorum.
ALTER TABLE relais.service ADD COLUMN queue_kind smallint NOT NULL DEFAULT 0;
ALTER TABLE relais.service ADD COLUMN message_ttl_ms bigint;
ALTER TABLE relais.service ADD COLUMN max_length integer;
-- While its unfinished tasks are to be dispatched again, because the broker does not have them: how far that has come, how
-- far it goes, and whether those that a worker had are among them.
ALTER TABLE relais.service ADD COLUMN again_after bigint;
ALTER TABLE relais.service ADD COLUMN again_until bigint;
ALTER TABLE relais.service ADD COLUMN again_running boolean;

-- On the row that numbers a service's tasks, beside `limited` and for the same reason: whether they go to a broker.
ALTER TABLE relais.tally ADD COLUMN brokered boolean NOT NULL DEFAULT false;

-- What is to be published to a broker. Written with the task, removed when the broker has confirmed.
CREATE TABLE relais.dispatch (
    service_id integer NOT NULL,
    task_id    uuid NOT NULL,
    -- When anybody may take it; before that it is in somebody's hand.
    due        timestamptz NOT NULL,
    -- How often the broker has lost it: what was published before that is not done.
    round      integer NOT NULL DEFAULT 0,
    -- Public names begin with the time, so this is the order of arrival. `due` is in no index: what is not due is in
    -- somebody's hand, which is little.
    PRIMARY KEY (service_id, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
