-- Tasks that programs put here in their own transactions. They are taken in after the commit; what is refused stays, with the
-- reason.
CREATE TABLE relais.inbox (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    service text NOT NULL,
    client  text NOT NULL,
    -- What a consumer would say over HTTP: {"body": {…}, …}
    request json NOT NULL,
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX inbox_open ON relais.inbox (id) WHERE refused IS NULL;

-- Whoever runs an engine is told when the transaction commits.
CREATE FUNCTION relais.tell_of_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('relais', ';i');
    RETURN NULL;
END
$$;
CREATE TRIGGER tell_of_inbox AFTER INSERT ON relais.inbox FOR EACH STATEMENT EXECUTE FUNCTION relais.tell_of_inbox();
