"""The cases of `sandlot attack`, in the order in which they run. The number at the head of a name stands for a kind of
attack, and gaps are kinds that nothing here can meet; `escape` is for ways out that have names of their own."""

from sandlot.attack import (
    acts_engine,
    acts_files,
    acts_limits,
    acts_processes,
    acts_program,
    races,
    rows_calls,
    rows_escapes,
    rows_files,
    rows_network,
    rows_proc,
)
from sandlot.attack.case import Case
from sandlot.attack.verdicts import Severity
from sandlot.model import Capability

_HARMLESS: frozenset[Capability] = frozenset()  # also where nothing isolates
_NO_ARCHIVES = "no verb takes or gives an archive"

_FILES = (
    Case(
        "01-paths",
        "Paths that climb, are absolute, encoded once and twice, with backslashes, NUL, overlong, for every file verb",
        "openat2 below the session's root; paths are checked before they are used",
        act=acts_files.paths,
        needs=_HARMLESS,
    ),
    Case(
        "02-links",
        "Links of the session to files of the machine, for every file verb",
        "openat2 in the session's root, without magic links, on one filesystem",
        act=acts_files.links,
    ),
    Case(
        "02-rights",
        "A user of the session has the host touch what only its root may",
        "threads that become the session's user before every step",
        Severity.HIGH,
        act=acts_files.rights,
    ),
    Case(
        "03-race",
        f"A session swaps directories and links while the host does {races.OPERATIONS:,} file operations",
        "descriptors, never a check of a path and then its use",
        act=races.race,
        deadline_s=300,
    ),
    Case(
        "04-other-files",
        "Files of the machine and of another session, by path, link and name",
        "own root, own volume",
        rows=rows_files.HOST,
    ),
    Case(
        "05-odd-files",
        "Pipes, sockets, a sparse terabyte, long names, names that are not text, a tree 900 deep",
        "the kind is asked before anything is opened; streams are bounded",
        Severity.HIGH,
        act=acts_files.odd_files,
    ),
    Case(
        "05-kernel-files",
        "The host is sent into /proc and /dev of the session",
        "openat2 stays on the filesystem of the root",
        act=acts_files.kernel_files,
    ),
    Case(
        "05-device-nodes",
        "Device nodes, whiteouts, /dev",
        "own user namespace; nodev; a read-only /dev",
        rows=rows_files.NODES,
        own_session=True,
    ),
    Case("05-owners", "Files given to ids of the machine", "the id map ends at 65535", rows=rows_files.OWNERS),
    Case(
        "05-attributes",
        "Attributes that steer overlayfs, file capabilities, the immutable flag",
        "trusted attributes need a capability of the machine",
        rows=rows_files.ATTRIBUTES,
    ),
    Case("06-archive-in", "An archive with hostile members is unpacked into a session", "-", not_yet=_NO_ARCHIVES),
    Case("07-archive-bomb", "An archive that grows without end", "-", not_yet=_NO_ARCHIVES),
    Case(
        "08-copy-out",
        "A hostile tree is copied out of a session, twice to the same place",
        "links are copied, never followed; pipes, sockets and setuid bits are left out",
        act=acts_program.copy_out,
    ),
    Case(
        "09-ids",
        "Ids such as ../x, a/b, -rf, with NUL, line ends, 5,000 characters, for every verb",
        "one validator, before any path or command",
        Severity.HIGH,
        act=acts_engine.ids,
        needs=_HARMLESS,
    ),
    Case(
        "10-rollback-under-writers",
        "Rollback and destroy while programs hold files, directories and mappings",
        "what runs is ended first; the root is swapped by descriptor",
        Severity.HIGH,
        act=acts_engine.rollback_under_writers,
        needs=frozenset({Capability.ISOLATION, Capability.SNAPSHOTS}),
    ),
)

