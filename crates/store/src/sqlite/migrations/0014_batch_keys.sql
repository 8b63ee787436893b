-- Idempotency keys of batches: what was answered to whoever made one.
CREATE TABLE batch_key (
    client_id   INTEGER NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    batch_id    TEXT NOT NULL,
    -- Of each task its name, its position, and whether it was there before.
    answers     TEXT NOT NULL DEFAULT '[]',
    created     INTEGER NOT NULL,
    PRIMARY KEY (client_id, key)
);
CREATE INDEX batch_key_by_age ON batch_key (created);
