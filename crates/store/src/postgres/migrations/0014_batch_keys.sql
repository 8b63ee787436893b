-- Idempotency keys of batches: what was answered to whoever made one.
CREATE TABLE relais.batch_key (
    client_id   integer NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,
    batch_id    uuid NOT NULL,
    -- Of each task its name, its position, and whether it was there before.
    answers     text NOT NULL DEFAULT '[]',
    created     timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (client_id, key)
);
CREATE INDEX batch_key_by_age ON relais.batch_key (created);
