CREATE SCHEMA relais;
CREATE FUNCTION relais.tell_of_inbox() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_notify('relais', ';i');
    RETURN NULL;
END
$$;
CREATE TABLE relais.attempt (
    task bigint NOT NULL,
    number integer NOT NULL,
    outcome smallint NOT NULL,
    started timestamp with time zone,
    ended timestamp with time zone NOT NULL,
    worker_host text,
    error_message text,
    error_kind text,
    error_trace text,
    response json
);
CREATE TABLE relais.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    actor text NOT NULL,
    via text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail text,
    error text,
    open boolean DEFAULT false NOT NULL
);
ALTER TABLE relais.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais."authorization" (
    client_id integer NOT NULL,
    service_id integer NOT NULL,
    consume boolean NOT NULL,
    work boolean NOT NULL,
    capacity integer,
    max_running integer,
    share integer DEFAULT 1 NOT NULL
);
CREATE TABLE relais.batch (
    batch_id uuid NOT NULL,
    client_id integer NOT NULL,
    created timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    closed timestamp with time zone,
    ended timestamp with time zone,
    callback json,
    lane bigint,
    correlation_id text,
    trace text,
    pending bigint DEFAULT 0 NOT NULL,
    in_progress bigint DEFAULT 0 NOT NULL,
    success bigint DEFAULT 0 NOT NULL,
    failure bigint DEFAULT 0 NOT NULL,
    cancelled bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');
CREATE TABLE relais.batch_key (
    client_id integer NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    batch_id uuid NOT NULL,
    answers text DEFAULT '[]'::text NOT NULL,
    created timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);
CREATE TABLE relais.callback (
    id bigint NOT NULL,
    task bigint NOT NULL,
    service_id integer NOT NULL,
    client_id integer NOT NULL,
    event smallint NOT NULL,
    revision bigint NOT NULL,
    lane bigint NOT NULL,
    chain boolean NOT NULL,
    status smallint DEFAULT 0 NOT NULL,
    gone boolean DEFAULT false NOT NULL,
    due timestamp with time zone,
    held boolean DEFAULT false NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    created timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended timestamp with time zone,
    started timestamp with time zone,
    progress double precision,
    batch_id uuid,
    attempt integer,
    happened timestamp with time zone
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000');
CREATE TABLE relais.callback_attempt (
    callback bigint NOT NULL,
    number integer NOT NULL,
    at timestamp with time zone NOT NULL,
    duration_ms bigint NOT NULL,
    http_status integer,
    error text,
    answer text
);
ALTER TABLE relais.callback ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.callback_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.callback_lane (
    lane bigint NOT NULL,
    parks integer NOT NULL,
    parked_until timestamp with time zone NOT NULL
);
CREATE TABLE relais.chore (
    name text NOT NULL,
    begun timestamp with time zone NOT NULL
);
CREATE TABLE relais.client (
    id integer NOT NULL,
    client_id text NOT NULL,
    secret_hash text NOT NULL,
    deleted boolean DEFAULT false NOT NULL,
    destinations text
);
ALTER TABLE relais.client ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.client_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.clock (
    single boolean DEFAULT true NOT NULL,
    stepped bigint NOT NULL,
    CONSTRAINT clock_single_check CHECK (single)
);
CREATE TABLE relais.declared (
    single boolean DEFAULT true NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT declared_single_check CHECK (single)
);
CREATE TABLE relais.departure (
    service_id integer NOT NULL,
    level smallint NOT NULL,
    slot bigint NOT NULL,
    n bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.1', autovacuum_vacuum_threshold='1000');
CREATE TABLE relais.dependency (
    task bigint NOT NULL,
    prerequisite bigint NOT NULL,
    prerequisite_id uuid NOT NULL,
    outcome smallint
);
CREATE TABLE relais.dispatch (
    service_id integer NOT NULL,
    task_id uuid NOT NULL,
    due timestamp with time zone NOT NULL,
    round integer DEFAULT 0 NOT NULL,
    window_id integer
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');
CREATE TABLE relais.ending (
    task bigint NOT NULL,
    status smallint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');
CREATE TABLE relais.flow (
    service_id integer NOT NULL,
    ahead_until bigint DEFAULT 0 NOT NULL,
    "time" bigint DEFAULT 0 NOT NULL,
    turns bigint DEFAULT 0 NOT NULL,
    horizon bigint DEFAULT 0 NOT NULL,
    taken bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE relais.flow_client (
    service_id integer NOT NULL,
    client_id integer NOT NULL,
    "time" bigint NOT NULL,
    turn bigint NOT NULL
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE relais.hand (
    id bigint NOT NULL,
    instance_id bigint NOT NULL,
    service_id integer NOT NULL,
    tasks bigint[] NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');
ALTER TABLE ONLY relais.hand ALTER COLUMN tasks SET STORAGE EXTERNAL;
ALTER TABLE relais.hand ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.hand_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.idempotency (
    service_id integer NOT NULL,
    client_id integer NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    task_id uuid NOT NULL,
    "position" bigint NOT NULL,
    created timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);
CREATE TABLE relais.inbox (
    id bigint NOT NULL,
    task_id uuid DEFAULT gen_random_uuid() NOT NULL,
    service text NOT NULL,
    client text NOT NULL,
    request json NOT NULL,
    created timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    refused text
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE relais.inbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.inbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.instance (
    id bigint NOT NULL,
    name text NOT NULL,
    host text,
    version text NOT NULL,
    policy smallint NOT NULL,
    started timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seen timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    until timestamp with time zone NOT NULL,
    undecided boolean DEFAULT false NOT NULL,
    epoch bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE relais.instance ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.instance_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.migration (
    version bigint NOT NULL,
    description text NOT NULL,
    installed_on timestamp with time zone DEFAULT now() NOT NULL,
    success boolean NOT NULL,
    checksum bytea NOT NULL,
    execution_time bigint NOT NULL
);
CREATE TABLE relais.roll_call (
    process text NOT NULL,
    workers text NOT NULL,
    at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE relais.schedule (
    name text NOT NULL COLLATE pg_catalog."C",
    service text NOT NULL,
    client_id text NOT NULL,
    cron text NOT NULL,
    time_zone text NOT NULL,
    body json NOT NULL,
    callback json,
    correlation_id text,
    missed smallint NOT NULL,
    overlap smallint NOT NULL,
    paused boolean NOT NULL,
    next_fire timestamp with time zone,
    last_run timestamp with time zone,
    last_task uuid,
    last_error text,
    last_error_at timestamp with time zone,
    runs bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    refused bigint DEFAULT 0 NOT NULL,
    missed_runs bigint DEFAULT 0 NOT NULL,
    priority smallint,
    retry text,
    timeout_ms bigint,
    expires_ms bigint
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE relais.service (
    id integer NOT NULL,
    name text NOT NULL,
    queue_name text NOT NULL,
    json_schema json,
    paused boolean DEFAULT false NOT NULL,
    capacity integer,
    lease_ms bigint NOT NULL,
    delivery_limit integer NOT NULL,
    keep_finished_ms bigint,
    keep_any_ms bigint,
    deleted boolean DEFAULT false NOT NULL,
    callback_retries text,
    transport smallint DEFAULT 0 NOT NULL,
    queue_kind smallint DEFAULT 0 NOT NULL,
    message_ttl_ms bigint,
    max_length integer,
    again_after bigint,
    again_until bigint,
    again_running boolean,
    retry text,
    timeout_ms bigint,
    priority_step_ms bigint DEFAULT 60000 NOT NULL,
    max_running integer,
    max_running_per_client integer,
    rate_count integer,
    rate_per_ms bigint,
    rate_burst integer,
    fair_share boolean DEFAULT false NOT NULL,
    dispatch_window integer,
    flow smallint DEFAULT 0 NOT NULL,
    handed boolean DEFAULT false NOT NULL,
    windowed boolean DEFAULT false NOT NULL,
    again_places boolean DEFAULT false NOT NULL
);
ALTER TABLE relais.service ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.service_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.session (
    id text NOT NULL,
    operator text NOT NULL,
    expires timestamp with time zone NOT NULL
);
CREATE TABLE relais.signing_secret (
    client_id integer NOT NULL,
    secret text NOT NULL,
    created timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires timestamp with time zone
);
CREATE TABLE relais.tally (
    service_id integer NOT NULL,
    client_id integer NOT NULL,
    status smallint NOT NULL,
    departed boolean NOT NULL,
    n bigint NOT NULL,
    limited boolean DEFAULT false NOT NULL,
    brokered boolean DEFAULT false NOT NULL
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE relais.task (
    id bigint NOT NULL,
    task_id uuid NOT NULL,
    service_id integer NOT NULL,
    client_id integer NOT NULL,
    seq bigint NOT NULL,
    status smallint DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    losses integer DEFAULT 0 NOT NULL,
    revision bigint DEFAULT 0 NOT NULL,
    progress double precision DEFAULT 0 NOT NULL,
    submitted timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    started timestamp with time zone,
    ended timestamp with time zone,
    lease_until timestamp with time zone,
    worker_host text,
    correlation_id text,
    request json NOT NULL,
    response json,
    error_message text,
    callback json,
    priority smallint DEFAULT 4 NOT NULL,
    rank bigint DEFAULT 0 NOT NULL,
    queue_id integer GENERATED ALWAYS AS (
CASE
    WHEN (status = 0) THEN service_id
    ELSE NULL::integer
END) STORED,
    failures integer DEFAULT 0 NOT NULL,
    scheduled timestamp with time zone,
    due timestamp with time zone,
    expires timestamp with time zone,
    deadline timestamp with time zone,
    timer timestamp with time zone,
    timeout_ms bigint,
    retry text,
    unique_key text,
    error_kind text,
    error_trace text,
    parent_id uuid,
    trace text,
    batch_id uuid,
    after_when smallint,
    followed boolean DEFAULT false NOT NULL,
    revived timestamp with time zone
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000');
ALTER TABLE relais.task ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME relais.task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE relais.unique_key (
    service_id integer NOT NULL,
    client_id integer NOT NULL,
    key text NOT NULL,
    task_id uuid NOT NULL,
    "position" bigint NOT NULL,
    until timestamp with time zone
);
INSERT INTO relais.attempt VALUES (3, 1, 2, '2026-11-18 03:50:26.168+00', '2026-11-18 03:50:26.174+00', 'w1', 'later', NULL, NULL, NULL);
INSERT INTO relais.audit OVERRIDING SYSTEM VALUE VALUES (1, '2026-11-18 03:50:14.988733+00', 'services.yaml', 'file', 'apply', '', 'service resize created, service plain created, service embedded created, client shop created, client resizer created, authorization shop on resize created, authorization shop on plain created, authorization shop on embedded created, authorization resizer on resize created, authorization resizer on plain created, and 1 more', NULL, false);
INSERT INTO relais."authorization" VALUES (1, 1, true, false, 100, NULL, 1);
INSERT INTO relais."authorization" VALUES (1, 2, true, false, NULL, NULL, 1);
INSERT INTO relais."authorization" VALUES (1, 3, true, false, NULL, NULL, 1);
INSERT INTO relais."authorization" VALUES (2, 1, false, true, NULL, NULL, 1);
INSERT INTO relais."authorization" VALUES (2, 2, false, true, NULL, NULL, 1);
INSERT INTO relais.batch VALUES ('01a1ecc6-fcd8-7288-aced-999085559c31', 1, '2026-11-18 03:50:26.264571+00', '2026-11-18 03:50:26.268179+00', NULL, NULL, NULL, NULL, NULL, 1, 0, 1, 0, 0);
INSERT INTO relais.callback OVERRIDING SYSTEM VALUE VALUES (1, 1, 1, 1, 2, 2, -3609064072334507005, false, 0, false, '2026-11-18 03:50:34.479821+00', false, 1, 1, '2026-11-18 03:50:26.132859+00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO relais.callback_attempt VALUES (1, 1, '2026-11-18 03:50:26.137+00', 1, NULL, 'the name shop.invalid does not resolve', NULL);
INSERT INTO relais.chore VALUES ('dependencies', '2026-11-18 03:50:14.921074+00');
INSERT INTO relais.chore VALUES ('purge', '2026-11-18 03:50:14.987375+00');
INSERT INTO relais.client OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'hash', false, NULL);
INSERT INTO relais.client OVERRIDING SYSTEM VALUE VALUES (2, 'resizer', 'hash', false, NULL);
INSERT INTO relais.clock VALUES (true, 0);
INSERT INTO relais.declared VALUES (true, 1);
INSERT INTO relais.departure VALUES (1, 0, 0, 8);
INSERT INTO relais.departure VALUES (1, 1, 0, 8);
INSERT INTO relais.departure VALUES (1, 2, 0, 8);
INSERT INTO relais.departure VALUES (1, 3, 0, 8);
INSERT INTO relais.departure VALUES (1, 4, 0, 8);
INSERT INTO relais.departure VALUES (1, 5, 0, 8);
INSERT INTO relais.departure VALUES (2, 0, 0, 1);
INSERT INTO relais.departure VALUES (2, 1, 0, 1);
INSERT INTO relais.departure VALUES (2, 2, 0, 1);
INSERT INTO relais.departure VALUES (2, 3, 0, 1);
INSERT INTO relais.departure VALUES (2, 4, 0, 1);
INSERT INTO relais.departure VALUES (2, 5, 0, 1);
INSERT INTO relais.dependency VALUES (12, 8, '01a1ecc6-fcb4-7295-b26d-946467c86edf', NULL);
INSERT INTO relais.flow VALUES (3, 0, 0, 0, 0, 0);
INSERT INTO relais.hand OVERRIDING SYSTEM VALUE VALUES (2, 2, 3, '{15,16,17}');
INSERT INTO relais.idempotency VALUES (1, 1, 'i1', '\x425639ab7733309ed30594a0739ae84ba45afc8a4421bc4154a008ef21eb751f', '01a1ecc6-fcc4-731a-a708-abb09540cbb3', 3, '2026-11-18 03:50:26.24761+00');
INSERT INTO relais.inbox OVERRIDING SYSTEM VALUE VALUES (1, '8872049f-8e16-4592-9c50-2b98d65d7649', 'plain', 'shop', '{"body": {"n": 7}}', '2026-11-18 03:50:26.375779+00', NULL);
INSERT INTO relais.inbox OVERRIDING SYSTEM VALUE VALUES (2, '79fb8d2c-80e2-4c33-8a48-e347312a473a', 'nowhere', 'shop', '{"body": {}}', '2026-11-18 03:50:26.375993+00', 'there is no such service');
INSERT INTO relais.instance OVERRIDING SYSTEM VALUE VALUES (1, 'server-1', 'host-1', '0.1.0', 0, '2026-11-18 03:50:14.991769+00', '2026-11-18 03:50:25.002086+00', '2026-11-18 03:50:40.002086+00', false, 0);
INSERT INTO relais.instance OVERRIDING SYSTEM VALUE VALUES (2, 'embedded-1', 'h1', '0.1.0', 0, '2026-11-18 03:50:26.383551+00', '2026-11-18 03:50:26.383551+00', '2026-11-18 02:50:26.383349+00', false, 0);
INSERT INTO relais.migration VALUES (1, 'tasks', '2026-11-18 03:50:14.224273+00', true, '\x2b0f35635d68effa2b6a99c40f66219720ef0b542900c2fbd7a370b74634cac62af39fe730ec5ba03fa445ccec8ba74a', 84097706);
INSERT INTO relais.migration VALUES (2, 'callbacks', '2026-11-18 03:50:14.30883+00', true, '\x7b732ffbeac17b463864c59da1e1c3b29c806016d48fb1eb6a108125665f937709b47bbd253d49c5502e282b37788504', 46533689);
INSERT INTO relais.migration VALUES (3, 'dispatch', '2026-11-18 03:50:14.359341+00', true, '\xb010b16a2dc7babfc177a95be417a9db07f34a459f28cc6aa798d06da48b9eaee65496663b48ab4ec70503031bfd3d51', 12018536);
INSERT INTO relais.migration VALUES (4, 'attempts', '2026-11-18 03:50:14.375363+00', true, '\x8fabc1a2db6a71072712b63950d9b326dcf482065a27443614f22e650ecef911bbdd57fa34e7b2067d895552298e043f', 76063449);
INSERT INTO relais.migration VALUES (5, 'schedules', '2026-11-18 03:50:14.455341+00', true, '\x4d8ad881fb7af1eeec51e84c278e0009224cf7844e64bb84c33c095fd7ba0502b5781544cee5c09c6983446ab42466d9', 15998409);
INSERT INTO relais.migration VALUES (6, 'flow', '2026-11-18 03:50:14.475336+00', true, '\x8c4a3b75b0746e8609be729ff040f28854e40ad349d87a56ebd6938a0072dd8028018f3ec1f62999d09eac0e7f5b385a', 16004408);
INSERT INTO relais.migration VALUES (7, 'dependencies', '2026-11-18 03:50:14.495337+00', true, '\xef3194fa0fc1bc6ce7fede3d1015028160d46b58708a7498c847640ba0b1a0460abc2d9b92ee6c0218e5e5101a68288a', 48057961);
INSERT INTO relais.migration VALUES (8, 'instances', '2026-11-18 03:50:14.547393+00', true, '\x4115f4efc1c3d6f3bded57216d9e9a042776e37cdb3174e446842a76c143989dd49ff529bd0e1a602e19d40b6c23cd36', 32124128);
INSERT INTO relais.migration VALUES (9, 'window', '2026-11-18 03:50:14.583396+00', true, '\x03ba1c629aadb96cc34d3a96f5d7ec9b39b243580ad66dfa7461c3f66eb8a93320c0c8b38165efe0fbb0d1821ad5dcad', 7991964);
INSERT INTO relais.migration VALUES (10, 'inbox', '2026-11-18 03:50:14.595386+00', true, '\x08b77edaa61eb0eac142e2a0b8fb8dae1aa5888316ed11a66d54af35a0daa93489b7bac481e1d45fe4b297d5b6d545ae', 23940789);
INSERT INTO relais.migration VALUES (11, 'audit', '2026-11-18 03:50:14.623396+00', true, '\xe69ef64bb85da9600f4ef7b3b15e87029c3004d81d975c36622e1ba98e13cd73378fa6e58dd89bc09878619ef518c817', 19991081);
INSERT INTO relais.migration VALUES (12, 'operators', '2026-11-18 03:50:14.647383+00', true, '\xbe0abff391fe0136df945726824e9822da1fa3fab06514db71e70beb9d50b8ffc4fed57403aae9857ae0bd21494f95e1', 32001094);
INSERT INTO relais.migration VALUES (13, 'schedule terms', '2026-11-18 03:50:14.683444+00', true, '\xb679bf594c703c9c83d2e9649fc403b8333fc5b817ab92b38bb672b6297d8e59adac5fd099cfdf4abb9e7af8e099f44c', 7897413);
INSERT INTO relais.migration VALUES (14, 'batch keys', '2026-11-18 03:50:14.695347+00', true, '\x6a8f932c9f151f8facc35e24bfbaa748e8214b34ae6561d2d7859f33c09cb4e23770af3a25d154f95d81c50661842c5a', 15997237);
INSERT INTO relais.migration VALUES (15, 'turns', '2026-11-18 03:50:14.715328+00', true, '\xf28d5b71aa5340129979f15a590da13e50833e3439b466a745650655277e0f2a1de373908ec4bd25b75598d7d223796b', 4000324);
INSERT INTO relais.migration VALUES (16, 'by_id', '2026-11-18 03:50:14.723335+00', true, '\x2a56b579bb4777fdda8e42964144009e2407144275ef8e16ba89ba5d6f27b537d24656b3f68b49965b8afc366f6348f4', 28051417);
INSERT INTO relais.migration VALUES (17, 'room', '2026-11-18 03:50:14.755342+00', true, '\xaf109af8a8b832ec6c56861bfa2fc9d454dbdd3ba53506e47e2d35a1330c5dc33566e7a24b4517db641b9a0cd91177b3', 3996889);
INSERT INTO relais.migration VALUES (18, 'clock', '2026-11-18 03:50:14.763342+00', true, '\x61cbba4a7cb2aff2ba41893f4f754879373e334d0572f0a95934bb04678129958c0cb884cf08e225ac04bd203df5a80e', 11972768);
INSERT INTO relais.migration VALUES (19, 'revived', '2026-11-18 03:50:14.779352+00', true, '\x9162ea2f91dceda526f881f1aeeb6e23da768eaabe9845ffaca1d7cc1996fe4e364d3aa209ce50d7dc5c6b955eae1765', 3996167);
INSERT INTO relais.migration VALUES (20, 'epoch', '2026-11-18 03:50:14.787337+00', true, '\x68265327e1285dc6b03fa924c21929f0597463550691b18276847b14a4fad6bb9132fc1020bd04b525f55cae1d07acc6', 3997830);
INSERT INTO relais.roll_call VALUES ('p1', '[]', '2026-11-18 03:50:26.399349+00');
INSERT INTO relais.schedule VALUES ('nightly', 'plain', 'shop', '30 2 * * *', 'UTC', '{"n":1}', NULL, NULL, 1, 0, false, '2026-11-19 02:30:00+00', NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL);
INSERT INTO relais.service OVERRIDING SYSTEM VALUE VALUES (1, 'resize', 'resize', NULL, false, 1000, 60000, 20, NULL, NULL, false, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, '{"limit":3,"base":3600000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}', NULL, 60000, NULL, NULL, NULL, NULL, NULL, false, NULL, 0, false, false, false);
INSERT INTO relais.service OVERRIDING SYSTEM VALUE VALUES (2, 'plain', 'plain', NULL, false, NULL, 60000, 20, NULL, NULL, false, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, '{"limit":0,"base":60000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}', NULL, 60000, NULL, NULL, NULL, NULL, NULL, false, NULL, 0, false, false, false);
INSERT INTO relais.service OVERRIDING SYSTEM VALUE VALUES (3, 'embedded', 'embedded', NULL, false, NULL, 60000, 20, NULL, NULL, false, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, '{"limit":0,"base":60000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}', NULL, 60000, NULL, NULL, NULL, NULL, NULL, false, NULL, 3, true, false, false);
INSERT INTO relais.signing_secret VALUES (1, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', '2026-11-18 03:50:15.151336+00', NULL);
INSERT INTO relais.signing_secret VALUES (2, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', '2026-11-18 03:50:15.151768+00', NULL);
INSERT INTO relais.tally VALUES (1, 0, 1, true, 3, false, false);
INSERT INTO relais.tally VALUES (1, 0, 2, false, 1, false, false);
INSERT INTO relais.tally VALUES (1, 1, 1, true, 3, false, false);
INSERT INTO relais.tally VALUES (3, 0, 0, false, 3, false, false);
INSERT INTO relais.tally VALUES (1, 0, 1, false, 5, false, false);
INSERT INTO relais.tally VALUES (1, 1, 1, false, 5, false, false);
INSERT INTO relais.tally VALUES (1, 0, 3, false, 1, false, false);
INSERT INTO relais.tally VALUES (1, 0, 0, false, 12, true, false);
INSERT INTO relais.tally VALUES (1, 0, 0, true, 8, false, false);
INSERT INTO relais.tally VALUES (1, 0, 4, false, 1, false, false);
INSERT INTO relais.tally VALUES (1, 0, 5, false, 3, false, false);
INSERT INTO relais.tally VALUES (1, 1, 0, false, 12, false, false);
INSERT INTO relais.tally VALUES (1, 1, 0, true, 8, false, false);
INSERT INTO relais.tally VALUES (1, 1, 5, false, 3, false, false);
INSERT INTO relais.tally VALUES (2, 0, 0, false, 2, false, false);
INSERT INTO relais.tally VALUES (2, 1, 0, false, 2, false, false);
INSERT INTO relais.tally VALUES (2, 0, 0, true, 1, false, false);
INSERT INTO relais.tally VALUES (2, 0, 1, false, 1, false, false);
INSERT INTO relais.tally VALUES (2, 1, 0, true, 1, false, false);
INSERT INTO relais.tally VALUES (2, 1, 1, false, 1, false, false);
INSERT INTO relais.tally VALUES (2, 0, 1, true, 1, false, false);
INSERT INTO relais.tally VALUES (2, 0, 2, false, 1, false, false);
INSERT INTO relais.tally VALUES (2, 1, 1, true, 1, false, false);
INSERT INTO relais.tally VALUES (3, 1, 0, false, 3, false, false);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (1, '01a1ecc6-fa58-766d-949b-5028ad60ec5f', 1, 1, 0, 2, 1, 0, 2, 100, '2026-11-18 03:50:25.631565+00', '2026-11-18 03:50:26.108+00', '2026-11-18 03:50:26.131+00', NULL, 'w1', 'success', '{"n": 1}', '{"ok": true}', NULL, '{"type":"https","target":"https://shop.invalid/done","events":["success","failure","cancelled"],"gzip":false,"lane":-3609064072334507005}', 4, 1794973825632, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (2, '01a1ecc6-fc58-7612-8fff-f7fd50d97d3d', 1, 1, 1, 3, 1, 0, 2, 0, '2026-11-18 03:50:26.143597+00', '2026-11-18 03:50:26.147+00', '2026-11-18 03:50:26.157+00', NULL, 'w1', 'failure', '{"n": 1}', NULL, 'no', NULL, 4, 1794973826144, DEFAULT, 1, NULL, NULL, NULL, NULL, NULL, NULL, '{"limit":0,"base":60000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}', NULL, 'bad', NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (3, '01a1ecc6-fc6f-77a8-947d-69e1170ec1d9', 1, 1, 2, 5, 1, 0, 2, 0, '2026-11-18 03:50:26.16011+00', NULL, NULL, NULL, NULL, 'retry', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826160, DEFAULT, 1, NULL, '2026-11-18 04:50:26.174+00', NULL, NULL, '2026-11-18 04:50:26.174+00', NULL, '{"limit":3,"base":3600000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (4, '01a1ecc6-fc85-7787-9d80-47eed9ca4238', 1, 1, 3, 1, 1, 0, 1, 0, '2026-11-18 03:50:26.18247+00', '2026-11-18 03:50:26.189+00', NULL, '2026-11-18 03:51:26.189+00', 'w1', 'in_progress', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826182, DEFAULT, 0, NULL, NULL, NULL, NULL, '2026-11-18 03:51:26.189+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (5, '01a1ecc6-fc97-76a3-934a-584e5d9e258b', 1, 1, 4, 1, 1, 0, 1, 0, '2026-11-18 03:50:26.200463+00', '2026-11-18 03:50:26.204+00', NULL, '2026-11-18 03:51:26.204+00', 'w1', 'lost', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826200, DEFAULT, 0, NULL, NULL, NULL, NULL, '2026-11-18 03:51:26.204+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (6, '01a1ecc6-fc9d-77a6-a5ca-f6195b9b99c8', 1, 1, 5, 4, 0, 0, 1, 0, '2026-11-18 03:50:26.20669+00', NULL, '2026-11-18 03:50:26.208+00', NULL, NULL, 'cancelled', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826207, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (7, '01a1ecc6-fcad-75e7-9a2b-0741ea01196f', 1, 1, 6, 5, 0, 0, 0, 0, '2026-11-18 03:50:26.222226+00', NULL, NULL, NULL, NULL, 'delayed', '{"n": 1}', NULL, NULL, NULL, 4, 1794977426221, DEFAULT, 0, '2026-11-18 04:50:26.221+00', '2026-11-18 04:50:26.221+00', NULL, NULL, '2026-11-18 04:50:26.221+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (9, '01a1ecc6-fcc0-76fe-b933-4394d9e4ff15', 1, 1, 8, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.241608+00', NULL, NULL, NULL, NULL, 'unique', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826242, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'k1', NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (10, '01a1ecc6-fcc4-731a-a708-abb09540cbb3', 1, 1, 9, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.245783+00', NULL, NULL, NULL, NULL, 'idempotent', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826246, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (11, '01a1ecc6-fccc-7291-b191-b8d7ece451a9', 1, 1, 10, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.253189+00', NULL, NULL, NULL, NULL, 'urgent', '{"n": 1}', NULL, NULL, NULL, 9, 1794973526253, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (12, '01a1ecc6-fcd0-70a1-b16f-f6005bfbcdbc', 1, 1, 11, 5, 0, 0, 0, 0, '2026-11-18 03:50:26.260203+00', NULL, NULL, NULL, NULL, 'after', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826260, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (8, '01a1ecc6-fcb4-7295-b26d-946467c86edf', 1, 1, 7, 0, 0, 0, 1, 0, '2026-11-18 03:50:26.235517+00', NULL, NULL, NULL, NULL, 'first', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826236, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (14, '01a1ecc6-fcd8-7288-aced-9992c1434176', 2, 1, 1, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.26775+00', NULL, NULL, NULL, NULL, 'batch_open', '{"n": 2}', NULL, NULL, NULL, 4, 1794973826268, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '01a1ecc6-fcd8-7288-aced-999085559c31', NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (13, '01a1ecc6-fcd8-7288-aced-9991e4c668ef', 2, 1, 0, 2, 1, 0, 2, 100, '2026-11-18 03:50:26.26775+00', '2026-11-18 03:50:26.273+00', '2026-11-18 03:50:26.28+00', NULL, 'w1', 'batch_done', '{"n": 1}', '{}', NULL, NULL, 4, 1794973826268, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '01a1ecc6-fcd8-7288-aced-999085559c31', NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (15, '01a1ecc6-fcec-756c-9631-917d6955a6e1', 3, 1, 0, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.284619+00', NULL, NULL, NULL, NULL, 'leased1', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826285, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (16, '01a1ecc6-fcf0-75e1-acc6-faadcb4c72c4', 3, 1, 1, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.288607+00', NULL, NULL, NULL, NULL, 'leased2', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826289, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.task OVERRIDING SYSTEM VALUE VALUES (17, '01a1ecc6-fcf7-75ef-bdce-91e147c5f238', 3, 1, 2, 0, 0, 0, 0, 0, '2026-11-18 03:50:26.295925+00', NULL, NULL, NULL, NULL, 'leased3', '{"n": 1}', NULL, NULL, NULL, 4, 1794973826296, DEFAULT, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO relais.unique_key VALUES (1, 1, 'k1', '01a1ecc6-fcc0-76fe-b933-4394d9e4ff15', 2, NULL);
SELECT pg_catalog.setval('relais.audit_id_seq', 1, true);
SELECT pg_catalog.setval('relais.callback_id_seq', 1, true);
SELECT pg_catalog.setval('relais.client_id_seq', 2, true);
SELECT pg_catalog.setval('relais.hand_id_seq', 2, true);
SELECT pg_catalog.setval('relais.inbox_id_seq', 2, true);
SELECT pg_catalog.setval('relais.instance_id_seq', 2, true);
SELECT pg_catalog.setval('relais.service_id_seq', 3, true);
SELECT pg_catalog.setval('relais.task_id_seq', 17, true);
ALTER TABLE ONLY relais.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (task, number);
ALTER TABLE ONLY relais.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais."authorization"
    ADD CONSTRAINT authorization_pkey PRIMARY KEY (client_id, service_id);
ALTER TABLE ONLY relais.batch_key
    ADD CONSTRAINT batch_key_pkey PRIMARY KEY (client_id, key);
ALTER TABLE ONLY relais.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (batch_id);
ALTER TABLE ONLY relais.callback_attempt
    ADD CONSTRAINT callback_attempt_pkey PRIMARY KEY (callback, number);
ALTER TABLE ONLY relais.callback_lane
    ADD CONSTRAINT callback_lane_pkey PRIMARY KEY (lane);
ALTER TABLE ONLY relais.callback
    ADD CONSTRAINT callback_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.chore
    ADD CONSTRAINT chore_pkey PRIMARY KEY (name);
ALTER TABLE ONLY relais.client
    ADD CONSTRAINT client_client_id_key UNIQUE (client_id);
ALTER TABLE ONLY relais.client
    ADD CONSTRAINT client_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.clock
    ADD CONSTRAINT clock_pkey PRIMARY KEY (single);
ALTER TABLE ONLY relais.declared
    ADD CONSTRAINT declared_pkey PRIMARY KEY (single);
ALTER TABLE ONLY relais.departure
    ADD CONSTRAINT departure_pkey PRIMARY KEY (service_id, level, slot);
ALTER TABLE ONLY relais.dependency
    ADD CONSTRAINT dependency_pkey PRIMARY KEY (task, prerequisite);
ALTER TABLE ONLY relais.dispatch
    ADD CONSTRAINT dispatch_pkey PRIMARY KEY (service_id, task_id);
ALTER TABLE ONLY relais.ending
    ADD CONSTRAINT ending_pkey PRIMARY KEY (task);
ALTER TABLE ONLY relais.flow_client
    ADD CONSTRAINT flow_client_pkey PRIMARY KEY (service_id, client_id);
ALTER TABLE ONLY relais.flow
    ADD CONSTRAINT flow_pkey PRIMARY KEY (service_id);
ALTER TABLE ONLY relais.hand
    ADD CONSTRAINT hand_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (service_id, client_id, key);
ALTER TABLE ONLY relais.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.inbox
    ADD CONSTRAINT inbox_task_id_key UNIQUE (task_id);
ALTER TABLE ONLY relais.instance
    ADD CONSTRAINT instance_name_key UNIQUE (name);
ALTER TABLE ONLY relais.instance
    ADD CONSTRAINT instance_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY relais.roll_call
    ADD CONSTRAINT roll_call_pkey PRIMARY KEY (process);
ALTER TABLE ONLY relais.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (name);
ALTER TABLE ONLY relais.service
    ADD CONSTRAINT service_name_key UNIQUE (name);
ALTER TABLE ONLY relais.service
    ADD CONSTRAINT service_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.session
    ADD CONSTRAINT session_pkey PRIMARY KEY (id);
ALTER TABLE ONLY relais.signing_secret
    ADD CONSTRAINT signing_secret_pkey PRIMARY KEY (client_id, secret);
ALTER TABLE ONLY relais.tally
    ADD CONSTRAINT tally_pkey PRIMARY KEY (service_id, client_id, status, departed);
ALTER TABLE ONLY relais.task
    ADD CONSTRAINT task_pkey PRIMARY KEY (id) WITH (fillfactor='50');
ALTER TABLE ONLY relais.unique_key
    ADD CONSTRAINT unique_key_pkey PRIMARY KEY (service_id, client_id, key);
CREATE INDEX audit_by_age ON relais.audit USING btree (at);
CREATE INDEX batch_by_client ON relais.batch USING btree (client_id, batch_id);
CREATE INDEX batch_by_end ON relais.batch USING btree (ended) WHERE (ended IS NOT NULL);
CREATE INDEX batch_key_by_age ON relais.batch_key USING btree (created);
CREATE INDEX callback_by_batch ON relais.callback USING btree (batch_id) WHERE (batch_id IS NOT NULL);
CREATE INDEX callback_by_lane ON relais.callback USING btree (lane, due) WHERE (due IS NOT NULL);
CREATE INDEX callback_by_task ON relais.callback USING btree (task, id) WHERE (task IS NOT NULL);
CREATE INDEX callback_failed ON relais.callback USING btree (id) WHERE (status = 2);
CREATE INDEX dependency_open ON relais.dependency USING btree (prerequisite, task) WHERE (outcome IS NULL);
CREATE INDEX dispatch_by_window ON relais.dispatch USING btree (window_id) WHERE (window_id IS NOT NULL);
CREATE INDEX hand_by_instance ON relais.hand USING btree (instance_id);
CREATE INDEX hand_by_service ON relais.hand USING btree (service_id);
CREATE INDEX idempotency_by_age ON relais.idempotency USING btree (created);
CREATE INDEX inbox_open ON relais.inbox USING btree (id) WHERE (refused IS NULL);
CREATE INDEX roll_call_by_age ON relais.roll_call USING btree (at);
CREATE INDEX schedule_by_next_fire ON relais.schedule USING btree (next_fire) WHERE (next_fire IS NOT NULL);
CREATE INDEX session_by_end ON relais.session USING btree (expires);
CREATE INDEX session_by_operator ON relais.session USING btree (operator);
CREATE INDEX task_by_batch ON relais.task USING btree (batch_id, id) WHERE (batch_id IS NOT NULL);
CREATE INDEX task_by_client ON relais.task USING btree (client_id, service_id, status, id) WHERE (service_id IS NOT NULL);
CREATE INDEX task_by_correlation ON relais.task USING btree (client_id, correlation_id, id) WHERE (correlation_id IS NOT NULL);
CREATE INDEX task_by_parent ON relais.task USING btree (client_id, parent_id, id) WHERE (parent_id IS NOT NULL);
CREATE INDEX task_by_rank ON relais.task USING btree (queue_id, rank, id) WHERE (queue_id IS NOT NULL);
CREATE INDEX task_by_service ON relais.task USING btree (service_id, status, id) WHERE (service_id IS NOT NULL);
CREATE INDEX task_by_share ON relais.task USING btree (service_id, client_id, rank, id) WHERE (status = 0);
CREATE UNIQUE INDEX task_by_task_id ON relais.task USING btree (task_id) WITH (fillfactor='50');
CREATE INDEX task_by_timer ON relais.task USING btree (timer) WHERE (timer IS NOT NULL);
CREATE INDEX unique_key_by_until ON relais.unique_key USING btree (until) WHERE (until IS NOT NULL);
CREATE TRIGGER tell_of_inbox AFTER INSERT ON relais.inbox FOR EACH STATEMENT EXECUTE FUNCTION relais.tell_of_inbox();
ALTER TABLE ONLY relais."authorization"
    ADD CONSTRAINT authorization_client_id_fkey FOREIGN KEY (client_id) REFERENCES relais.client(id);
ALTER TABLE ONLY relais."authorization"
    ADD CONSTRAINT authorization_service_id_fkey FOREIGN KEY (service_id) REFERENCES relais.service(id);
ALTER TABLE ONLY relais.signing_secret
    ADD CONSTRAINT signing_secret_client_id_fkey FOREIGN KEY (client_id) REFERENCES relais.client(id);
