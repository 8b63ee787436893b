-- Whether what came of it is not known yet: a line is written before the act, and what came of it afterwards.
ALTER TABLE audit ADD COLUMN open INTEGER NOT NULL DEFAULT 0;

-- Who is signed in to the dashboard. What names a session is not its secret, but follows from it.
CREATE TABLE session (
    id       TEXT NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    expires  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX session_by_operator ON session (operator);
CREATE INDEX session_by_end ON session (expires);

-- The workers that each process has heard of, as it tells the others now and then.
CREATE TABLE roll_call (
    process TEXT NOT NULL PRIMARY KEY,
    workers TEXT NOT NULL,
    at      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX roll_call_by_age ON roll_call (at);
