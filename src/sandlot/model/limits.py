"""Every default and every bound. An error that stops at one of these names it."""

from sandlot.model.errors import InvalidArgument, LimitReached

KIB = 1024
_SHOWN_DIGITS = 40
MIB = 1024 * KIB
GIB = 1024 * MIB

SESSION_ID_CHARS_MAX = 128
LABELS_MAX = 64
LABEL_KEY_CHARS_MAX = 128
LABEL_VALUE_CHARS_MAX = 4096
ARGUMENTS_MAX = 4096
COMMAND_BYTES_MAX = 192 * KIB  # arguments and environment of one call together
CALLS_AT_ONCE_MAX = 1000  # per session
LIST_PAGE_DEFAULT = 100
LIST_PAGE_MAX = 1000

SESSIONS_MAX = 4000
SESSION_LIFETIME_S = 24 * 3600.0
SESSION_LIFETIME_S_MAX = 365 * 24 * 3600.0
CALL_TIMEOUT_S = 300.0
CALL_TIMEOUT_S_MAX = 30 * 24 * 3600.0
CALL_OUTPUT_BYTES = 64 * MIB  # kept per call, both streams together; what comes after is counted and dropped
CALL_OUTPUT_BYTES_MAX = 64 * GIB
CALLS_KEPT = 256  # finished calls of a session whose output can be read again

PATH_BYTES_MAX = 4095
FILE_OFFSET_MAX = (1 << 63) - 1
FILE_DEPTH_MAX = 1024  # levels that one listing goes down
FILE_READ_BYTES_MAX = 64 * MIB  # read into memory as one piece; streams have no bound
FILES_LISTED_MAX = 100_000  # entries that one listing gives as one piece; streams have no bound
LINE_BYTES = 64 * KIB  # of one line, where lines are asked for; the rest of it is left out
LINE_BYTES_MAX = MIB
ATTRIBUTES_MAX = 256  # extended attributes that one request sets
ATTRIBUTE_NAME_BYTES = 255
ATTRIBUTE_BYTES = 64 * KIB
WATCH_DIRECTORIES_MAX = 50_000  # below one that is watched
WATCH_EVENTS_KEPT = 10_000  # of one watcher, for readers that are slow or come back
WATCH_LINGER_S = 60.0  # that a watcher waits for readers to come back
WATCHES_MAX = 32  # of one session
FIND_RESULTS = 10_000  # of one search, unless it asks for another number
FIND_RESULTS_MAX = 10_000_000
SEARCH_RESULTS = 1000  # lines that fit, of one search by content
SEARCH_LINE_BYTES = 2000  # of one line
SEARCH_CONTEXT_MAX = 50  # lines on each side
SEARCH_PATTERNS_MAX = 256
SEARCH_PATTERN_CHARS_MAX = 4096
SEARCH_DEADLINE_S = 120.0  # for a search to tell something, or to end
TREE_ENTRIES_MAX = 1_000_000  # files, directories and links of one upload
TREE_EXTRA_BYTES_MAX = MIB  # that an archive tells of one member
TREE_SKIPPED_TOLD = 100  # of what a transfer left out; the rest is counted
TOOL_NAME_CHARS_MAX = 64  # models take no longer ones
TOOL_FILE_BYTES_MAX = 10 * MIB  # of a file that a tool reads or edits
TOOL_TIMEOUT_S = 120.0  # of a tool that runs a program, where nothing is asked for
TOOL_GIT_TIMEOUT_S = 30.0  # of git, where it needs no network
TOOL_OUTPUT_BYTES = 256 * KIB  # told of each stream of a program
MOUNTS_MAX = 16  # of one session
FORKS_MAX = 1000  # by one request
LAYERS_MAX = 400  # below one root; the kernel takes 500
LAYERS_MERGED_AT = 8  # side by side in a row; one takes their place
LAYERS_LONG = 48  # a row that is longer is merged although its layers are of different sizes
LAYER_LARGE_ENTRIES = 4096  # a layer with so many is not merged with small ones
TURNS_KEPT = 0  # snapshots of turns kept per session; 0: all of them
ZFS_BYTES_MIN = 256 << 20  # of a pool on a file
SYNC_DEADLINE_S = 60.0  # for the disk to take what a snapshot closed
COPY_DEADLINE_S = 600.0  # for all files of a session to be copied, where a snapshot does that
REPEAT_DEADLINE_S = 120.0  # for the first of two equal requests to be answered
GATE_DEADLINE_S = 30.0  # for writes under way to end, before a snapshot
FILE_DEADLINE_S = 60.0  # for one step of a file operation

