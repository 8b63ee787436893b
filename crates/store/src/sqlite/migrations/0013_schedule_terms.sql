-- On what terms the tasks of a schedule are to be done; none is as for any task of the service.
ALTER TABLE schedule ADD COLUMN priority INTEGER;
ALTER TABLE schedule ADD COLUMN retry TEXT;
ALTER TABLE schedule ADD COLUMN timeout_ms INTEGER;
ALTER TABLE schedule ADD COLUMN expires_ms INTEGER;
