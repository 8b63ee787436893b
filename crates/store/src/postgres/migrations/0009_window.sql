-- Its service, while it has a place in that service's window: it is in the hand of whoever publishes it, at the broker, or with a
-- worker. Such a row stays when the broker has confirmed (its `due` is then infinity), until the task has ended. Only the index
-- that counts places has it, so no plan can take another one.
ALTER TABLE relais.dispatch ADD COLUMN window_id integer;
CREATE INDEX dispatch_by_window ON relais.dispatch (window_id) WHERE window_id IS NOT NULL;

-- Whether what is at its broker has places in its window.
ALTER TABLE relais.service ADD COLUMN windowed boolean NOT NULL DEFAULT false;
-- Whether its unfinished tasks are not to be dispatched again (see `again_after`), but to be given places: they were at the broker
-- before there was a window.
ALTER TABLE relais.service ADD COLUMN again_places boolean NOT NULL DEFAULT false;

UPDATE relais.service SET windowed = true, again_places = again_after IS NULL, again_after = coalesce(again_after, 0),
    again_until = CASE WHEN again_after IS NULL THEN coalesce((SELECT max(id) FROM relais.task), 0) ELSE again_until END,
    again_running = again_after IS NULL OR again_running
WHERE dispatch_window IS NOT NULL AND transport = 1 AND NOT deleted;

-- The end of a task that was done once more since: which attempt it was, and when. What else is told of it is in `started` and
-- `progress`, and with the attempt.
ALTER TABLE relais.callback ADD COLUMN attempt integer;
ALTER TABLE relais.callback ADD COLUMN happened timestamptz;
