"""What the filter refuses, as a list to read: whoever changes the filter changes this too."""

REFUSED = {
    "mounts and roots": (
        "mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr quotactl "
        "quotactl_fd swapon swapoff statmount listmount"
    ),
    "namespaces": "unshare setns",
    "the kernel itself": (
        "init_module finit_module delete_module kexec_load kexec_file_load reboot bpf perf_event_open syslog acct "
        "lookup_dcookie fanotify_init fanotify_mark vhangup lsm_get_self_attr lsm_set_self_attr lsm_list_modules"
    ),
    "clocks of the machine": "settimeofday clock_settime clock_adjtime adjtimex",
    "keys": "add_key request_key keyctl",
    "files without a path, descriptors of others": "open_by_handle_at name_to_handle_at pidfd_getfd kcmp",
    "large and rarely needed": "userfaultfd io_uring_setup io_uring_enter io_uring_register",
    "memory placement": "move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node",
    "old": "nfsservctl iopl ioperm create_module get_kernel_syms query_module uselib ustat sysfs _sysctl modify_ldt",
}

LAST_KNOWN = 466  # later calls answer ENOSYS until someone has read what they do

FAMILIES_ALLOWED = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
PERSONALITIES_ALLOWED = {"default": 0, "32 bit": 0x8, "no address randomisation": 0x40000, "query": 0xFFFFFFFF}
TERMINAL_REQUESTS_REFUSED = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
NAMESPACE_FLAGS = {
    "time": 0x80,
    "mount": 0x20000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}


def refused_names() -> list[str]:
    return [name for names in REFUSED.values() for name in names.split()]


# Calls that change another process, and which argument names it: pid 1 is out of reach.
PID_ONE_GUARDED = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setscheduler": 0,
    "sched_setparam": 0,
    "sched_setattr": 0,
    "setpriority": 1,
    "ioprio_set": 1,
}
