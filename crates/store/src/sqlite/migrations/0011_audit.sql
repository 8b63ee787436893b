-- Who did what, as operators. Written once, read from the newest, forgotten by age.
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    actor  TEXT NOT NULL,
    via    TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT,
    error  TEXT
);
CREATE INDEX audit_by_age ON audit (at);
