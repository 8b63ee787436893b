-- The end of the log of notifications. Whoever appends to the log locks this row until the commit, so that no entry becomes
-- visible after one with a later position. "epoch" names the log: a cursor of another one means nothing.
CREATE TABLE relais.notification_head (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    position   bigint NOT NULL,
    floor      bigint NOT NULL,
    epoch      text NOT NULL,
    ticket_key bytea
);
INSERT INTO relais.notification_head (position, floor, epoch)
VALUES (0, 0, substr(md5(random()::text || clock_timestamp()::text), 1, 8));

-- Messages to audiences, each stored once. "outstanding" is at least how many must acknowledge and have not: where it is not
-- above zero, they are counted.
CREATE TABLE relais.notification (
    id             uuid PRIMARY KEY,
    position       bigint NOT NULL,
    client         text,
    message        text NOT NULL,
    ack_required   boolean NOT NULL,
    ack_timeout_ms bigint NOT NULL,
    expiration     timestamptz NOT NULL,
    status         smallint NOT NULL,
    attempts       integer NOT NULL,
    resent_at      integer NOT NULL,
    due            timestamptz,
    revision       bigint NOT NULL,
    outstanding    bigint NOT NULL,
    replaced_by    uuid
);
CREATE INDEX notification_due ON relais.notification (due) WHERE due IS NOT NULL;
CREATE INDEX notification_by_position ON relais.notification (position);
CREATE INDEX notification_by_status ON relais.notification (status, position);
CREATE INDEX notification_by_client ON relais.notification (client, status, position);
CREATE INDEX notification_expiration ON relais.notification (expiration);

-- The log: 0 sent, 1 sent again, 2 withdrawn, 3 acknowledged by a user, 4 members changed. "detail" belongs to 3 and 4.
CREATE TABLE relais.notification_entry (
    position     bigint PRIMARY KEY,
    kind         smallint NOT NULL,
    notification uuid,
    attempts     integer NOT NULL,
    detail       text,
    at           timestamptz NOT NULL
);

-- For whom an entry is. Those of kind 0 stay as long as their messages: lists and counts are made of them.
CREATE TABLE relais.notification_key (
    type         text COLLATE "C" NOT NULL,
    target       text COLLATE "C" NOT NULL,
    position     bigint NOT NULL,
    kind         smallint NOT NULL,
    notification uuid,
    PRIMARY KEY (type, target, position)
);
CREATE INDEX notification_key_by_position ON relais.notification_key (position);
CREATE INDEX notification_key_by_notification ON relais.notification_key (notification) WHERE kind = 0;

-- What was sent to a user, and what a user has acknowledged.
CREATE TABLE relais.notification_recipient (
    notification uuid NOT NULL,
    user_id      text COLLATE "C" NOT NULL,
    deliveries   integer NOT NULL,
    delivered    timestamptz,
    acknowledged timestamptz,
    PRIMARY KEY (notification, user_id)
);

-- Who belongs to which target now, and since which position of the log.
CREATE TABLE relais.membership (
    type        text COLLATE "C" NOT NULL,
    target      text COLLATE "C" NOT NULL,
    member_type text COLLATE "C" NOT NULL,
    member      text COLLATE "C" NOT NULL,
    since       bigint NOT NULL,
    PRIMARY KEY (type, target, member_type, member)
);
CREATE INDEX membership_by_member ON relais.membership (member_type, member, type, target, since);