_KERNEL = (
    Case(
        "11-mounts",
        "mount, umount, pivot_root and the new mount calls",
        "the filter; no CAP_SYS_ADMIN",
        rows=rows_calls.MOUNTS,
    ),
    Case(
        "11-namespaces",
        "unshare, setns, clone and clone3 with every namespace, forty deep",
        "the filter; no further user namespace; no CAP_SYS_ADMIN",
        rows=(*rows_calls.NEW_NAMESPACES, *rows_escapes.DEEP),
    ),
    Case(
        "12-kernel-settings",
        "core_pattern, sysrq, modprobe and whatever else in /proc can be written",
        "/proc/sys read-only; masks; own user namespace",
        rows=rows_proc.SYSTEM,
    ),
    Case(
        "13-pid-one-in-proc",
        "Memory, environment, root and descriptors of pid 1, through /proc",
        "pid 1 is undumpable",
        rows=rows_proc.PID_ONE,
    ),
    Case(
        "13-neighbours",
        "Processes of the machine and of another session",
        "own pid namespace",
        rows=rows_proc.NEIGHBOURS,
    ),
    Case(
        "14-trace",
        "ptrace, process_vm_readv and limits and priority of pid 1",
        "undumpable; guarded by the filter",
        rows=rows_calls.PID_ONE,
    ),
    Case(
        "15-kill",
        "Every signal to pid 1, kill -1, process numbers of the machine",
        "own pid namespace; a pid 1 of ours",
        act=acts_processes.kill_everybody,
    ),
    Case(
        "16-descriptors",
        "Descriptors, variables and core files that a program inherits",
        "all closed between fork and exec; an empty environment",
        rows=rows_proc.OWN,
    ),
    Case(
        "16-working-directory",
        "A working directory by /proc/self/fd (CVE-2024-21626)",
        "no descriptor is open when the child changes its directory",
        act=acts_processes.working_directories,
    ),
    Case(
        "17-powers",
        "Capabilities of root, of a user, by sudo, by a setuid program",
        "thirteen in the bounding set, and nothing adds to it",
        rows=rows_files.POWERS,
    ),
    Case(
        "17-report",
        "Mounts, their options and limits against a list to read",
        "made so by pid 1 before it serves",
        rows=rows_escapes.REPORT,
    ),
    Case(
        "17-filter", "Every refused system call, and those that nobody has read", "the filter", rows=rows_escapes.FILTER
    ),
    Case(
        "17-storm",
        "Every system call with zeros, ones, wrong addresses",
        "the filter; a kernel without known holes",
        Severity.HIGH,
        rows=rows_escapes.STORM,
        own_session=True,
    ),
    Case(
        "18-kernel-calls",
        "Modules, bpf, perf, userfaultfd, io_uring, keys, clocks, kexec",
        "the filter",
        rows=rows_calls.KERNEL,
    ),
    Case(
        "18-sockets",
        "Packet, vsock, crypto and other socket families",
        "the filter lets four families pass",
        rows=rows_calls.SOCKETS,
    ),
    Case(
        "18-entries",
        "The 32-bit and x32 system call tables",
        "the filter knows one architecture",
        rows=rows_calls.ENTRIES,
    ),
    Case(
        "18-terminals",
        "Typing into somebody else's terminal",
        "the filter refuses TIOCSTI and TIOCLINUX",
        Severity.HIGH,
        rows=rows_calls.TERMINALS,
    ),
    Case(
        "18-network",
        "Sockets, addresses and shared memory of the machine and of another session",
        "own network and ipc namespaces",
        rows=rows_network.NETWORK,
    ),
    Case(
        "19-absent",
        "Sockets of docker and others, tokens of Kubernetes, credentials of clouds, a privileged container",
        "the template takes listed files only",
        rows=rows_escapes.ABSENT,
    ),
    Case(
        "20-wedge-pid-one",
        "Stop pid 1, stop its children before their exec, leave its pipes full, 300 processes",
        "pid 1 waits for nobody",
        Severity.HIGH,
        act=acts_processes.wedge_pid_one,
    ),
)

