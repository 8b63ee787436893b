-- How far the log was looked through for messages to push; nothing while nobody subscribes. The key pair that all pushes are
-- signed with, PKCS #8.
CREATE TABLE push_head (
    one       INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    epoch     TEXT,
    position  INTEGER,
    vapid_key BLOB
);
INSERT INTO push_head (one) VALUES (1);

-- Browsers that take pushes for a user. "id" is made of the endpoint, so an endpoint is there once.
CREATE TABLE push_subscription (
    id       TEXT NOT NULL PRIMARY KEY,
    user_id  TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    p256dh   BLOB NOT NULL,
    auth     BLOB NOT NULL,
    created  INTEGER NOT NULL,
    pushed   INTEGER
);
CREATE INDEX push_subscription_by_user ON push_subscription (user_id, created);

-- Messages to subscriptions: 0 waits until "due", 1 was asked about (whose page is open takes it away), 2 is being pushed under a
-- lease until "due", 3 was pushed. "withdrawn": what is pushed is that the message was withdrawn.
CREATE TABLE push (
    notification TEXT NOT NULL,
    subscription TEXT NOT NULL,
    user_id      TEXT NOT NULL,
    state        INTEGER NOT NULL,
    withdrawn    INTEGER NOT NULL,
    due          INTEGER,
    tries        INTEGER NOT NULL,
    claim        INTEGER NOT NULL,
    expiration   INTEGER NOT NULL,
    PRIMARY KEY (notification, subscription)
) WITHOUT ROWID;
CREATE INDEX push_due ON push (state, due) WHERE due IS NOT NULL;
CREATE INDEX push_asked ON push (user_id) WHERE state = 1;
CREATE INDEX push_by_subscription ON push (subscription);
CREATE INDEX push_expiration ON push (expiration);
