-- A task is written anew once or twice in its life, and each time these have another entry for it, beside the one before. On full
-- pages that is a split, and before it a search for entries that nobody needs any more; half full pages have room for it.
ALTER INDEX relais.task_pkey SET (fillfactor = 50);
ALTER INDEX relais.task_by_task_id SET (fillfactor = 50);