EVENTS_KEPT = 10_000  # of all sessions together
EVENT_DETAIL_CHARS_MAX = 500
EVENT_COPY_BYTES_MAX = 4 * MIB  # of each of the two files that others read
CPUS_MIN = 0.01
CPUS_MAX = 65536.0
MEMORY_BYTES_MIN = 8 * MIB  # with less, hardly a program starts
BYTES_MAX = (1 << 62) - 1
BTRFS_BYTES_MIN = 256 * MIB  # a smaller filesystem has room for little but itself
PIDS_MAX = 1 << 22  # the kernel has no more numbers
PIDS_DEFAULT = 4096  # of a session that asks for nothing
OPEN_FILES_MIN = 16
OPEN_FILES_MAX = 1 << 20
IO_WEIGHT_MAX = 1000
MEMORY_OVERCOMMIT = 2.0  # what sessions may use together, in memories of the machine

TEMPLATE_BYTES_MAX = 32 * GIB  # of one template, unpacked
TEMPLATE_ENTRIES_MAX = 2_000_000
TEMPLATE_DEPTH_MAX = 256  # levels of directories
TEMPLATE_RATIO_MAX = 200  # bytes that come out of a compressed archive, for each that goes in
TEMPLATES_AT_ONCE_MAX = 8  # being made
TEMPLATE_STALL_S = 120.0  # without progress, before making a template is given up
TEMPLATE_BLOBS_MAX = 1000  # files of an image
TEMPLATE_TEXT_BYTES_MAX = 64 * KIB  # of variables, labels and words that a template brings
WARM_MAX = 1000  # guests of one template that wait
READY_TIMEOUT_S = 60.0  # for a start command to be ready, where its template does not say
READY_TIMEOUT_S_MAX = 3600.0
READY_CHARS_MAX = 1000  # of a path or a text that tells that it is

PROCESSES_MAX = 256  # of one session that have not ended
PROCESSES_KEPT = 256  # of one session that have ended, and whose logs can be read
PROCESS_LOG_BYTES = 64 * MIB  # kept of each, both streams together
PROCESS_LOG_BYTES_MIN = 64 * KIB
PROCESS_LOG_BYTES_MAX = 64 * GIB
RESTARTS = 5  # of a process whose policy is to be started again
RESTARTS_MAX = 1_000_000
BACKOFF_S = 0.5  # before the first of them
BACKOFF_S_MAX = 3600.0
BACKOFF_S_LONGEST = 60.0  # however often it failed, unless it asks for longer
BACKOFF_FORGIVEN_S = 60.0  # a run of this length makes the restarts before it forgotten
PORTS_MAX = 64  # exposed, of one session
CONNECTIONS_MAX = 512  # through one exposed port at a time; who comes then is turned away
CONNECTIONS_DIALLED_MAX = 8192  # to the ports of one session at a time, through this program
CONNECT_DEADLINE_S = 5.0  # for whoever listens inside to take a connection
HALF_CLOSED_S = 300.0  # without a byte, of a connection whose one side has ended
TERMINAL_WINDOW_BYTES = MIB  # of a terminal's output that can be read again
TERMINAL_WINDOW_BYTES_MIN = 64 * KIB
WINDOW_BYTES_MAX = 64 * MIB
TERMINAL_INPUT_BYTES_MAX = MIB  # of one request
TERMINAL_READERS_MAX = 64  # of one terminal
TERMINAL_BYTES_PER_S = 16 * MIB  # read of one that prints without end; its program waits
CODE_BYTES_MAX = 8 * MIB  # of one run
CODE_OUTPUT_BYTES = 4 * MIB  # printed by one run
CODE_OUTPUT_BYTES_MAX = 32 * MIB
CODE_VALUE_BYTES_MAX = 15 * MIB  # of one thing that is shown, all of its forms together: less than a message
CODE_WINDOW_BYTES = 64 * MIB  # of a context: what was told can be read again
CODE_TEXT_BYTES_MAX = 256 * KIB  # of an error's text, and of its traceback
CODE_WAITING_MAX = 100  # runs of one context that wait
CODE_KEPT = 200  # runs of one context that can be read again
CONTEXTS_MAX = 32  # of one session
CONTEXT_START_S = 30.0  # for a context to answer
CODE_INTERRUPT_S = 5.0  # for a run to end when it is interrupted, before its context is ended
SAMPLE_INTERVAL_S = 5.0
SAMPLES_KEPT = 720  # of one hour

