BEGIN TRANSACTION;
CREATE TABLE attempt (
    -- The task's id.
    task          INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    -- 1 success, 2 failure, 3 cancelled, 4 returned, 5 lost
    outcome       INTEGER NOT NULL,
    started       INTEGER,
    ended         INTEGER NOT NULL,
    worker_host   TEXT,
    error_message TEXT,
    error_kind    TEXT,
    error_trace   TEXT,
    response      TEXT,
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
INSERT INTO "attempt" VALUES(3,1,2,1794973838045,1794973838049,'w1','later',NULL,NULL,NULL);
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    actor  TEXT NOT NULL,
    via    TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT,
    error  TEXT
, open INTEGER NOT NULL DEFAULT 0);
INSERT INTO "audit" VALUES(1,1794973826924,'services.yaml','file','apply','','service resize created, service plain created, service embedded created, client shop created, client resizer created, authorization shop on resize created, authorization shop on plain created, authorization shop on embedded created, authorization resizer on resize created, authorization resizer on plain created, and 1 more',NULL,0);
CREATE TABLE "authorization" (
    client_id  INTEGER NOT NULL REFERENCES client,
    service_id INTEGER NOT NULL REFERENCES service,
    consume    INTEGER NOT NULL,
    work       INTEGER NOT NULL,
    capacity   INTEGER, max_running INTEGER, share INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (client_id, service_id)
);
INSERT INTO "authorization" VALUES(1,1,1,0,100,NULL,1);
INSERT INTO "authorization" VALUES(1,2,1,0,NULL,NULL,1);
INSERT INTO "authorization" VALUES(1,3,1,0,NULL,NULL,1);
INSERT INTO "authorization" VALUES(2,1,0,1,NULL,NULL,1);
INSERT INTO "authorization" VALUES(2,2,0,1,NULL,NULL,1);
CREATE TABLE batch (
    batch_id       TEXT NOT NULL PRIMARY KEY,
    client_id      INTEGER NOT NULL,
    created        INTEGER NOT NULL,
    closed         INTEGER,
    ended          INTEGER,
    callback       TEXT,
    -- Where its callback lies, if it has one.
    lane           INTEGER,
    correlation_id TEXT,
    trace          TEXT,
    -- How many of its tasks are in each status: kept with every change of theirs.
    pending        INTEGER NOT NULL DEFAULT 0,
    in_progress    INTEGER NOT NULL DEFAULT 0,
    success        INTEGER NOT NULL DEFAULT 0,
    failure        INTEGER NOT NULL DEFAULT 0,
    cancelled      INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "batch" VALUES('01a1ecc7-2b08-75c8-a39c-b31b8dfbc715',1,1794973838091,1794973838091,NULL,NULL,NULL,NULL,NULL,1,0,1,0,0);
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
CREATE TABLE callback (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The task's id.
    task       INTEGER NOT NULL,
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    -- 0 started, 1 progress, 2 success, 3 failure, 4 cancelled
    event      INTEGER NOT NULL,
    -- The task's when it happened. With the task's public name, this is the callback's name on the wire.
    revision   INTEGER NOT NULL,
    -- The client and the endpoint.
    lane       INTEGER NOT NULL,
    -- Whether more is told of this task, so that order matters.
    chain      INTEGER NOT NULL,
    -- 0 PENDING, 1 SUCCESS, 2 FAILURE
    status     INTEGER NOT NULL DEFAULT 0,
    -- Whether it ended because nobody lives there any more: nothing else is told of the task.
    gone       INTEGER NOT NULL DEFAULT 0,
    -- When to send it next; while it is being sent, when to send it again if nothing is heard. None once it has ended, and
    -- while it waits for the one before it.
    due        INTEGER,
    -- Whether somebody is sending it.
    held       INTEGER NOT NULL DEFAULT 0,
    -- How often it was tried since it was last asked for, and how often ever.
    tries      INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    created    INTEGER NOT NULL,
    ended      INTEGER,
    -- What the task was like, if this is not its end.
    started    INTEGER,
    progress   REAL
, batch_id TEXT, attempt INTEGER, happened INTEGER);
INSERT INTO "callback" VALUES(1,1,1,1,2,2,-3609064072334507005,0,0,0,1794973846039,0,1,1,1794973838019,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE callback_attempt (
    callback    INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    http_status INTEGER,
    error       TEXT,
    answer      TEXT,
    PRIMARY KEY (callback, number)
);
INSERT INTO "callback_attempt" VALUES(1,1,1794973838021,1,NULL,'the name shop.invalid does not resolve',NULL);
CREATE TABLE callback_lane (
    lane         INTEGER PRIMARY KEY,
    parks        INTEGER NOT NULL,
    parked_until INTEGER NOT NULL
);
CREATE TABLE chore (
    name  TEXT PRIMARY KEY,
    begun INTEGER NOT NULL
);
INSERT INTO "chore" VALUES('dependencies',1794973826872);
INSERT INTO "chore" VALUES('purge',1794973826873);
CREATE TABLE client (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id   TEXT NOT NULL UNIQUE,
    secret_hash TEXT NOT NULL,
    deleted     INTEGER NOT NULL DEFAULT 0
, destinations TEXT);
INSERT INTO "client" VALUES(1,'shop','hash',0,NULL);
INSERT INTO "client" VALUES(2,'resizer','hash',0,NULL);
CREATE TABLE clock (
    single  INTEGER PRIMARY KEY DEFAULT 1 CHECK (single = 1),
    stepped INTEGER NOT NULL
);
INSERT INTO "clock" VALUES(1,0);
CREATE TABLE declared (
    single  INTEGER PRIMARY KEY DEFAULT 1 CHECK (single = 1),
    version INTEGER NOT NULL
);
INSERT INTO "declared" VALUES(1,1);
CREATE TABLE departure (
    service_id INTEGER NOT NULL,
    level      INTEGER NOT NULL,
    slot       INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (service_id, level, slot)
);
INSERT INTO "departure" VALUES(1,0,0,8);
INSERT INTO "departure" VALUES(1,1,0,8);
INSERT INTO "departure" VALUES(1,2,0,8);
INSERT INTO "departure" VALUES(1,3,0,8);
INSERT INTO "departure" VALUES(1,4,0,8);
INSERT INTO "departure" VALUES(1,5,0,8);
INSERT INTO "departure" VALUES(2,0,0,1);
INSERT INTO "departure" VALUES(2,1,0,1);
INSERT INTO "departure" VALUES(2,2,0,1);
INSERT INTO "departure" VALUES(2,3,0,1);
INSERT INTO "departure" VALUES(2,4,0,1);
INSERT INTO "departure" VALUES(2,5,0,1);
CREATE TABLE dependency (
    -- The row of the one that waits.
    task            INTEGER NOT NULL,
    -- The row of the other, and its public name: it may be gone once it has ended.
    prerequisite    INTEGER NOT NULL,
    prerequisite_id TEXT NOT NULL,
    -- How the other ended; none while it has not, or while nobody has told.
    outcome         INTEGER,
    PRIMARY KEY (task, prerequisite)
);
INSERT INTO "dependency" VALUES(12,8,'01a1ecc7-2af8-7764-a339-ec87ce0c7b93',NULL);
CREATE TABLE dispatch (
    service_id INTEGER NOT NULL,
    task_id    TEXT NOT NULL,
    -- When anybody may take it; before that it is in somebody's hand.
    due        INTEGER NOT NULL,
    -- How often the broker has lost it: what was published before that is not done.
    round      INTEGER NOT NULL DEFAULT 0, window_id INTEGER,
    -- Public names begin with the time, so this is the order of arrival.
    PRIMARY KEY (service_id, task_id)
) WITHOUT ROWID;
CREATE TABLE ending (
    task   INTEGER PRIMARY KEY,
    status INTEGER NOT NULL
);
CREATE TABLE flow (
    service_id  INTEGER PRIMARY KEY,
    -- When it is back at its rate, in nanoseconds since 1970.
    ahead_until INTEGER NOT NULL DEFAULT 0,
    -- Its virtual time: when the last start began.
    time        INTEGER NOT NULL DEFAULT 0,
    -- How many turns clients have had.
    turns       INTEGER NOT NULL DEFAULT 0,
    -- The last task that was published within a window: those behind it wait in the store.
    horizon     INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "flow" VALUES(3,0,0,0,0);
CREATE TABLE flow_client (
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    time       INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    PRIMARY KEY (service_id, client_id)
) WITHOUT ROWID;
CREATE TABLE hand (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    instance_id INTEGER NOT NULL,
    service_id  INTEGER NOT NULL,
    tasks       TEXT NOT NULL
);
INSERT INTO "hand" VALUES(1,2,3,'[15, 16, 17]');
CREATE TABLE idempotency (
    service_id  INTEGER NOT NULL,
    client_id   INTEGER NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    task_id     TEXT NOT NULL,
    position    INTEGER NOT NULL,
    created     INTEGER NOT NULL,
    PRIMARY KEY (service_id, client_id, key)
);
INSERT INTO "idempotency" VALUES(1,1,'i1',X'425639AB7733309ED30594A0739AE84BA45AFC8A4421BC4154A008EF21EB751F','01a1ecc7-2b03-77d9-aa1b-fb822b4d3900',3,1794973838084);
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
INSERT INTO "inbox" VALUES(1,'e0daff2a-6be4-437a-8024-85eaf2ff7427','plain','shop','{"body": {"n": 7}}',1794973838102,NULL);
INSERT INTO "inbox" VALUES(2,'26df5957-2b0c-450e-8817-58a92e62f1e3','nowhere','shop','{"body": {"n": 7}}',1794973838102,'there is no such service');
CREATE TABLE instance (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT NOT NULL UNIQUE,
    host      TEXT,
    version   TEXT NOT NULL,
    -- What becomes of its tasks if it dies: 0 done again, 1 failed, 2 to be decided
    policy    INTEGER NOT NULL,
    started   INTEGER NOT NULL,
    seen      INTEGER NOT NULL,
    -- Silent for longer than this, it is dead.
    until     INTEGER NOT NULL,
    -- It died, and it is to be decided what becomes of its tasks.
    undecided INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "instance" VALUES(1,'server-1','host-1','0.1.0',0,1794973826874,1794973836883,1794973851883,0);
INSERT INTO "instance" VALUES(2,'embedded-1','h1','0.1.0',0,1794973838102,1794973838102,1794973838102,0);
CREATE TABLE relais_migration (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO "relais_migration" VALUES(1,'tasks','2026-11-18 03:50:26',1,X'E84638BC3ECDC3B6CE28A3325322066E7C95B4CDA0245415DFC2DBF5B0AE5C459A2A61E4381D8B5966EE94F9EADB9F2F',931579);
INSERT INTO "relais_migration" VALUES(2,'callbacks','2026-11-18 03:50:26',1,X'FEB1E95C73058314FFD3EC240EDE82AF5708708961EF3698CF2E44E87AF8A383DA87D19E6CAED6FE888D8F481F3EDA4D',2910448);
INSERT INTO "relais_migration" VALUES(3,'dispatch','2026-11-18 03:50:26',1,X'914727150767EA4D7614002D7AF747F425694EFE8179D2796569C2CF52EF2F1AB53F5FA34BCD2B54BE691D4BCE4947BD',1053951);
INSERT INTO "relais_migration" VALUES(4,'attempts','2026-11-18 03:50:26',1,X'139529E56DCD8EE498475854E9EC3ED0128B2EC8266640A59ACF85B704E513EF7D5B2EAF93CC3404D1D20C795DA5552A',6036639);
INSERT INTO "relais_migration" VALUES(5,'schedules','2026-11-18 03:50:26',1,X'1F2F7574ED633D42810BA1B359D8F48BA24C23658C9503C540919D34147F50F9A2788B723AB80DFC2BB4573DA38368D2',4001896);
INSERT INTO "relais_migration" VALUES(6,'flow','2026-11-18 03:50:26',1,X'35AC2775F5C2EBD0C24344B374FB8F45CD42B587C2088440C63AB46C2FCC290706EF01439DE259E2E70919B42C42A035',5992503);
INSERT INTO "relais_migration" VALUES(7,'dependencies','2026-11-18 03:50:26',1,X'0348639EF6AE04A272DC1EE69F49AD34483B74540EB8425107C6011684B070C8E0CC6EDBF65C0BFE73566147479C2436',4000093);
INSERT INTO "relais_migration" VALUES(8,'instances','2026-11-18 03:50:26',1,X'36D4350A6973D7E22EFAF664721EE6A65DC1EF548746EB843604DE2E16FE53CCF48CF5949443C96CFEF1E7EA3AF0F3D4',4085150);
INSERT INTO "relais_migration" VALUES(9,'window','2026-11-18 03:50:26',1,X'2AE5B9455444558897B305104BC96A40F7B46A3043A6DB03E66414EF69842C5DCA2AA9328E4F5D84056DB96BC05DA942',4006712);
INSERT INTO "relais_migration" VALUES(10,'inbox','2026-11-18 03:50:26',1,X'154FD61F946B23D8018603B4C47768C0A02C215B93BC91111AC878DCBAF4188FF70529A79D4F80866B34EECAD889F6F9',455619);
INSERT INTO "relais_migration" VALUES(11,'audit','2026-11-18 03:50:26',1,X'A52ED10C1DE0D5FE52B12E9C29DBB0729203556FEA6C559511A60D2F9ADEA9B6E46B6B8B7BD2240C5CEF5E409DE0B73D',415960);
INSERT INTO "relais_migration" VALUES(12,'operators','2026-11-18 03:50:26',1,X'E5F43EB1E5B66252695E27DB50407BC73C46AC7DD082E57941EAAFBF8B6669C7B65A36614C0EB8F7EC4F0FFB7A9DF597',823157);
INSERT INTO "relais_migration" VALUES(13,'schedule terms','2026-11-18 03:50:26',1,X'4F95656E17488752B4A18D96C324EA498570CDEC841E30F54E1F8C1CE7BEE7141149FE1AF26BBA98F7190CF40A832A42',2302412);
INSERT INTO "relais_migration" VALUES(14,'batch keys','2026-11-18 03:50:26',1,X'769BB76B0DB8596719F11296A94733E9CE94E6B8A5572F083EFD9F7B42EC6CB644E6410C9AF84B5E427DF0847474BF8C',424192);
INSERT INTO "relais_migration" VALUES(15,'clock','2026-11-18 03:50:26',1,X'76FC7D6318E036CC7E81354FDB30F6A5F8E1555AB564E25DA24E38D4B52184419FAA48095FBA668498C5C34DB8610DC7',371354);
INSERT INTO "relais_migration" VALUES(16,'revived','2026-11-18 03:50:26',1,X'143EE3EB4ACEE003812A3B644784D5A62E555C87C7A1FF3D4A210A9332E2D28E3F59D886DB642276D4249AB00F1DE3B3',558592);
CREATE TABLE roll_call (
    process TEXT NOT NULL PRIMARY KEY,
    workers TEXT NOT NULL,
    at      INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "roll_call" VALUES('p1','[]',1794973838102);
CREATE TABLE schedule (
    name           TEXT PRIMARY KEY,
    -- As it is declared. By name: a service or a client may go and come back.
    service        TEXT NOT NULL,
    client_id      TEXT NOT NULL,
    cron           TEXT NOT NULL,
    time_zone      TEXT NOT NULL,
    body           TEXT NOT NULL,
    callback       TEXT,
    correlation_id TEXT,
    -- Runs that were missed: 0 are left out, 1 are made up for once, 2 all.
    missed         INTEGER NOT NULL,
    -- Runs while the one before goes on: 0 happen, 1 are left out.
    overlap        INTEGER NOT NULL,
    paused         INTEGER NOT NULL,
    -- How far it has come, which a new declaration leaves as it is.
    next_fire      INTEGER,
    last_run       INTEGER,
    last_task      TEXT,
    last_error     TEXT,
    last_error_at  INTEGER,
    runs           INTEGER NOT NULL DEFAULT 0,
    skipped        INTEGER NOT NULL DEFAULT 0,
    refused        INTEGER NOT NULL DEFAULT 0,
    missed_runs    INTEGER NOT NULL DEFAULT 0
, priority INTEGER, retry TEXT, timeout_ms INTEGER, expires_ms INTEGER);
INSERT INTO "schedule" VALUES('nightly','plain','shop','30 2 * * *','UTC','{"n":1}',NULL,NULL,1,0,0,1795055400000,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,NULL,NULL);
CREATE TABLE service (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    name            TEXT NOT NULL UNIQUE,
    queue_name      TEXT NOT NULL,
    json_schema     TEXT,
    paused          INTEGER NOT NULL DEFAULT 0,
    capacity        INTEGER,
    lease_ms        INTEGER NOT NULL,
    delivery_limit  INTEGER NOT NULL,
    keep_finished_ms INTEGER,
    keep_any_ms     INTEGER,
    -- A service that is gone keeps its row for as long as it has tasks, and so that its numbering never starts again.
    deleted         INTEGER NOT NULL DEFAULT 0
, callback_retries TEXT, transport INTEGER NOT NULL DEFAULT 0, queue_kind INTEGER NOT NULL DEFAULT 0, message_ttl_ms INTEGER, max_length INTEGER, again_after INTEGER, again_until INTEGER, again_running INTEGER, retry TEXT, timeout_ms INTEGER, priority_step_ms INTEGER NOT NULL DEFAULT 60000, max_running INTEGER, max_running_per_client INTEGER, rate_count INTEGER, rate_per_ms INTEGER, rate_burst INTEGER, fair_share INTEGER NOT NULL DEFAULT 0, dispatch_window INTEGER, flow INTEGER NOT NULL DEFAULT 0, handed INTEGER NOT NULL DEFAULT 0, windowed INTEGER NOT NULL DEFAULT 0, again_places INTEGER NOT NULL DEFAULT 0);
INSERT INTO "service" VALUES(1,'resize','resize',NULL,0,1000,60000,20,NULL,NULL,0,NULL,0,0,NULL,NULL,NULL,NULL,NULL,'{"limit":3,"base":3600000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}',NULL,60000,NULL,NULL,NULL,NULL,NULL,0,NULL,0,0,0,0);
INSERT INTO "service" VALUES(2,'plain','plain',NULL,0,NULL,60000,20,NULL,NULL,0,NULL,0,0,NULL,NULL,NULL,NULL,NULL,'{"limit":0,"base":60000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}',NULL,60000,NULL,NULL,NULL,NULL,NULL,0,NULL,0,0,0,0);
INSERT INTO "service" VALUES(3,'embedded','embedded',NULL,0,NULL,60000,20,NULL,NULL,0,NULL,0,0,NULL,NULL,NULL,NULL,NULL,'{"limit":0,"base":60000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}',NULL,60000,NULL,NULL,NULL,NULL,NULL,0,NULL,3,1,0,0);
CREATE TABLE session (
    id       TEXT NOT NULL PRIMARY KEY,
    operator TEXT NOT NULL,
    expires  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE signing_secret (
    client_id INTEGER NOT NULL REFERENCES client,
    secret    TEXT NOT NULL,
    created   INTEGER NOT NULL,
    expires   INTEGER,
    PRIMARY KEY (client_id, secret)
);
INSERT INTO "signing_secret" VALUES(1,'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',1794973827106,NULL);
INSERT INTO "signing_secret" VALUES(2,'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',1794973827106,NULL);
CREATE TABLE tally (
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    departed   INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (service_id, client_id, status, departed)
);
INSERT INTO "tally" VALUES(1,0,0,0,12);
INSERT INTO "tally" VALUES(2,0,0,0,2);
INSERT INTO "tally" VALUES(3,0,0,0,3);
INSERT INTO "tally" VALUES(1,1,0,0,12);
INSERT INTO "tally" VALUES(1,0,0,1,8);
INSERT INTO "tally" VALUES(1,0,1,0,5);
INSERT INTO "tally" VALUES(1,1,0,1,8);
INSERT INTO "tally" VALUES(1,1,1,0,5);
INSERT INTO "tally" VALUES(1,0,1,1,3);
INSERT INTO "tally" VALUES(1,0,2,0,1);
INSERT INTO "tally" VALUES(1,1,1,1,3);
INSERT INTO "tally" VALUES(1,0,3,0,1);
INSERT INTO "tally" VALUES(1,0,5,0,3);
INSERT INTO "tally" VALUES(1,1,5,0,3);
INSERT INTO "tally" VALUES(1,0,4,0,1);
INSERT INTO "tally" VALUES(2,1,0,0,2);
INSERT INTO "tally" VALUES(2,0,0,1,1);
INSERT INTO "tally" VALUES(2,0,1,0,1);
INSERT INTO "tally" VALUES(2,1,0,1,1);
INSERT INTO "tally" VALUES(2,1,1,0,1);
INSERT INTO "tally" VALUES(2,0,1,1,1);
INSERT INTO "tally" VALUES(2,0,2,0,1);
INSERT INTO "tally" VALUES(2,1,1,1,1);
INSERT INTO "tally" VALUES(3,1,0,0,3);
CREATE TABLE task (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id        TEXT NOT NULL,
    service_id     INTEGER NOT NULL,
    client_id      INTEGER NOT NULL,
    -- Number within the service, without gaps, in the order of commits.
    seq            INTEGER NOT NULL,
    -- 0 PENDING, 1 IN_PROGRESS, 2 SUCCESS, 3 FAILURE, 4 CANCELLED
    status         INTEGER NOT NULL DEFAULT 0,
    attempt        INTEGER NOT NULL DEFAULT 0,
    losses         INTEGER NOT NULL DEFAULT 0,
    revision       INTEGER NOT NULL DEFAULT 0,
    progress       REAL NOT NULL DEFAULT 0,
    submitted      INTEGER NOT NULL,
    started        INTEGER,
    ended          INTEGER,
    lease_until    INTEGER,
    worker_host    TEXT,
    correlation_id TEXT,
    request        TEXT NOT NULL,
    response       TEXT,
    error_message  TEXT,
    callback       TEXT
, priority INTEGER NOT NULL DEFAULT 4, rank INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, scheduled INTEGER, due INTEGER, expires INTEGER, deadline INTEGER, timer INTEGER, timeout_ms INTEGER, retry TEXT, unique_key TEXT, error_kind TEXT, error_trace TEXT, parent_id TEXT, trace TEXT, batch_id TEXT, after_when INTEGER, followed INTEGER NOT NULL DEFAULT 0, revived INTEGER);
INSERT INTO "task" VALUES(1,'01a1ecc7-28c3-75a7-97f1-af674542e315',1,1,0,2,1,0,2,100.0,1794973837508,1794973838007,1794973838019,NULL,'w1','success','{"n": 1}','{"ok": true}',NULL,'{"type":"https","target":"https://shop.invalid/done","events":["success","failure","cancelled"],"gzip":false,"lane":-3609064072334507005}',4,1794973837508,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(2,'01a1ecc7-2ac5-77b1-88f8-11aad7a7fe9a',1,1,1,3,1,0,2,0.0,1794973838025,1794973838031,1794973838035,NULL,'w1','failure','{"n": 1}',NULL,'no',NULL,4,1794973838025,1,NULL,NULL,NULL,NULL,NULL,NULL,'{"limit":0,"base":60000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}',NULL,'bad',NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(3,'01a1ecc7-2ad7-7016-935a-fafd12a8a2fd',1,1,2,5,1,0,2,0.0,1794973838044,NULL,NULL,NULL,NULL,'retry','{"n": 1}',NULL,NULL,NULL,4,1794973838044,1,NULL,1794977438049,NULL,NULL,1794977438049,NULL,'{"limit":3,"base":3600000,"factor":2.0,"cap":null,"jitter":0.0,"within":null,"exceptKinds":[]}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(4,'01a1ecc7-2ae3-7646-90a5-7614260fc832',1,1,3,1,1,0,1,0.0,1794973838055,1794973838060,NULL,1794973898060,'w1','in_progress','{"n": 1}',NULL,NULL,NULL,4,1794973838055,0,NULL,NULL,NULL,NULL,1794973898060,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(5,'01a1ecc7-2aee-7326-adac-d6c232952629',1,1,4,1,1,0,1,0.0,1794973838063,1794973838064,NULL,1794973898064,'w1','lost','{"n": 1}',NULL,NULL,NULL,4,1794973838063,0,NULL,NULL,NULL,NULL,1794973898064,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(6,'01a1ecc7-2af1-7200-ae7b-f95bbdfe26af',1,1,5,4,0,0,1,0.0,1794973838067,NULL,1794973838068,NULL,NULL,'cancelled','{"n": 1}',NULL,NULL,NULL,4,1794973838067,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(7,'01a1ecc7-2af6-71d7-a275-62e3ad4c35d9',1,1,6,5,0,0,0,0.0,1794973838071,NULL,NULL,NULL,NULL,'delayed','{"n": 1}',NULL,NULL,NULL,4,1794977438071,0,1794977438071,1794977438071,NULL,NULL,1794977438071,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(8,'01a1ecc7-2af8-7764-a339-ec87ce0c7b93',1,1,7,0,0,0,1,0.0,1794973838075,NULL,NULL,NULL,NULL,'first','{"n": 1}',NULL,NULL,NULL,4,1794973838075,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL);
INSERT INTO "task" VALUES(9,'01a1ecc7-2afc-7439-addc-221d86aee346',1,1,8,0,0,0,0,0.0,1794973838077,NULL,NULL,NULL,NULL,'unique','{"n": 1}',NULL,NULL,NULL,4,1794973838077,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'k1',NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(10,'01a1ecc7-2b03-77d9-aa1b-fb822b4d3900',1,1,9,0,0,0,0,0.0,1794973838084,NULL,NULL,NULL,NULL,'idempotent','{"n": 1}',NULL,NULL,NULL,4,1794973838084,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(11,'01a1ecc7-2b05-7746-93dc-5eee37f937e2',1,1,10,0,0,0,0,0.0,1794973838085,NULL,NULL,NULL,NULL,'urgent','{"n": 1}',NULL,NULL,NULL,9,1794973538085,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(12,'01a1ecc7-2b06-77bd-842c-2dbc250c4f2e',1,1,11,5,0,0,0,0.0,1794973838087,NULL,NULL,NULL,NULL,'after','{"n": 1}',NULL,NULL,NULL,4,1794973838087,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL);
INSERT INTO "task" VALUES(13,'01a1ecc7-2b08-75c8-a39c-b31cad965525',2,1,0,2,1,0,2,100.0,1794973838091,1794973838093,1794973838095,NULL,'w1','batch_done','{"n": 1}','{}',NULL,NULL,4,1794973838091,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'01a1ecc7-2b08-75c8-a39c-b31b8dfbc715',NULL,0,NULL);
INSERT INTO "task" VALUES(14,'01a1ecc7-2b08-75c8-a39c-b31df1ed2f9a',2,1,1,0,0,0,0,0.0,1794973838091,NULL,NULL,NULL,NULL,'batch_open','{"n": 2}',NULL,NULL,NULL,4,1794973838091,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'01a1ecc7-2b08-75c8-a39c-b31b8dfbc715',NULL,0,NULL);
INSERT INTO "task" VALUES(15,'01a1ecc7-2b10-7726-9c34-54d92cc62931',3,1,0,0,0,0,0,0.0,1794973838099,NULL,NULL,NULL,NULL,'leased1','{"n": 1}',NULL,NULL,NULL,4,1794973838099,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(16,'01a1ecc7-2b14-77be-b44f-c4ec65c81d65',3,1,1,0,0,0,0,0.0,1794973838101,NULL,NULL,NULL,NULL,'leased2','{"n": 1}',NULL,NULL,NULL,4,1794973838101,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "task" VALUES(17,'01a1ecc7-2b15-7045-b030-f3bb0c4075d1',3,1,2,0,0,0,0,0.0,1794973838102,NULL,NULL,NULL,NULL,'leased3','{"n": 1}',NULL,NULL,NULL,4,1794973838102,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL);
CREATE TABLE unique_key (
    service_id INTEGER NOT NULL,
    client_id  INTEGER NOT NULL,
    key        TEXT NOT NULL,
    task_id    TEXT NOT NULL,
    position   INTEGER NOT NULL,
    -- None: until the task has ended.
    until      INTEGER,
    PRIMARY KEY (service_id, client_id, key)
) WITHOUT ROWID;
INSERT INTO "unique_key" VALUES(1,1,'k1','01a1ecc7-2afc-7439-addc-221d86aee346',2,NULL);
CREATE UNIQUE INDEX task_by_task_id ON task (task_id);
CREATE INDEX task_by_service ON task (service_id, status, id);
CREATE INDEX task_by_client ON task (client_id, service_id, status, id);
CREATE INDEX idempotency_by_age ON idempotency (created);
CREATE INDEX callback_by_lane ON callback (lane, due) WHERE due IS NOT NULL;
CREATE INDEX callback_by_task ON callback (task, id);
CREATE INDEX callback_failed ON callback (id) WHERE status = 2;
CREATE INDEX task_by_rank ON task (service_id, rank, id) WHERE status = 0;
CREATE INDEX task_by_timer ON task (timer) WHERE timer IS NOT NULL;
CREATE INDEX unique_key_by_until ON unique_key (until) WHERE until IS NOT NULL;
CREATE INDEX schedule_by_next_fire ON schedule (next_fire) WHERE next_fire IS NOT NULL;
CREATE INDEX task_by_share ON task (service_id, client_id, rank, id) WHERE status = 0;
CREATE INDEX task_by_correlation ON task (client_id, correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX task_by_parent ON task (client_id, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX task_by_batch ON task (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX dependency_open ON dependency (prerequisite, task) WHERE outcome IS NULL;
CREATE INDEX batch_by_client ON batch (client_id, batch_id);
CREATE INDEX batch_by_end ON batch (ended) WHERE ended IS NOT NULL;
CREATE INDEX callback_by_batch ON callback (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX dispatch_by_window ON dispatch (window_id) WHERE window_id IS NOT NULL;
CREATE INDEX inbox_open ON inbox (id) WHERE refused IS NULL;
CREATE INDEX audit_by_age ON audit (at);
CREATE INDEX session_by_operator ON session (operator);
CREATE INDEX session_by_end ON session (expires);
CREATE INDEX roll_call_by_age ON roll_call (at);
CREATE INDEX batch_key_by_age ON batch_key (created);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('instance',2);
INSERT INTO "sqlite_sequence" VALUES('audit',1);
INSERT INTO "sqlite_sequence" VALUES('service',3);
INSERT INTO "sqlite_sequence" VALUES('client',2);
INSERT INTO "sqlite_sequence" VALUES('task',17);
INSERT INTO "sqlite_sequence" VALUES('callback',1);
INSERT INTO "sqlite_sequence" VALUES('inbox',2);
INSERT INTO "sqlite_sequence" VALUES('hand',1);
COMMIT;
