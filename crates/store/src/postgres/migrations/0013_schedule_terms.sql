-- On what terms the tasks of a schedule are to be done; none is as for any task of the service.
ALTER TABLE relais.schedule
    ADD COLUMN priority   smallint,
    ADD COLUMN retry      text,
    ADD COLUMN timeout_ms bigint,
    ADD COLUMN expires_ms bigint;
