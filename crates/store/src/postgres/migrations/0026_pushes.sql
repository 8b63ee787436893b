-- How far the log was looked through for messages to push; nothing while nobody subscribes. The key pair that all pushes are
-- signed with, PKCS #8. Whoever plans pushes or changes subscriptions locks this row first.
CREATE TABLE relais.push_head (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch     text,
    position  bigint,
    vapid_key bytea
);
INSERT INTO relais.push_head DEFAULT VALUES;

-- Browsers that take pushes for a user. "id" is made of the endpoint, so an endpoint is there once.
CREATE TABLE relais.push_subscription (
    id       uuid PRIMARY KEY,
    user_id  text COLLATE "C" NOT NULL,
    endpoint text NOT NULL,
    p256dh   bytea NOT NULL,
    auth     bytea NOT NULL,
    created  timestamptz NOT NULL,
    pushed   timestamptz
);
CREATE INDEX push_subscription_by_user ON relais.push_subscription (user_id, created);

-- Messages to subscriptions: 0 waits until "due", 1 was asked about (whose page is open takes it away), 2 is being pushed under a
-- lease until "due", 3 was pushed. "withdrawn": what is pushed is that the message was withdrawn.
CREATE TABLE relais.push (
    notification uuid NOT NULL,
    subscription uuid NOT NULL,
    user_id      text COLLATE "C" NOT NULL,
    state        smallint NOT NULL,
    withdrawn    boolean NOT NULL,
    due          timestamptz,
    tries        integer NOT NULL,
    claim        bigint NOT NULL,
    expiration   timestamptz NOT NULL,
    PRIMARY KEY (notification, subscription)
);
CREATE INDEX push_due ON relais.push (state, due) WHERE due IS NOT NULL;
CREATE INDEX push_asked ON relais.push (user_id) WHERE state = 1;
CREATE INDEX push_by_subscription ON relais.push (subscription);
CREATE INDEX push_expiration ON relais.push (expiration);
