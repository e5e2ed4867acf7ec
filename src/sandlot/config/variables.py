"""Everything that can be set, as it is documented."""

from pathlib import Path

from sandlot.config.reading import Variable
from sandlot.model import AUTO, TURN_PREFIX, limits

ROOT_DATA = Path("/var/lib/sandlot")
LOOPBACK = "127.0.0.1"
LISTEN = f"{LOOPBACK}:8700"

ENGINE = (
    Variable(
        "SANDLOT_DATA_DIR",
        "Where sessions, templates and the journal are kept. One engine at a time holds it.",
        f"`{ROOT_DATA}` for root, else `~/.local/share/sandlot`",
    ),
    Variable("SANDLOT_STORAGE", "How files of new sessions are kept, when a request does not say.", f"`{AUTO}`"),
    Variable("SANDLOT_RUNTIME", "How new sessions are contained, when a request does not say.", f"`{AUTO}`"),
    Variable("SANDLOT_SESSIONS_MAX", "How many sessions an engine holds at once.", f"{limits.SESSIONS_MAX}"),
    Variable("SANDLOT_WARM_POOL", "How many guests wait for a session, started. The command line keeps none.", "0"),
    Variable(
        "SANDLOT_WARM_TEMPLATES",
        "Templates whose guests wait too, serving if the template starts something: `app:3=2,db` keeps two of the one "
        "and one of the other.",
        "none",
        ",",
    ),
    Variable(
        "SANDLOT_TURNS_KEPT",
        "How many snapshots of turns a session keeps: the newest. Those that a user named stay. 0 keeps all.",
        f"{limits.TURNS_KEPT}",
    ),
    Variable("SANDLOT_SNAPSHOT_PREFIX", "What snapshots of turns are called: `turn-0001`.", f"`{TURN_PREFIX}`"),
    Variable(
        "SANDLOT_LOCAL_DISK_SNAPSHOTS",
        "`on` or `off`: whether the storage `local-disk` has snapshots. Each of them, each rollback and each fork "
        "copies all files of its session; where the filesystem shares blocks (btrfs, xfs), it copies no content.",
        "`off`",
    ),
    Variable(
        "SANDLOT_DEFAULT_PIDS",
        "Processes of a session that asks for no limit; 0: any number.",
        f"{limits.PIDS_DEFAULT}",
    ),
    Variable("SANDLOT_DEFAULT_MEMORY", "Memory of a session that asks for no limit, such as `2G`.", "no limit"),
    Variable("SANDLOT_DEFAULT_CPUS", "Processors of a session that asks for no limit, such as `1.5`.", "no limit"),
    Variable(
        "SANDLOT_DEFAULT_DISK",
        "Disk space of a session that asks for no limit, such as `10G`, where the storage can hold it.",
        "no limit",
    ),
    Variable("SANDLOT_DEFAULT_OPEN_FILES", "Open files of each process, where no limit is asked for.", "no limit"),
    Variable(
        "SANDLOT_OVERCOMMIT",
        "How many times the machine's memory its sessions may ask for together.",
        f"{limits.MEMORY_OVERCOMMIT:g}",
    ),
    Variable(
        "SANDLOT_SPACE_WARN",
        "From which fraction of used space or inodes on a host is degraded.",
        f"{limits.SPACE_WARN}",
    ),
    Variable(
        "SANDLOT_SPACE_CRITICAL",
        "From which fraction on it is unhealthy, and makes no sessions.",
        f"{limits.SPACE_CRITICAL}",
    ),
    Variable(
        "SANDLOT_HEALTH_INTERVAL_S",
        "How often the engine looks at itself, in seconds.",
        f"{limits.HEALTH_INTERVAL_S:g}",
    ),
    Variable(
        "SANDLOT_MOUNTS",
        "Directories of the machine that sessions may mount, with all below them: `/srv/data:/srv/work=rw`. "
        "Without `=rw` they can only be read.",
        "none",
        ":",
    ),
    Variable(
        "SANDLOT_SHUTDOWN_TIMEOUT_S",
        "How long an engine that is closed waits for calls that someone waits for, in seconds.",
        f"{limits.SHUTDOWN_TIMEOUT_S:g}",
    ),
    Variable(
        "SANDLOT_PAUSE_DRAIN_S",
        "How long calls may end before a pause freezes them, where the pause does not say, in seconds.",
        "0",
    ),
    Variable(
        "SANDLOT_TOOL_TIMEOUT_S",
        "The most that one call of a tool may take, whatever it asks for, in seconds; 0: what it asks for, or what the "
        "tool has by itself.",
        "0",
    ),
    Variable(
        "SANDLOT_CALL_SNAPSHOTS",
        "`on` or `off`: whether there is a snapshot after every call, where the storage has snapshots, also of "
        "sessions that do not ask for it.",
        "`off`",
    ),
    Variable(
        "SANDLOT_ADVERTISE_ADDRESS",
        "The address or the name of this machine that is told to whoever wants to reach what a session exposes.",
        f"`{LOOPBACK}`",
    ),
    Variable(
        "SANDLOT_AUDIT",
        "`on` or `off`: whether the audit log is written: who asked for what in which session.",
        "`on`",
    ),
    Variable(
        "SANDLOT_AUDIT_ANCHOR",
        "The file that says where the audit log ends. Where whoever can write the data directory cannot write this, "
        "the log cannot be cut without a trace.",
        "`audit.anchor` in the data directory",
    ),
    Variable("SANDLOT_RUNSC", "The program of gVisor: a path, or a name that is looked for.", "`runsc`"),
    Variable(
        "SANDLOT_GVISOR_PLATFORM",
        "How gVisor runs programs: `systrap`, `kvm` or `ptrace`. `auto` takes the first that works.",
        f"`{AUTO}`",
    ),
    Variable(
        "SANDLOT_BTRFS_BYTES",
        "How large the file is that holds the storage `btrfs` where the data directory is on something else, such as "
        "`100G`. A larger one than before makes it grow; it never shrinks.",
        "half of what is free",
    ),
    Variable(
        "SANDLOT_ZFS_POOL",
        "The pool of the storage `zfs`; it must be imported. Without one Sandlot makes a pool on a file.",
        "on `zfs.img` in the data directory",
    ),
    Variable("SANDLOT_ZFS_BYTES", "How large that file may become, such as `200G`.", "half of what is free"),
    Variable("SANDLOT_ZFS_BASES", "The dataset in the pool that empty volumes are made from.", "`bases`"),
    Variable("SANDLOT_ZFS_SESSIONS", "The dataset in the pool that holds the volumes of sessions.", "`sessions`"),
    Variable("SANDLOT_KEEPER", "The guest program, where it is not the one of the package.", "in the package"),
)
SERVER = (
    Variable(
        "SANDLOT_LISTEN",
        "Where a server listens: `HOST:PORT`, `unix:/PATH`, or several. `none`: nowhere but on the socket of its data "
        "directory.",
        f"`{LISTEN}`",
        ",",
    ),
    Variable("SANDLOT_TLS_CERTIFICATE", "The server's certificate and what leads to its root, PEM.", "no TLS"),
    Variable("SANDLOT_TLS_KEY", "The key of that certificate, PEM.", "none"),
    Variable(
        "SANDLOT_TLS_CLIENT_CA",
        "Certificates, PEM: a client must have one that leads to one of these (mutual TLS).",
        "clients need none",
    ),
    Variable(
        "SANDLOT_ALLOWED_HOSTS",
        "Names under which clients may call the server, beside its addresses and `localhost`. A request for another "
        "name is refused: it is a browser's that was led here.",
        "none",
        ",",
    ),
    Variable(
        "SANDLOT_CONNECTIONS_MAX",
        "Connections at once. Who comes then is turned away.",
        f"{limits.SERVER_CONNECTIONS_MAX}",
    ),
    Variable(
        "SANDLOT_HEADER_TIMEOUT_S",
        "For the head of a request to come, whole, in seconds. The connection is closed then.",
        f"{limits.HEADER_TIMEOUT_S:g}",
    ),
    Variable(
        "SANDLOT_KEEP_ALIVE_S",
        "How long a connection stays open between two requests, in seconds.",
        f"{limits.KEEP_ALIVE_S:g}",
    ),
    Variable(
        "SANDLOT_DRAIN_S",
        "How long requests under way may go on when the server is asked to stop, in seconds.",
        f"{limits.DRAIN_S:g}",
    ),
    Variable(
        "SANDLOT_WEBHOOKS",
        "Addresses that events are told to with a signed POST, each at least once and in order; "
        "`TENANT=URL` for the events of one tenant's sessions.",
        "none",
        ",",
    ),
    Variable("SANDLOT_WEBHOOK_EVENTS", "Kinds of events that are told, such as `created,failed`.", "all", ","),
    Variable(
        "SANDLOT_WEBHOOK_NETWORKS",
        "Networks that webhooks may lead into although they are private, such as `10.1.0.0/16`.",
        "none: public addresses only",
        ",",
    ),
    Variable("SANDLOT_LOG_LEVEL", "`debug`, `info`, `warning` or `error`.", "`info`"),
    Variable("SANDLOT_LOG_FORMAT", "`text` or `json`.", "`text`"),
    Variable("SANDLOT_ACCESS_LOG", "`on` or `off`: one line for each request.", "`off`"),
    Variable("SANDLOT_METRICS", "`on` or `off`: whether `/metrics` is there, for Prometheus.", "`on`"),
    Variable(
        "SANDLOT_PREVIEW_DOMAIN",
        "Below it, ports of sessions have hosts of their own: `PORT-ID.DOMAIN`. `https://DOMAIN` where something "
        "before the server has the certificate. It must be of another site than what clients call the server by. "
        "`off`: ports are reached by path alone.",
        "`preview.localhost`",
    ),
    Variable(
        "SANDLOT_PREVIEW_PUBLIC",
        "`on` or `off`: whether a port may be made public, so that everybody who reaches the server reaches the port.",
        "`off`",
    ),
    Variable(
        "SANDLOT_TRACING",
        "`on` or `off`: OpenTelemetry, which then reads its own variables (`OTEL_…`).",
        "`off`",
    ),
)
CONFIG = Variable("SANDLOT_CONFIG", "A file of settings, TOML. A variable counts more than what the file says.", "none")
CLIENT = (
    Variable(
        "SANDLOT_URL",
        "The server that the SDK and the command line use: `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`. "
        "Whoever names a data directory has that one instead.",
        "none: an engine in the program itself",
    ),
    Variable("SANDLOT_API_KEY", "What a server wants to know before it answers.", "none"),
)
VARIABLES = (*ENGINE, *SERVER, *CLIENT, CONFIG)
