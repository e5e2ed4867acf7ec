"""System calls that must not get through."""

from sandlot.attack.rows import ROOT, USER, Row, attempt

_FILTER = "the filter refuses {}"
_NO_ADMIN = "CAP_SYS_ADMIN is not in the bounding set"
_NO_USER_NAMESPACES = "max_user_namespaces is 0 in the session, and its /proc/sys is read-only"

_NAMESPACES = {
    "time": 0x80,
    "mount": 0x20000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_NEW_USER = 0x10000000

MOUNTS = (
    attempt("mount", "mount @none @/mnt @tmpfs 0 0", "EPERM", _FILTER.format("mount")),
    attempt("bind mount", "mount @/etc @/mnt @ 0x1000 0", "EPERM", _FILTER.format("mount")),
    attempt("remount read-write", "mount @none @/dev @ 0x20 0", "EPERM", _FILTER.format("mount")),
    attempt("umount", "umount2 @/proc/cmdline 2", "EPERM", _FILTER.format("umount2, so masks cannot be lifted")),
    attempt("pivot_root", "pivot_root @/mnt @/mnt", "EPERM", _FILTER.format("pivot_root")),
    attempt("fsopen", "fsopen @tmpfs 0", "EPERM", _FILTER.format("fsopen")),
    attempt("open_tree", "open_tree -100 @/ 1", "EPERM", _FILTER.format("open_tree")),
    attempt("move_mount", "move_mount -100 @/etc -100 @/mnt 0", "EPERM", _FILTER.format("move_mount")),
    attempt("mount_setattr", "mount_setattr -100 @/dev 0 zeros 32", "EPERM", _FILTER.format("mount_setattr")),
    attempt("open_tree_attr", "open_tree_attr -100 @/ 1 zeros 32", "ENOSYS", "the filter knows calls up to 466"),
    attempt("listmount", "listmount zeros zeros 8 0", "EPERM", _FILTER.format("listmount")),
    Row("the program mount", "mount -t tmpfs none /mnt 2>/dev/null || echo refused", "refused", _NO_ADMIN),
)

NEW_NAMESPACES = (
    Row("unshare -Ur", "unshare -Ur true 2>/dev/null || echo refused", "refused", _FILTER.format("unshare")),
    attempt("unshare user", f"unshare {_NEW_USER}", "EPERM", _FILTER.format("unshare")),
    attempt("clone new user", f"old-clone {_NEW_USER}", "EPERM", _FILTER.format("clone with namespace flags")),
    attempt("clone3 new user", f"new-clone {_NEW_USER}", "ENOSPC", _NO_USER_NAMESPACES),
    attempt("clone3 new user and mount", f"new-clone {_NEW_USER | 0x20000}", "ENOSPC", _NO_USER_NAMESPACES),
    *(
        attempt(f"clone new {name}", f"old-clone {flag}", "EPERM", _FILTER.format("clone with namespace flags"))
        for name, flag in _NAMESPACES.items()
        if name != "time"  # in the old call that bit belongs to the number of a signal
    ),
    *(attempt(f"clone3 new {name}", f"new-clone {flag}", "EPERM", _NO_ADMIN) for name, flag in _NAMESPACES.items()),
    Row(
        "setns to the own namespace",
        f"exec 9</proc/self/ns/mnt; /usr/local/bin/attempt setns 9 {0x20000}",
        "EPERM",
        _FILTER.format("setns"),
    ),
    Row(
        "raise max_user_namespaces",
        "(echo 9 >/proc/sys/user/max_user_namespaces) 2>/dev/null || cat /proc/sys/user/max_user_namespaces",
        "0",
        "/proc/sys is mounted read-only",
    ),
    Row(
        "parent of the user namespace",
        "import fcntl\ntell(lambda: fcntl.ioctl(os.open('/proc/self/ns/user', os.O_RDONLY), 0xb702))",
        "EPERM",
        "the parent is the host's namespace, and a namespace gives nothing out of its scope",
        python=True,
    ),
    attempt("mount namespace by pidfd", "pidfd 1 0xff03", "EACCES", "pid 1 is undumpable, so its pidfd gives nothing"),
)

# With zeros for arguments: the filter answers before the kernel looks at them.
_REFUSED = (
    "open_by_handle_at name_to_handle_at bpf perf_event_open userfaultfd io_uring_setup io_uring_enter keyctl add_key "
    "request_key init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff settimeofday "
    "clock_settime adjtimex clock_adjtime iopl ioperm modify_ldt acct quotactl quotactl_fd syslog fanotify_init kcmp "
    "pidfd_getfd lookup_dcookie move_pages migrate_pages mbind set_mempolicy vhangup fspick fsmount lsm_list_modules"
)

# With arguments that would work, were it not for the filter.
_WOULD_WORK = {
    "add a key": "add_key @user @attack @x 1 -3",
    "an io_uring": "io_uring_setup 8 zeros",
    "faults of the own memory": "userfaultfd 1",
    "a watch of all files": "fanotify_init 0x200 0",
    "a table of segments": "modify_ldt 0 0 0",
    "a policy for memory": "set_mempolicy 0 0 0",
}

KERNEL = (
    *(attempt(name, name, "EPERM", _FILTER.format(name)) for name in _REFUSED.split()),
    *(attempt(name, words, "EPERM", _FILTER.format(words.split()[0])) for name, words in _WOULD_WORK.items()),
)

CAPABILITIES = (
    attempt("sethostname", "sethostname @x 1", "EPERM", _NO_ADMIN),
    attempt("setdomainname", "setdomainname @x 1", "EPERM", _NO_ADMIN),
    Row(
        "real-time priority",
        "tell(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))",
        "EPERM",
        "CAP_SYS_NICE is not in the bounding set",
        python=True,
    ),
    attempt("higher priority", "setpriority 0 0 -5", "EACCES", "CAP_SYS_NICE is not in the bounding set"),
    attempt("real-time disk class", "ioprio_set 1 0 0x2000", "EPERM", "CAP_SYS_ADMIN and CAP_SYS_NICE are not there"),
    attempt("chroot", "chroot @/workspace", "EPERM", "only root has CAP_SYS_CHROOT", (USER,)),
    attempt(
        "leave a chroot", "leave-chroot", "own root", "the session's root is the top of its mount namespace", (ROOT,)
    ),
    attempt("other people's ids", "setuid 65536", "EINVAL", "the id map ends at 65535"),
    attempt("ids of the host", "setresuid %host_uid% %host_uid% %host_uid%", "EINVAL", "the id map has no such id"),
    attempt(
        "personality", "personality 0x0400000", "EPERM", _FILTER.format("personality but for three harmless values")
    ),
)

PID_ONE = (
    attempt(
        "ptrace attach", "ptrace 16 1 0 0", "EPERM", "pid 1 is undumpable and its memory is the initial namespace's"
    ),
    attempt("ptrace seize", "ptrace 0x4206 1 0 0", "EPERM", "pid 1 is undumpable and CAP_SYS_PTRACE is not there"),
    attempt("process_vm_readv", "read-memory 1", "EPERM", "pid 1 is undumpable and CAP_SYS_PTRACE is not there"),
    attempt("process_vm_writev", "write-memory 1", "EPERM", "pid 1 is undumpable and CAP_SYS_PTRACE is not there"),
    attempt("kill pid 1 as user", "kill 1 9", "EPERM", "pid 1 belongs to root", (USER,)),
    attempt("limits of pid 1", "prlimit64 1 4 zeros 0", "EPERM", "the filter guards pid 1: no starving it"),
    attempt("priority of pid 1", "setpriority 0 1 1", "EPERM", "the filter guards pid 1: no slowing it down"),
)

ENTRIES = (
    Row(
        "32-bit entry",
        "said=$(/usr/local/bin/attempt old-entry 20); case $said in ENOSYS|'no such entry') echo refused;; esac",
        "refused",
        "the filter refuses every architecture but its own",
    ),
    Row("x32 entry", "/usr/local/bin/attempt sweep 0x40000027", "0x40000027 ENOSYS", "x32 numbers are above the last"),
)

TERMINALS = (
    Row("TIOCSTI", "/usr/local/bin/attempt terminal 0x5412", "EPERM", _FILTER.format("TIOCSTI"), terminal=True),
    Row("TIOCLINUX", "/usr/local/bin/attempt terminal 0x541c", "EPERM", _FILTER.format("TIOCLINUX"), terminal=True),
)

_FAMILIES = {
    "AF_PACKET": 17,
    "AF_VSOCK": 40,
    "AF_ALG": 38,
    "AF_KEY": 15,
    "AF_XDP": 44,
    "AF_BLUETOOTH": 31,
    "AF_CAN": 29,
}

SOCKETS = (
    *(
        attempt(
            name, f"socket {family} 3 0", "EAFNOSUPPORT", "the filter lets four families pass, this is none of them"
        )
        for name, family in _FAMILIES.items()
    ),
    attempt("raw socket", "socket 2 3 1", "EPERM", "CAP_NET_RAW is not in the bounding set"),
    attempt("raw socket, version 6", "socket 10 3 58", "EPERM", "CAP_NET_RAW is not in the bounding set"),
)
