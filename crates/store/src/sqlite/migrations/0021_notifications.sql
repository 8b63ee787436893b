-- The end of the log of notifications. "epoch" names the log: a cursor of another one means nothing.
CREATE TABLE notification_head (
    one        INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    position   INTEGER NOT NULL,
    floor      INTEGER NOT NULL,
    epoch      TEXT NOT NULL,
    ticket_key BLOB
);
INSERT INTO notification_head (one, position, floor, epoch) VALUES (1, 0, 0, lower(hex(randomblob(4))));

-- Messages to audiences, each stored once. "outstanding" is at least how many must acknowledge and have not: where it is not
-- above zero, they are counted.
CREATE TABLE notification (
    id             TEXT NOT NULL PRIMARY KEY,
    position       INTEGER NOT NULL,
    client         TEXT,
    message        TEXT NOT NULL,
    ack_required   INTEGER NOT NULL,
    ack_timeout_ms INTEGER NOT NULL,
    expiration     INTEGER NOT NULL,
    status         INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    resent_at      INTEGER NOT NULL,
    due            INTEGER,
    revision       INTEGER NOT NULL,
    outstanding    INTEGER NOT NULL,
    replaced_by    TEXT
);
CREATE INDEX notification_due ON notification (due) WHERE due IS NOT NULL;
CREATE INDEX notification_by_position ON notification (position);
CREATE INDEX notification_by_status ON notification (status, position);
CREATE INDEX notification_by_client ON notification (client, status, position);
CREATE INDEX notification_expiration ON notification (expiration);

-- The log: 0 sent, 1 sent again, 2 withdrawn, 3 acknowledged by a user, 4 members changed. "detail" belongs to 3 and 4.
CREATE TABLE notification_entry (
    position     INTEGER NOT NULL PRIMARY KEY,
    kind         INTEGER NOT NULL,
    notification TEXT,
    attempts     INTEGER NOT NULL,
    detail       TEXT,
    at           INTEGER NOT NULL
);

-- For whom an entry is. Those of kind 0 stay as long as their messages: lists and counts are made of them.
CREATE TABLE notification_key (
    type         TEXT NOT NULL,
    target       TEXT NOT NULL,
    position     INTEGER NOT NULL,
    kind         INTEGER NOT NULL,
    notification TEXT,
    PRIMARY KEY (type, target, position)
) WITHOUT ROWID;
CREATE INDEX notification_key_by_position ON notification_key (position);
CREATE INDEX notification_key_by_notification ON notification_key (notification) WHERE kind = 0;

-- What was sent to a user, and what a user has acknowledged.
CREATE TABLE notification_recipient (
    notification TEXT NOT NULL,
    user_id      TEXT NOT NULL,
    deliveries   INTEGER NOT NULL,
    delivered    INTEGER,
    acknowledged INTEGER,
    PRIMARY KEY (notification, user_id)
) WITHOUT ROWID;

-- Who belongs to which target now, and since which position of the log.
CREATE TABLE membership (
    type        TEXT NOT NULL,
    target      TEXT NOT NULL,
    member_type TEXT NOT NULL,
    member      TEXT NOT NULL,
    since       INTEGER NOT NULL,
    PRIMARY KEY (type, target, member_type, member)
) WITHOUT ROWID;
CREATE INDEX membership_by_member ON membership (member_type, member, type, target, since);
