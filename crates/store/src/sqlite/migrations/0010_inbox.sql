-- Tasks that programs put here in their own transactions. They are taken in after the commit; what is refused stays, with the
-- reason.
CREATE TABLE inbox (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL UNIQUE,
    service TEXT NOT NULL,
    client  TEXT NOT NULL,
    -- What a consumer would say over HTTP: {"body": {…}, …}
    request TEXT NOT NULL,
    created INTEGER NOT NULL,
    refused TEXT
);
CREATE INDEX inbox_open ON inbox (id) WHERE refused IS NULL;