_RESOURCES = (
    Case(
        "21-fork-bomb",
        "Processes without end",
        "the pids controller",
        Severity.HIGH,
        act=acts_limits.fork_bomb,
        needs=frozenset({Capability.ISOLATION, Capability.LIMIT_PIDS}),
    ),
    Case(
        "22-memory-bomb",
        "Memory without end, by allocation and by files in memory",
        "the memory controller",
        Severity.HIGH,
        act=acts_limits.memory_bomb,
        needs=frozenset({Capability.ISOLATION, Capability.LIMIT_MEMORY}),
    ),
    Case(
        "23-disk-fill",
        "Fill the disk, and its inodes",
        "-",
        Severity.HIGH,
        not_yet="no storage here holds a limit of space yet; who asks for one is refused",
    ),
    Case(
        "24-open-files",
        "Descriptors without end, and a higher limit for oneself",
        "a resource limit that root of the session cannot raise",
        Severity.HIGH,
        act=acts_limits.open_files,
        needs=frozenset({Capability.ISOLATION, Capability.LIMIT_OPEN_FILES}),
    ),
    Case(
        "27-views",
        "How many processors and how much memory a program sees",
        "the cpuset, and files laid over those of /proc",
        Severity.MEDIUM,
        act=acts_limits.views,
        needs=frozenset({Capability.ISOLATION, Capability.LIMIT_CPUS, Capability.LIMIT_MEMORY}),
    ),
    Case(
        "28-spin",
        "Two processes spin in a session of half a processor",
        "the quota of the cpu controller",
        Severity.HIGH,
        act=acts_limits.spin,
        needs=frozenset({Capability.ISOLATION, Capability.LIMIT_CPUS}),
    ),
    Case(
        "22-shared-memory",
        "Fill /dev/shm with data and with names",
        "a size and a number of files, given when it is mounted",
        Severity.HIGH,
        act=acts_limits.fill_shared_memory,
    ),
    Case(
        "24-terminals",
        "Open terminals without end",
        "a number of terminals, given when /dev/pts is mounted",
        Severity.HIGH,
        act=acts_limits.open_terminals,
    ),
    Case(
        "24-watches",
        "Take all inotify instances of the machine",
        "every session is a user of its own to the kernel",
        Severity.HIGH,
        act=acts_limits.take_watches,
    ),
    Case(
        "25-output",
        "256 MiB of output, one line of 32 MiB, output without end, a reader who leaves",
        "rings of 1 MiB, credit, a limit per call",
        Severity.HIGH,
        act=acts_processes.output_flood,
    ),
    Case("26-orphans", "20,000 orphans", "pid 1 reaps", Severity.HIGH, act=acts_processes.orphans),
    Case(
        "28-priority",
        "Real-time priority, ids of others, chroot, personality",
        "capabilities; the filter",
        Severity.HIGH,
        rows=rows_calls.CAPABILITIES,
    ),
    Case(
        "29-rounds",
        "Sessions that are made and destroyed, again and again",
        "an owner for everything that is made",
        Severity.MEDIUM,
        act=acts_engine.rounds,
    ),
    Case(
        "47-injection",
        "Quotes, line ends and control characters in labels, variables and arguments",
        "values are passed, never pasted",
        Severity.HIGH,
        act=acts_engine.injection,
        needs=_HARMLESS,
    ),
    Case(
        "48-at-once",
        "Creates with one id, calls with one id, destroy during create",
        "one journal, one winner",
        Severity.HIGH,
        act=acts_engine.at_once,
        needs=_HARMLESS,
    ),
    Case(
        "52-crashes",
        "The program is killed at random moments of create, run, turn, rollback and fork",
        "what is recorded has happened; the next engine makes the rest undone",
        Severity.HIGH,
        act=acts_program.crashes,
        needs=frozenset({Capability.ISOLATION, Capability.SNAPSHOTS}),
    ),
    Case(
        "50-hostile-image",
        "An image with hostile layers is made a template",
        "-",
        not_yet="templates are made from this machine alone",
    ),
)

_ESCAPES = (
    Case(
        "escape-host-mounts",
        "Disks and directories of the machine",
        "own mounts; no device nodes",
        rows=rows_escapes.HOST_MOUNTS,
    ),
    Case(
        "escape-sys-admin",
        "Cgroup mounts, release_agent, uevent_helper, binfmt_misc",
        "no CAP_SYS_ADMIN; the filter",
        rows=rows_escapes.SYS_ADMIN,
    ),
    Case(
        "escape-sys-module",
        "Load a module into the kernel",
        "no CAP_SYS_MODULE; the filter",
        rows=rows_escapes.SYS_MODULE,
    ),
    Case("escape-dac-read-search", "open_by_handle_at, as in shocker", "the filter", rows=rows_escapes.READ_SEARCH),
    Case(
        "escape-runc-2019-5736",
        "Overwrite the runtime through /proc/self/exe (CVE-2019-5736)",
        "pid 1 is undumpable, and a sealed copy in memory",
        rows=rows_escapes.RUNC_2019_5736,
        act=acts_processes.overwrite_runtime,
    ),
    Case(
        "escape-runc-2024-21626",
        "Stand in a leaked directory (CVE-2024-21626)",
        "no descriptor leaks",
        act=acts_processes.working_directories,
    ),
    Case(
        "escape-pid-namespace",
        "Processes of the machine by number",
        "own pid namespace",
        rows=rows_escapes.PID_NAMESPACE,
    ),
    Case("escape-ebpf", "Load a program for the kernel", "the filter", rows=rows_escapes.EBPF),
    Case(
        "escape-dirty",
        "Dirty COW (CVE-2016-5195) and Dirty Pipe (CVE-2022-0847)",
        "a kernel without known holes",
        rows=rows_escapes.DIRTY,
    ),
    Case("escape-packet-socket", "Packet sockets", "the filter; no CAP_NET_RAW", rows=rows_escapes.PACKET),
)

CASES = (*_FILES, *_KERNEL, *_RESOURCES, *_ESCAPES)
