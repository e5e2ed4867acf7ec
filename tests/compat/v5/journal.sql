BEGIN TRANSACTION;
CREATE TABLE answers (
    session_id TEXT NOT NULL,
    verb TEXT NOT NULL,
    request_id TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (session_id, verb, request_id)
) WITHOUT ROWID;
INSERT INTO "answers" VALUES('first','create_snapshot','r-mine','mine');
INSERT INTO "answers" VALUES('first','fork','r-fork','second');
INSERT INTO "answers" VALUES('first','turn_complete','r-turn','1');
CREATE TABLE calls (
    session_id TEXT NOT NULL,
    process_id INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    state TEXT NOT NULL,
    started REAL NOT NULL,
    argv TEXT NOT NULL,
    result TEXT,
    output BLOB,
    has_file INTEGER NOT NULL DEFAULT 0, paused_s REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id, process_id)
) WITHOUT ROWID;
INSERT INTO "calls" VALUES('first',4,'c-four','running',1700000003.5,'["sleep", "100"]',NULL,NULL,0,0.0);
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('version','5');
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    serial INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    volume TEXT NOT NULL,
    id_range INTEGER NOT NULL,
    storage TEXT NOT NULL,
    runtime TEXT NOT NULL,
    template TEXT NOT NULL,
    template_path TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    request_id TEXT,
    spec TEXT NOT NULL
, volume_state TEXT NOT NULL DEFAULT '', head TEXT, origin TEXT, last_turn INTEGER NOT NULL DEFAULT 0, changing TEXT NOT NULL DEFAULT '', forgotten INTEGER NOT NULL DEFAULT 0, paused_at REAL NOT NULL DEFAULT 0, active_at REAL NOT NULL DEFAULT 0, memory TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
INSERT INTO "sessions" VALUES('first',1,'active','','v-1',1,'layers','namespaces','builtin','/templates/builtin/root',1700000000.25,1700086400.25,'request-1','{"labels": {"task": "demo"}, "envs": {"A": "b"}, "user": "user"}','l-3,l-2,v-1','mine',NULL,1,'',4,0.0,0.0,'');
INSERT INTO "sessions" VALUES('second',2,'active','','v-2',2,'layers','namespaces','builtin','/templates/builtin/root',1700000100.25,1700086500.25,NULL,'{"labels": {}, "envs": {}, "user": "user"}','v-2,l-2,v-1',NULL,'first/mine',0,'',0,0.0,0.0,'');
CREATE TABLE snapshots (
    session_id TEXT NOT NULL,
    name TEXT NOT NULL,
    serial INTEGER NOT NULL,
    kind TEXT NOT NULL,
    turn INTEGER,
    parent TEXT,
    created REAL NOT NULL,
    point TEXT NOT NULL,
    last_process_id INTEGER NOT NULL, memory TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (session_id, name)
) WITHOUT ROWID;
INSERT INTO "snapshots" VALUES('first','mine',2,'named',NULL,'turn-0001',1700000020.5,'l-2,v-1',3,'');
INSERT INTO "snapshots" VALUES('first','turn-0001',1,'turn',1,NULL,1700000010.5,'v-1',2,'');
CREATE TABLE turns (
    session_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    closed REAL NOT NULL,
    snapshot TEXT,
    first_process_id INTEGER NOT NULL,
    last_process_id INTEGER NOT NULL,
    changes TEXT,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;
INSERT INTO "turns" VALUES('first',1,1700000010.5,'turn-0001',1,2,'{"added": 1, "changed": 2, "removed": 3}');
CREATE UNIQUE INDEX sessions_by_request ON sessions (request_id) WHERE request_id IS NOT NULL;
CREATE UNIQUE INDEX calls_by_name ON calls (session_id, call_id);
COMMIT;