TAGS_MAX = 50  # of one instance
TAG_KEY_CHARS_MAX = 128
TAG_VALUE_CHARS_MAX = 256
USER_DATA_BYTES_MAX = 16 * KIB  # given to an instance at its first start
INSTANCE_REQUEST_CHARS_MAX = 64
INSTANCES_MAX = 64  # of one local provisioner
INSTANCE_LOCK_S = 60.0  # for another verb of the same instance to end
INSTANCE_STOP_S = 20.0  # between TERM and KILL
INSTANCE_CLEAN_S = 120.0  # for what an instance had to be given back

SERVER_CONNECTIONS_MAX = 12_000  # of one server, all of its addresses together
SERVER_CONNECTIONS_MAX_MAX = 1_000_000
HEADER_BYTES_MAX = 64 * KIB  # of the head of one request
HEADER_TIMEOUT_S = 10.0  # for it to come
KEEP_ALIVE_S = 75.0  # that a connection stays open between two requests
HEADERS_MAX = 100  # of one request
PIPELINED_MAX = 16  # requests of one connection that wait for the one before
HANDSHAKE_S = 10.0  # for TLS to be agreed on
START_S = 120.0  # for another program's engine to start, which may make the built-in template first
BODY_PAUSE_S = 60.0  # between two pieces of a request
WRITE_IDLE_S = 300.0  # for a client to read on
DISCARDED_BYTES_MAX = 64 * MIB  # of a request that was answered before it had come whole
TUNNEL_HELD_BYTES = 64 * KIB  # of what a client said and nobody has taken yet
DRAIN_S = 10.0  # for requests under way, when a server is asked to stop
TAKE_OVER_S = 2.0  # for another program to hold a data directory whose engine has ended

PREVIEW_ANSWER_S = 300.0  # for a program to begin its answer
PREVIEW_IDLE_S = 3600.0  # between two pieces of an answer, or of a tunnel
PREVIEW_CONTINUE_S = 1.0  # for a program to want a body that its client offered
PREVIEW_KEPT_S = 4.0  # that a connection to a program waits for another request
PREVIEW_EXPIRES_S = 24 * 3600.0  # that a token is good for, where nothing is asked for
PREVIEW_EXPIRES_S_MAX = 30 * 24 * 3600.0
PREVIEWS_PUBLIC_MAX = 10_000  # ports of all sessions together
TOKEN_LIFETIME_S = 3600.0  # of a token of a session, where nothing is asked for
TOKEN_LIFETIME_S_MAX = 365 * 24 * 3600.0
TOKENS_KEPT = 1000  # whose door is kept open; the others are made again when they come
AUDIT_FILE_BYTES = 16 * MIB  # of one file of the audit log
AUDIT_FILES = 64  # that are kept of it
KEY_CHANGES_MAX = 1000  # of keys that wait to be told to the audit log; each is a few hundred bytes
AUDIT_TYPING_IDLE_S = 60.0  # without a key pressed in a terminal, then it is told how much was typed
AUDIT_TYPING_MAX = 10_000  # that are counted at once
AUDIT_SYNC_S = 5.0  # between two times that it is brought to the disk
WEBHOOKS_MAX = 16  # addresses that events are told to
WEBHOOK_RESOLVE_S = 10.0  # for the address of a name
WEBHOOK_ANSWER_S = 15.0  # for a receiver to take an event
WEBHOOK_PAUSE_S = 1.0  # before an event is told again; twice as long each time
WEBHOOK_PAUSE_S_MAX = 300.0
QUEUE_MAX = 1000  # requests for sessions that wait for room
QUEUE_TIMEOUT_S_MAX = 600.0

