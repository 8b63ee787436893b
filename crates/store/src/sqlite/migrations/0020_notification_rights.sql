-- What clients may do with notifications: JSON.
CREATE TABLE notification_rights (
    client_id INTEGER PRIMARY KEY REFERENCES client,
    rights    TEXT NOT NULL
);

-- A client that is deleted has no rights when it is declared again, whichever version deletes it.
CREATE TRIGGER delete_notification_rights AFTER UPDATE OF deleted ON client WHEN new.deleted
BEGIN
    DELETE FROM notification_rights WHERE client_id = new.id;
END;
