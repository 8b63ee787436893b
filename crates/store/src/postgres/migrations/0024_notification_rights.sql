-- What clients may do with notifications: JSON. Not a column of "client": processes of the version before still run during an upgrade,
-- and have prepared `SELECT * FROM relais.client`, which fails on a connection once the table has another column.
CREATE TABLE relais.notification_rights (
    client_id integer PRIMARY KEY REFERENCES relais.client,
    rights    text NOT NULL
);

-- A client that is deleted has no rights when it is declared again, whichever version deletes it.
CREATE FUNCTION relais.delete_notification_rights() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM relais.notification_rights WHERE client_id = new.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER delete_notification_rights AFTER UPDATE OF deleted ON relais.client
    FOR EACH ROW WHEN (new.deleted) EXECUTE FUNCTION relais.delete_notification_rights();
