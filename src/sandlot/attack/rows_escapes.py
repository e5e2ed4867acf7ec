"""Known ways out of containers, by the names that they have elsewhere; and things that must simply not be there."""

from sandlot.attack.golden import refused_names
from sandlot.attack.rows import ATTEMPT, ROOT, USER, Row, attempt

_FILTER = "the filter refuses {}"
_BAIT = "/etc/attack-bait"  # root's own, and readable; in the volume, so a hole in the kernel harms the session alone
_LAY = f"test -e {_BAIT} || sudo -n sh -c 'head -c 8192 /dev/zero | tr \"\\0\" a >{_BAIT}'; "

HOST_MOUNTS = (
    attempt("mount a disk", "mount @/dev/vda @/mnt @ext4 0 0", "EPERM", _FILTER.format("mount")),
    Row(
        "directories of the host",
        "grep -vE ' - (overlay|proc|tmpfs|devpts) ' /proc/self/mountinfo",
        "",
        "four kinds of filesystem are mounted, all of them the session's own",
    ),
)
SYS_ADMIN = (
    attempt("mount a cgroup", "mount @cgroup @/mnt @cgroup 0 0", "EPERM", _FILTER.format("mount")),
    attempt("mount a cgroup, version 2", "mount @cgroup2 @/mnt @cgroup2 0 0", "EPERM", _FILTER.format("mount")),
    Row(
        "release_agent",
        "cat /sys/fs/cgroup/release_agent /sys/fs/cgroup/*/release_agent 2>/dev/null; ls -A /sys",
        "",
        "no cgroup is mounted",
    ),
    *(
        attempt(f"open {path}", f"open @{path} 1", "ENOENT", "no sysfs is mounted")
        for path in ("/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/sys/kernel/security")
    ),
    Row(
        "binfmt_misc",
        f"case $({ATTEMPT} open @/proc/sys/fs/binfmt_misc/register 1) in ENOENT|EROFS|EACCES) echo refused;; esac",
        "refused",
        "/proc/sys is read-only, and belongs to the host's root",
    ),
)
SYS_MODULE = (
    attempt("init_module", "init_module zeros 64 @x", "EPERM", _FILTER.format("init_module")),
    Row("insmod", "modprobe dummy 2>/dev/null || echo refused", "refused", "no module is loaded from inside", (ROOT,)),
)
READ_SEARCH = (
    attempt("shocker", "open_by_handle_at 0 zeros 0", "EPERM", _FILTER.format("open_by_handle_at")),
    attempt("handle of the root", "name_to_handle_at -100 @/ zeros zeros 0", "EPERM", _FILTER.format("it")),
)
RUNC_2019_5736 = (
    attempt("write the program of pid 1", "open @/proc/1/exe 1", "EACCES", "pid 1 is undumpable"),
    attempt(
        "write the own program", "open @/proc/self/exe 1", "ETXTBSY", "a program that runs is not written", (ROOT,)
    ),
)
PID_NAMESPACE = (
    attempt("root of a process of the host", "open @/proc/%host_pid%/root 0x200000", "ENOENT", "a pid namespace"),
    attempt("memory of a process of the host", "read-memory %host_pid%", "ESRCH", "a pid namespace"),
    attempt("descriptor of a process of the host", "pidfd %host_pid% 0xff03", "ESRCH", "a pid namespace"),
    Row(
        "processes by every number",
        "own = {int(name) for name in os.listdir('/proc') if name.isdigit()}\n"
        "alive = []\n"
        "for pid in range(2, 70000):\n"
        "    try: os.kill(pid, 0)\n"
        "    except ProcessLookupError: continue\n"
        "    except PermissionError: pass\n"
        "    alive.append(pid)\n"
        "print(sorted(set(alive) - own))",
        "[]",
        "a pid namespace: numbers of others are nobody",
        python=True,
    ),
)
EBPF = (
    attempt("bpf map", "bpf 0 zeros 64", "EPERM", _FILTER.format("bpf")),
    attempt("bpf program", "bpf 5 zeros 128", "EPERM", _FILTER.format("bpf")),
)
DIRTY = (
    Row(
        "Dirty COW",
        f"{_LAY} exec {ATTEMPT} dirty-cow {_BAIT} 20000",
        "unchanged",
        "the kernel copies a private page before it is written",
        (USER,),
    ),
    Row(
        "Dirty Pipe",
        f"{_LAY} exec {ATTEMPT} dirty-pipe {_BAIT}",
        "unchanged",
        "the kernel clears the flags of a pipe's buffers",
        (USER,),
    ),
)
PACKET = (
    attempt("packet socket", "socket 17 3 0x300", "EAFNOSUPPORT", "the filter lets four families pass"),
    attempt("packet socket, cooked", "socket 17 2 0x300", "EAFNOSUPPORT", "the filter lets four families pass"),
)

