"""The tables of the journal, version by version. A version that was released is never changed."""

from collections.abc import Iterator

VERSION = 6

_STEPS = {
    1: """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
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
-- One page more for those who use it: someone waits for each of these commits.
CREATE UNIQUE INDEX sessions_by_request ON sessions (request_id) WHERE request_id IS NOT NULL;
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
CREATE UNIQUE INDEX calls_by_name ON calls (session_id, call_id);
""",
    2: """
ALTER TABLE sessions ADD COLUMN volume_state TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN head TEXT;
ALTER TABLE sessions ADD COLUMN origin TEXT;
ALTER TABLE sessions ADD COLUMN last_turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN changing TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
CREATE TABLE snapshots (
    session_id TEXT NOT NULL,
    name TEXT NOT NULL,
    serial INTEGER NOT NULL,
    kind TEXT NOT NULL,
    turn INTEGER,
    parent TEXT,
    created REAL NOT NULL,
    point TEXT NOT NULL,
    last_process_id INTEGER NOT NULL,
    PRIMARY KEY (session_id, name)
) WITHOUT ROWID;
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
CREATE TABLE answers (
    request_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    answer TEXT NOT NULL
) WITHOUT ROWID;
""",
    # An answer belongs to a verb, too. The version before did not say which one; what it says tells.
    3: """
ALTER TABLE answers RENAME TO answers_2;
CREATE TABLE answers (
    session_id TEXT NOT NULL,
    verb TEXT NOT NULL,
    request_id TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (session_id, verb, request_id)
) WITHOUT ROWID;
INSERT INTO answers SELECT
    session_id,
    CASE
        WHEN answer GLOB 'turn-*' OR answer NOT GLOB '*[^0-9]*' THEN 'turn_complete'
        WHEN answer IN (SELECT name FROM snapshots WHERE session_id = answers_2.session_id) THEN 'create_snapshot'
        ELSE 'fork'
    END,
    request_id,
    CASE WHEN answer GLOB 'turn-*' THEN CAST(CAST(substr(answer, 6) AS INTEGER) AS TEXT) ELSE answer END
FROM answers_2;
DROP TABLE answers_2;
""",
    4: """
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
);
ALTER TABLE sessions ADD COLUMN paused_at REAL NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN active_at REAL NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN paused_s REAL NOT NULL DEFAULT 0;
""",
    5: """
ALTER TABLE sessions ADD COLUMN memory TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN memory TEXT NOT NULL DEFAULT '';
""",
    6: """
CREATE TABLE processes (
    session_id TEXT NOT NULL,
    serial INTEGER NOT NULL,
    process_id TEXT NOT NULL,
    spec TEXT NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (session_id, serial)
) WITHOUT ROWID;
CREATE UNIQUE INDEX processes_by_name ON processes (session_id, process_id);
CREATE TABLE ports (
    session_id TEXT NOT NULL,
    port INTEGER NOT NULL,
    host_port INTEGER NOT NULL,
    process_id TEXT,
    PRIMARY KEY (session_id, port)
) WITHOUT ROWID;
""",
}


def statements(version: int) -> Iterator[str]:
    """What brings a journal of a version to the newest; 0 is none at all."""
    for step in range(version + 1, VERSION + 1):
        yield from filter(str.strip, _STEPS[step].split(";"))