MESSAGE_BYTES_MAX = 16 * MIB  # of one message of the wire, either way
PIECE_BYTES = 256 * KIB  # of one piece of a stream
JSON_DEPTH_MAX = 64  # of a message
BODY_IDLE_S = 60.0  # for the next piece of a request
LINGER_S = 15.0  # that what a client began goes on when it is cut off, for it to come back
LINGER_S_MAX = 60.0
RECONNECT_S = 30.0  # that a client tries to reach its server again
ANSWER_S = 900.0  # for a server to answer what does not wait for something else
CONNECT_S = 10.0  # for a server to take a connection

TERMINATE_GRACE_S = 2.0  # between TERM and KILL
KILL_DEADLINE_S = 10.0  # a guest that cannot end a command by then is itself at fault
PAUSE_DRAIN_S_MAX = 3600.0  # for calls to end before a pause
GUEST_DEADLINE_S = 10.0  # for a guest to boot or to answer
KEEPER_DEADLINE_S = 20.0
MEMORY_DEADLINE_S = 120.0  # for the memory of a session to be written, or read
DESTROY_DEADLINE_S = 60.0
SHUTDOWN_TIMEOUT_S = 10.0  # for what is under way when an engine is closed

SPACE_WARN = 0.85  # of space or inodes: the host is degraded
SPACE_CRITICAL = 0.95  # and unhealthy: it makes no sessions
MEMORY_WARN = 0.92  # of the machine's
MEMORY_CRITICAL = 0.98
DESCRIPTORS_WARN = 0.85  # of the engine's
DESCRIPTORS_CRITICAL = 0.95
IMPORT_RECORDS_BYTES_MAX = 256 * MIB  # what an export tells of turns and calls, beside the files
IMPORT_ENTRIES_MAX = 100_000_000  # files of all points of an export
IMPORT_IDLE_S = 60.0  # for the next piece of an export to come
IMPORT_ROOM = 0.9  # of the space that is free, for one import
RESERVE_BYTES = 4 * MIB  # kept beside the journal, for a disk that is full
CORDON_REASON_CHARS_MAX = 500
BACKUP_PARTS_MAX = 100_000  # sessions of one backup
BACKUP_BESIDE_MAX = 1000  # files of the audit log, and webhooks, that go with a backup
BACKUP_BESIDE_BYTES_MAX = 4096  # of one that is small: an anchor, an offset
BACKUP_KEYS_BYTES_MAX = 64 * MIB
HOST_DRAIN_S, HOST_DRAIN_S_MAX = 600.0, 7 * 24 * 3600.0  # for a host to become empty
HEALTH_INTERVAL_S = 30.0  # between two looks of the engine at itself
HEALTH_FRESH_S = 1.0  # a look that is younger says whether a session may be made
STATE_DEADLINE_S = 5.0  # for a host to tell the state of a session
HEALTH_DEADLINE_S = 5.0  # for one part to answer
HEALTH_ERRORS_MAX = 32  # failures in the background that are told


def within(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside its bounds; NaN is outside of everything."""
    if not low <= value <= high:
        # A number may have more digits than anyone wants to read, and more than fit into a float.
        shown = str(value)
        shown = shown if len(shown) <= _SHOWN_DIGITS else f"one with {len(shown)} digits"
        raise InvalidArgument(f"{name} must lie between {low:g} and {high:g}, not {shown}", limit=name)


def at_most(name: str, value: int, high: int) -> None:
    if value > high:
        raise LimitReached(f"{name} is {value}, and the limit is {high}", limit=name)