_SOCKETS = (
    "/run/docker.sock /var/run/docker.sock /run/containerd /run/crio /run/podman /run/user /run/dbus /run/systemd "
    "/run/sandlot /var/lib/docker /var/lib/containerd /var/lib/sandlot /var/lib/kubelet"
)
ABSENT = (
    Row("sockets of daemons", f"ls -d {_SOCKETS} 2>/dev/null", "", "the template takes nothing of /run and /var"),
    Row(
        "any socket, pipe or device",
        "find / -xdev \\( -type s -o -type b -o -type c -o -type p -o -name '*.sock' \\) 2>/dev/null",
        "",
        "nothing of the host that listens, and no disk, is in the root",
        (ROOT,),
    ),
    Row(
        "tokens of Kubernetes",
        "ls -d /var/run/secrets /run/secrets /etc/kubernetes ~/.kube 2>/dev/null; env | grep -i kube",
        "",
        "neither files nor variables of the host come in",
    ),
    Row(
        "credentials of clouds",
        "ls -d ~/.aws ~/.config/gcloud ~/.azure ~/.docker ~/.ssh 2>/dev/null; "
        "env | grep -iE 'aws|azure|google|token|secret'",
        "",
        "neither files nor variables of the host come in",
    ),
    Row(
        "a privileged container",
        "test -w /dev/kmsg -o -e /dev/mem -o -e /dev/kvm -o -e /dev/fuse -o -d /sys/kernel && echo privileged; true",
        "",
        "no such device, and no sysfs",
    ),
)

FILTER = (
    Row(
        "refused calls",
        f"{ATTEMPT} sweep {' '.join(refused_names())}",
        "\n".join(f"{name} EPERM" for name in refused_names()),
        "every call of the list is refused before the kernel looks at it",
    ),
    Row(
        "calls that nobody has read",
        f"{ATTEMPT} sweep 467 468 469 470 471 500 547 4096 | cut -d' ' -f2 | sort -u",
        "ENOSYS",
        "what a later kernel adds does not exist inside",
    ),
)
STORM = (
    Row(
        "every call with every kind of nonsense",
        f"{ATTEMPT} storm | sed 's/ by itself.*, stuck/ stuck/; s/tried [0-9]*/tried/'",
        "tried, stuck 0",
        "no number with zeros, ones or wrong addresses hangs or stops the kernel",
    ),
)
DEEP = (
    Row(
        "user namespaces forty deep",
        "print(sum(libc.unshare(0x10000000) == 0 for _ in range(40)))",
        "0",
        "the filter refuses unshare, and max_user_namespaces is 0",
        python=True,
    ),
    Row(
        "clone3 forty times",
        f"for _ in $(seq 40); do {ATTEMPT} new-clone {0x10000000}; done | sort -u",
        "ENOSPC",
        "max_user_namespaces is 0 in the session, and its /proc/sys is read-only",
    ),
)
# As `mount` would show it, without what differs from machine to machine.
_MOUNTS = """
/ overlay nodev rw
/dev tmpfs noexec nosuid ro
/dev/pts devpts noexec nosuid rw
/dev/shm tmpfs nodev nosuid rw
/proc proc nodev noexec nosuid rw
/proc/sys proc nodev noexec nosuid ro
""".strip()
REPORT = (
    Row(
        "mounts and their options",
        "for line in sorted(open('/proc/self/mountinfo'), key=lambda line: line.split()[4]):\n"
        "    fields, kind = line.split(' - ')[0].split(), line.split(' - ')[1].split()[0]\n"
        "    if fields[3] in ('/null', '/empty'): continue\n"
        "    options = sorted(set(fields[5].split(',')) & {'rw', 'ro', 'nodev', 'nosuid', 'noexec'})\n"
        "    print(fields[4], kind, *options)",
        _MOUNTS,
        "six mounts, with the options that they were made with",
        (ROOT,),
        python=True,
    ),
    Row("core files", "ulimit -Hc; ulimit -Sc", "0\n0", "RLIMIT_CORE is one byte, which a shell shows as 0 blocks"),
)
