BEGIN TRANSACTION;
CREATE TABLE calls (
    session_id TEXT NOT NULL,
    process_id INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    state TEXT NOT NULL,
    started REAL NOT NULL,
    argv TEXT NOT NULL,
    result TEXT,
    output BLOB,
    has_file INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id, process_id)
) WITHOUT ROWID;
INSERT INTO "calls" VALUES('first',1,'c-one','ended',1700000001.5,'["sh", "-c", "exit 3"]','{"call_id": "c-one", "exit_code": 3, "signal": null, "limit": null, "reason": "", "duration_s": 0.0, "user_s": 0.0, "system_s": 0.0, "rss_bytes_max": 0, "stdout_bytes": 0, "stderr_bytes": 0, "truncated": false}',X'6F7574707574',0);
INSERT INTO "calls" VALUES('first',2,'c-two','running',1700000002.5,'["sleep", "100"]',NULL,NULL,0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('version','1');
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
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('first',1,'active','','v-1',1,'layers','namespaces','builtin','/templates/builtin/root',1700000000.25,1700086400.25,'request-1','{"labels": {"task": "demo"}, "envs": {"A": "b"}, "user": "user"}');
INSERT INTO "sessions" VALUES('second',2,'failed','its guest ended','v-2',2,'layers','namespaces','builtin','/templates/builtin/root',1700000000.25,1700086400.25,'request-2','{"labels": {"task": "demo"}, "envs": {"A": "b"}, "user": "user"}');
CREATE UNIQUE INDEX sessions_by_request ON sessions (request_id) WHERE request_id IS NOT NULL;
CREATE UNIQUE INDEX calls_by_name ON calls (session_id, call_id);
COMMIT;
