-- These hold all tasks and callbacks: none is without a service or a task. The conditions keep them from being taken for a way to
-- a row by its id, which stands last in them: while a table is known to be tiny, that looks as cheap as its primary key, and such
-- a plan is kept while the table grows. Who asks for those of a service or a task fulfils the condition by that.
DROP INDEX relais.task_by_service;
CREATE INDEX task_by_service ON relais.task (service_id, status, id) WHERE service_id IS NOT NULL;
DROP INDEX relais.task_by_client;
CREATE INDEX task_by_client ON relais.task (client_id, service_id, status, id) WHERE service_id IS NOT NULL;
DROP INDEX relais.callback_by_task;
CREATE INDEX callback_by_task ON relais.callback (task, id) WHERE task IS NOT NULL;
