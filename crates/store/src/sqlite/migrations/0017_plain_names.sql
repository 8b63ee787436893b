-- Tables are named by the words of docs/glossary.md. Nothing else about them changes.
ALTER TABLE hand RENAME TO instance_lease;
ALTER TABLE tally RENAME TO counter;
ALTER TABLE departure RENAME TO position_tree;

ALTER TABLE roll_call RENAME TO worker_registry;
DROP INDEX roll_call_by_age;
CREATE INDEX worker_registry_by_age ON worker_registry (at);

ALTER TABLE inbox RENAME TO submission;
DROP INDEX inbox_open;
CREATE INDEX submission_open ON submission (id) WHERE refused IS NULL;

-- Programs insert into "inbox" in their own transactions: the old name stays. A later release removes it.
CREATE VIEW inbox AS SELECT * FROM submission;
CREATE TRIGGER insert_into_inbox INSTEAD OF INSERT ON inbox BEGIN
    INSERT INTO submission (task_id, service, client, request, created, refused)
    VALUES (new.task_id, new.service, new.client, new.request, new.created, new.refused);
END;
