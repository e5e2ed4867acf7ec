"""What /proc and the environment of a process must not tell or take."""

from sandlot.attack.rows import ATTEMPT, ROOT, USER, Row, attempt

_UNDUMPABLE = "pid 1 is undumpable and its memory belongs to the initial user namespace"
_READ_ONLY = "/proc/sys is mounted read-only"

_SECRET_FILES = ("mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "pagemap", "io", "mountstats")
_SECRET_LINKS = ("root", "cwd", "exe", "ns/mnt", "ns/user", "ns/net", "ns/pid", "fd/0", "task/1/root", "task/1/exe")
_SECRET_FOLDERS = ("fd", "ns", "fdinfo", "map_files", "task/1/fd")
_SETTINGS = ("comm", "oom_score_adj", "coredump_filter", "clear_refs", "uid_map", "setgroups", "sched", "mem")

PID_ONE = (
    # An open can pass where the read behind it does not, so both are done.
    *(
        Row(
            f"read pid 1's {name}",
            f"tell(lambda: open('/proc/1/{name}', 'rb').read(64))",
            "EACCES",
            _UNDUMPABLE,
            python=True,
        )
        for name in _SECRET_FILES
    ),
    *(
        attempt(f"pid 1's {name}", f"readlink @/proc/1/{name} zeros 4096", "EACCES", _UNDUMPABLE)
        for name in _SECRET_LINKS
    ),
    *(
        attempt(f"list pid 1's {name}", f"open @/proc/1/{name} 0x10000", "EACCES", _UNDUMPABLE)
        for name in _SECRET_FOLDERS
    ),
    *(
        attempt(
            f"write pid 1's {name}",
            f"open @/proc/1/{name} 1",
            "EACCES",
            "the file belongs to nobody that the session knows",
        )
        for name in _SETTINGS
    ),
    attempt("through pid 1's root", "open @/proc/1/root/etc/passwd 0", "EACCES", _UNDUMPABLE),
    attempt("through pid 1's cwd", "open @/proc/1/cwd/etc/passwd 0", "EACCES", _UNDUMPABLE),
    attempt("run pid 1's program", "execve @/proc/1/exe zeros zeros", "EACCES", _UNDUMPABLE),
    Row(
        "slack of pid 1", "(echo 9 >/proc/1/timerslack_ns) 2>&- || echo refused", "refused", "CAP_SYS_NICE is not there"
    ),
    Row(
        "command line of pid 1",
        "tr '\\0' ' ' </proc/1/cmdline | sed 's/ *$//'",
        "sandlot",
        "the keeper wiped its arguments",
    ),
)

_SYSTEM_SETTINGS = (
    "kernel/hostname",
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/randomize_va_space",
    "kernel/pid_max",
    "vm/overcommit_memory",
    "vm/drop_caches",
    "vm/panic_on_oom",
    "fs/file-max",
    "net/ipv4/ip_unprivileged_port_start",
    "user/max_user_namespaces",
)

SYSTEM = (
    *(
        Row(
            f"write {name}",
            # A kernel without modules has no such setting at all.
            f"case $({ATTEMPT} open @/proc/sys/{name} 1) in EROFS|EACCES|ENOENT) echo refused;; esac",
            "refused",
            f"it belongs to the host's root, and {_READ_ONLY}",
        )
        for name in _SYSTEM_SETTINGS
    ),
    Row("sysctl", "sysctl -qw kernel.core_pattern=/x 2>/dev/null || echo refused", "refused", _READ_ONLY, (ROOT,)),
    *(
        Row(
            f"masked /proc/{name}",
            f"cd /proc; if test -e {name}; then stat -c %t:%T {name}; else echo 1:3; fi; cat {name} 2>&- | wc -c",
            "1:3\n0",
            "a bind of /dev/null lies over it, or the kernel has no such file",
        )
        for name in ("kcore", "keys", "key-users", "kmsg", "sysrq-trigger", "timer_list", "sched_debug", "cmdline")
    ),
    Row(
        "everything in /proc that can be written",
        """
open_for_writing = []
for folder, names, files in os.walk('/proc'):
    if folder == '/proc':
        names[:] = [name for name in names if not name.isdigit() and name not in ('self', 'thread-self')]
    for name in files:
        path = os.path.join(folder, name)
        try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError: continue
        if os.stat(path).st_rdev != os.makedev(1, 3): open_for_writing.append(path)
print(*sorted(set(open_for_writing) - {'/proc/mounts'}))
""",
        # What is written there asks to be told of pressure, and costs its writer a poll.
        "/proc/pressure/cpu /proc/pressure/io /proc/pressure/memory",
        "files of the machine belong to nobody that the session knows, and /proc/sys is read-only",
        python=True,
    ),
    Row(
        "kernel log", "dmesg 2>/dev/null || echo refused", "refused", "the filter refuses syslog, and /dev has no kmsg"
    ),
    Row(
        "kernel addresses",
        "awk '{print $1}' /proc/kallsyms | sort -u | tail -n 1 | tr -d 0",
        "",
        "CAP_SYSLOG is not there",
    ),
    Row("/sys", "ls -A /sys", "", "no sysfs is mounted"),
    Row(
        "cgroups",
        "cut -d: -f3 /proc/self/cgroup | sort -u; find /sys /run -name release_agent",
        "/",
        "a cgroup namespace",
    ),
)

NEIGHBOURS = (
    Row(
        "processes in /proc",
        "print(*sorted({open(f'/proc/{pid}/comm').read().strip() for pid in os.listdir('/proc') if pid.isdigit()}))",
        "python3 sandlot-guest",
        "a pid namespace: the rest of the machine has no number here",
        python=True,
    ),
    Row(
        "processes by ps",
        "ps -e -o comm= >/tmp/ps-$$; sort -u /tmp/ps-$$ | xargs",
        "ps sandlot-guest sh",
        "a pid namespace",
    ),
    attempt("signal to a process of the host", "kill %host_pid% 9", "ESRCH", "a pid namespace: that number is nobody"),
    attempt("pidfd of a process of the host", "pidfd_open %host_pid% 0", "ESRCH", "a pid namespace"),
    attempt("ptrace a process of the host", "ptrace 16 %host_pid% 0 0", "ESRCH", "a pid namespace"),
    Row(
        "marks of others",
        """
import glob
# Backwards in this script, or it would find itself.
marks = [word[::-1].encode() for word in ('%host_mark_backwards%', '%other_mark_backwards%')]
for path in glob.glob('/proc/[0-9]*/*'):
    if os.path.basename(path) not in ('cmdline', 'environ', 'comm', 'maps'): continue
    try: told = open(path, 'rb').read(1 << 20)
    except OSError: continue
    if any(mark in told for mark in marks): print(path)
""",
        "",
        "a pid namespace: processes of the host and of other sessions are not listed",
        (ROOT,),
        python=True,
    ),
)

OWN = (
    Row(
        "variables",
        "env | cut -d= -f1 | sort | xargs",
        "HOME LANG LOGNAME PATH PWD SHELL USER",
        "a call starts from none",
    ),
    Row("variable of the host", "env | grep -c %host_mark%", "0", "the keeper starts with an empty environment"),
    Row("descriptors", f"exec {ATTEMPT} descriptors", "0\n1\n2", "all others are closed between fork and exec"),
    Row("descriptors at a terminal", f"exec {ATTEMPT} descriptors", "0\n1\n2", "all others are closed", terminal=True),
    Row(
        "descriptors by a folder",
        "import glob\nprint(sorted(os.readlink(p).split(':')[0] for p in glob.glob('/proc/self/fd/[0-2]')))",
        "['/dev/null', 'pipe', 'pipe']",
        "standard streams are made inside the session",
        python=True,
    ),
    Row(
        "host paths in mountinfo",
        "cut -d' ' -f4,5 /proc/1/mountinfo | grep -v -e '^/null /proc/' -e '^/empty /proc/' | sort -u | xargs; "
        "grep -c -e %data% -e %session% /proc/1/mountinfo",
        "/ / / /dev / /dev/pts / /dev/shm / /proc /sys /proc/sys\n0",
        "layers are given to the overlay by descriptor of a detached clone",
    ),
    Row(
        "core file",
        "if os.fork() == 0: os.kill(os.getpid(), 11)\nprint(os.wait()[1], [n for n in os.listdir('.') if 'core' in n])",
        "11 []",
        "RLIMIT_CORE is one byte: no file, and no program of the host is started for it",
        python=True,
    ),
    Row(
        "larger core limit",
        "ulimit -c unlimited 2>/dev/null || ulimit -c",
        "0",
        "CAP_SYS_RESOURCE is not there",
        (ROOT, USER),
    ),
)
