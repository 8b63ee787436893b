-- Whether what came of it is not known yet: a line is written before the act, and what came of it afterwards.
ALTER TABLE relais.audit ADD COLUMN open boolean NOT NULL DEFAULT false;

-- Who is signed in to the dashboard. What names a session is not its secret, but follows from it.
CREATE TABLE relais.session (
    id       text PRIMARY KEY,
    operator text NOT NULL,
    expires  timestamptz NOT NULL
);
CREATE INDEX session_by_operator ON relais.session (operator);
CREATE INDEX session_by_end ON relais.session (expires);

-- The workers that each process has heard of, as it tells the others now and then.
CREATE TABLE relais.roll_call (
    process text PRIMARY KEY,
    workers text NOT NULL,
    at      timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX roll_call_by_age ON relais.roll_call (at);
