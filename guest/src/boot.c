#define _GNU_SOURCE
#include "boot.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "filter.h"
#include "guest.h"
#include "kernel.h"
#include "wire.h"

/* What root may do inside; the rest is gone from the bounding set for good. */
static const int kept_capabilities[] = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP,
    CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_MKNOD, CAP_AUDIT_WRITE, CAP_SETFCAP,
};

/* Files of /proc that tell about the machine or command it. An own user namespace already refuses to write most. */
static const char *const masked_files[] = {
    "proc/kcore", "proc/keys", "proc/key-users", "proc/kmsg", "proc/sysrq-trigger", "proc/timer_list",
    "proc/sched_debug", "proc/latency_stats", "proc/cmdline",
};
static const char *const masked_directories[] = {"proc/acpi", "proc/scsi", "proc/asound"};

static int boot_socket;

static _Noreturn void fail(const char *stage) {
    uint8_t frame[128];
    size_t text = strlen(stage);
    put_u32(frame + HEADER_BYTES, (uint32_t)errno);
    memcpy(frame + HEADER_BYTES + 4, stage, text);
    put_header(frame, FRAME_BOOT_FAILED, 0, 0, (uint32_t)(4 + text));
    (void)!send(boot_socket, frame, HEADER_BYTES + 4 + text, MSG_NOSIGNAL);
    _exit(1);
}

static void need(bool fine, const char *stage) {
    if (!fine) fail(stage);
}

void boot_need(bool fine, const char *stage) { need(fine, stage); }

/* Leaves only standard streams on /dev/null and the listed descriptors. */
static void close_others(int *keep, int count) {
    /* The keeper's own input is /dev/null; its log is not for guests. */
    for (int fd = 1; fd < 3; fd++) need(dup2(0, fd) == fd, "standard streams");
    unsigned from = 3;
    for (;;) {
        unsigned lowest = ~0u;
        for (int i = 0; i < count; i++)
            if (keep[i] >= 0 && (unsigned)keep[i] >= from && (unsigned)keep[i] < lowest) lowest = (unsigned)keep[i];
        if (lowest > from) need(syscall(SYS_close_range, from, lowest == ~0u ? ~0u : lowest - 1, 0u) == 0, "close");
        if (lowest == ~0u) return;
        from = lowest + 1;
    }
}

static void wait_for_keeper(void) {
    char go;
    ssize_t got;
    while ((got = recv(boot_socket, &go, 1, 0)) < 0 && errno == EINTR) {}
    if (got != 1) _exit(1);
}

static void write_file(const char *path, const char *text, const char *stage) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    need(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), stage);
    close(fd);
}

static void mask(void) {
    /* Absent files need no mask. */
    for (size_t i = 0; i < sizeof masked_files / sizeof *masked_files; i++)
        need(mount("dev/null", masked_files[i], NULL, MS_BIND, NULL) == 0 || errno == ENOENT, "mask a file of /proc");
    for (size_t i = 0; i < sizeof masked_directories / sizeof *masked_directories; i++)
        need(mount("dev/empty", masked_directories[i], NULL, MS_BIND, NULL) == 0 || errno == ENOENT,
             "mask a directory of /proc");
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC};
    int tree = sys_open_tree(AT_FDCWD, "proc/sys", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    need(tree >= 0 && sys_mount_setattr(tree, "", AT_EMPTY_PATH, &read_only) == 0 &&
             sys_move_mount(tree, "", AT_FDCWD, "proc/sys", MOVE_MOUNT_F_EMPTY_PATH) == 0,
         "make /proc/sys read-only");
    close(tree);
}

static void build_root(const struct boot_plan *plan, int root, int devices) {
    (void)plan;
    need(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private mounts");
    need(sys_move_mount(root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) == 0, "attach root");
    need(fchdir(root) == 0, "enter root");
    need(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "mount /proc");
    need(sys_move_mount(devices, "", AT_FDCWD, "dev", MOVE_MOUNT_F_EMPTY_PATH) == 0, "attach /dev");
    need(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5,max=512") == 0,
         "mount /dev/pts");
    need(mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m,nr_inodes=16384") == 0,
         "mount /dev/shm");
    /* A filter cannot read the flags of clone3; this closes every way to a further user namespace. */
    write_file("proc/sys/user/max_user_namespaces", "0", "forbid user namespaces");
    mask();
    need(sys_pivot_root(".", ".") == 0, "pivot_root");
    need(umount2(".", MNT_DETACH) == 0, "leave the old root");
    need(chdir("/") == 0, "enter /");
}

static void loopback_up(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    need(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0, "loopback");
    close(fd);
}

static bool kept(int capability) {
    for (size_t i = 0; i < sizeof kept_capabilities / sizeof *kept_capabilities; i++)
        if (kept_capabilities[i] == capability) return true;
    return false;
}

static void drop_capabilities(void) {
    uint64_t mask_bits = 0;
    /* Up to the first number that this kernel does not know. */
    for (int capability = 0; capability < 64; capability++) {
        if (kept(capability)) mask_bits |= 1ull << capability;
        else if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            need(errno == EINVAL && capability > CAP_AUDIT_READ, "drop capabilities");
            break;
        }
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {0};
    data[0].effective = data[0].permitted = (uint32_t)mask_bits;
    data[1].effective = data[1].permitted = (uint32_t)(mask_bits >> 32);
    need(syscall(SYS_capset, &header, data) == 0, "set capabilities");
}

static void common_limits(void) {
    /* One byte: too small for any core file, and piped core handlers of the host are not run for it. */
    struct rlimit core = {1, 1};
    setrlimit(RLIMIT_CORE, &core);
    umask(022);
    prctl(PR_SET_NAME, "sandlot-guest");
}

/* Zero means whoever writes. That we may is decided by who opened the file. */
static void enter_groups(const struct boot_plan *plan) {
    for (int i = 0; i < plan->group_count; i++) {
        need(write(plan->groups[i], "0", 1) == 1, "enter a cgroup");
        close(plan->groups[i]);
    }
}

void boot_begin(const struct boot_plan *plan, int *keep, int count) {
    boot_socket = plan->socket;
    enter_groups(plan);
    close_others(keep, count);
    wait_for_keeper();
}

_Noreturn void boot_confined(const struct boot_plan *plan) {
    int keep[] = {plan->socket, plan->root, plan->devices};
    boot_begin(plan, keep, 3);
    need(setgroups(0, NULL) == 0 && setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0, "become root inside");
    /* Here rather than at birth: the namespace begins at the cgroup that we are in now. */
    need(unshare(CLONE_NEWCGROUP) == 0, "cgroup namespace");
    setsid();
    need(sethostname(plan->hostname, strlen(plan->hostname)) == 0, "hostname");
    build_root(plan, keep[1], keep[2]);
    close(keep[1]);
    close(keep[2]);
    int null = open("/dev/null", O_RDWR);
    need(null >= 0, "open /dev/null inside");
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    close(null);
    if (!plan->has_network) loopback_up();
    common_limits();
    need(filter_install() == 0, "install the filter");
    drop_capabilities();
    need(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "protect pid 1");
    guest_serve(boot_socket, true);
}

_Noreturn void boot_plain(const struct boot_plan *plan) {
    int keep[] = {plan->socket};
    boot_socket = plan->socket;
    close_others(keep, 1);
    boot_socket = keep[0];
    wait_for_keeper();
    setsid();
    common_limits();
    need(chdir(plan->directory) == 0, "enter the workspace");
    guest_serve(boot_socket, false);
}
