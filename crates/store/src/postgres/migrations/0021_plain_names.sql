-- Tables are named by the words of docs/glossary.md. Nothing else about them changes.
--
-- All locks are taken first, in the order in which transactions take them: a program may hold "inbox" for long, and nobody
-- else must wait for it meanwhile. Whoever finds it held for longer than this migrates again.
SET LOCAL lock_timeout = '10s';
LOCK TABLE relais.inbox IN ACCESS EXCLUSIVE MODE;
LOCK TABLE relais.roll_call, relais.hand, relais.departure, relais.tally IN ACCESS EXCLUSIVE MODE;

ALTER TABLE relais.hand RENAME TO instance_lease;
ALTER INDEX relais.hand_pkey RENAME TO instance_lease_pkey;
ALTER INDEX relais.hand_by_service RENAME TO instance_lease_by_service;
ALTER INDEX relais.hand_by_instance RENAME TO instance_lease_by_instance;
ALTER SEQUENCE relais.hand_id_seq RENAME TO instance_lease_id_seq;

ALTER TABLE relais.tally RENAME TO counter;
ALTER INDEX relais.tally_pkey RENAME TO counter_pkey;

ALTER TABLE relais.departure RENAME TO position_tree;
ALTER INDEX relais.departure_pkey RENAME TO position_tree_pkey;

ALTER TABLE relais.roll_call RENAME TO worker_registry;
ALTER INDEX relais.roll_call_pkey RENAME TO worker_registry_pkey;
ALTER INDEX relais.roll_call_by_age RENAME TO worker_registry_by_age;

ALTER TABLE relais.inbox RENAME TO submission;
ALTER INDEX relais.inbox_pkey RENAME TO submission_pkey;
ALTER INDEX relais.inbox_task_id_key RENAME TO submission_task_id_key;
ALTER INDEX relais.inbox_open RENAME TO submission_open;
ALTER SEQUENCE relais.inbox_id_seq RENAME TO submission_id_seq;
ALTER TRIGGER tell_of_inbox ON relais.submission RENAME TO wake_collectors;
ALTER FUNCTION relais.tell_of_inbox() RENAME TO wake_collectors;

-- Processes of the version before still run during an upgrade, and programs insert into "inbox": the old names stay, as views
-- that are written through. A later release removes them.
CREATE VIEW relais.hand AS SELECT * FROM relais.instance_lease;
CREATE VIEW relais.tally AS SELECT * FROM relais.counter;
CREATE VIEW relais.departure AS SELECT * FROM relais.position_tree;
CREATE VIEW relais.roll_call AS SELECT * FROM relais.worker_registry;
CREATE VIEW relais.inbox AS SELECT * FROM relais.submission;

-- Whoever was granted something on a table has it on the view too.
DO $$
DECLARE
    renamed record;
    granted record;
BEGIN
    FOR renamed IN SELECT * FROM (VALUES
        ('hand', 'instance_lease'), ('tally', 'counter'), ('departure', 'position_tree'),
        ('roll_call', 'worker_registry'), ('inbox', 'submission')
    ) AS names (before, after) LOOP
        FOR granted IN
            SELECT a.grantee, a.privilege_type AS privilege, a.is_grantable, NULL::name AS attribute
            FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
            WHERE c.oid = ('relais.' || renamed.after)::regclass
            UNION ALL
            SELECT a.grantee, a.privilege_type, a.is_grantable, t.attname
            FROM pg_attribute t CROSS JOIN LATERAL aclexplode(t.attacl) a
            WHERE t.attrelid = ('relais.' || renamed.after)::regclass
        LOOP
            EXECUTE format(
                'GRANT %s%s ON relais.%I TO %s%s', granted.privilege,
                CASE WHEN granted.attribute IS NULL THEN '' ELSE format(' (%I)', granted.attribute) END,
                renamed.before,
                CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END,
                CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
            );
        END LOOP;
    END LOOP;
END
$$;
