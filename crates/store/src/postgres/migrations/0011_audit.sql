-- Who did what, as operators. Written once, read from the newest, forgotten by age.
CREATE TABLE relais.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor  text NOT NULL,
    via    text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail text,
    error  text
);
CREATE INDEX audit_by_age ON relais.audit (at);
