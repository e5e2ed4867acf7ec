#define _GNU_SOURCE
#include "sentry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <termios.h>
#include <unistd.h>

#include "filter.h"
#include "raw.h"

/* Of what pid 1 has, commands of root get all but these: with them they could leave the session's root for the small
 * one. The filter refuses the calls too. */
static const int dropped[] = {CAP_SYS_ADMIN, CAP_SYS_CHROOT};

#define DEV SENTRY_ROOT "/dev"
#define GROUPS "/tmp/groups"
#define FAMILIES "/tmp/families"

enum { ANY_NUMBER = 1 << 22 }; /* it does not take the word `max` */
enum { LEFT_MAX = 256, NUMBER_CHARS = 12 };

static bool is_on;
static int group = -1; /* takes the number of a process */
static struct sock_filter program[FILTER_LENGTH_MAX];
static struct sock_fprog filter = {.filter = program};

void sentry_begin(void) {
    is_on = true;
    prctl(PR_SET_NAME, "sandlot-guest");
    filter.len = (unsigned short)filter_build_guarding(program);
}

bool sentry_is_on(void) { return is_on; }

const char *sentry_root(void) { return is_on ? SENTRY_ROOT : ""; }

/* A /dev of our own: gVisor's has more nodes, and lives on when the root is swapped. */
static bool make_devices(void) {
    static const struct {
        const char *path;
        unsigned major, minor;
    } nodes[] = {
        {DEV "/null", 1, 3},   {DEV "/zero", 1, 5},    {DEV "/full", 1, 7},
        {DEV "/random", 1, 8}, {DEV "/urandom", 1, 9}, {DEV "/tty", 5, 0},
    };
    static const char *const links[][2] = {
        {"/proc/self/fd", DEV "/fd"},         {"/proc/self/fd/0", DEV "/stdin"}, {"/proc/self/fd/1", DEV "/stdout"},
        {"/proc/self/fd/2", DEV "/stderr"}, {"pts/ptmx", DEV "/ptmx"},
    };
    if (mount("dev", DEV, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=64k") < 0) return false;
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (mknod(nodes[i].path, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0) return false;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]) < 0) return false;
    if (mkdir(DEV "/pts", 0755) < 0 || mkdir(DEV "/shm", 01777) < 0) return false;
    return mount("/dev/pts", DEV "/pts", NULL, MS_BIND, NULL) == 0 &&
           mount("shm", DEV "/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m") == 0;
}

/* It cannot be mounted read-only here. What root of the session breaks of it is made anew for the next program. */
static bool devices_are_whole(void) {
    struct stat null;
    return lstat(DEV "/null", &null) == 0 && S_ISCHR(null.st_mode) && (null.st_mode & 0777) == 0666;
}

int sentry_prepare(void) {
    struct statfs info;
    if (!is_on) return 0;
    if (statfs(SENTRY_ROOT "/proc", &info) < 0) return errno;
    bool is_mounted = info.f_type == PROC_SUPER_MAGIC;
    if (is_mounted && devices_are_whole()) return 0;
    mode_t mask = umask(0);
    if (is_mounted) (void)umount2(DEV, MNT_DETACH);
    /* /proc comes last: it is what is looked for. */
    bool made = make_devices() && (is_mounted || mount("proc", SENTRY_ROOT "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0);
    umask(mask);
    return made ? 0 : errno;
}

/* ---- the number of processes ------------------------------------------------------------------------------------ */

/* gVisor has the kernel's own means for it. Pid 1 is not in the group, so the limit is that of what it starts. */
static int open_group(void) {
    if (mkdir(GROUPS, 0755) < 0 && errno != EEXIST) return -1;
    if (mount("none", GROUPS, "cgroup", 0, "pids") < 0 || mkdir(GROUPS "/all", 0755) < 0) return -1;
    return open(GROUPS "/all/cgroup.procs", O_WRONLY | O_CLOEXEC);
}

int sentry_limit(uint64_t processes) {
    char text[24];
    if (!is_on) return EOPNOTSUPP;
    if (group < 0 && (group = open_group()) < 0) return errno;
    int fd = open(GROUPS "/all/pids.max", O_WRONLY | O_CLOEXEC);
    int length = snprintf(text, sizeof text, "%llu", (unsigned long long)(processes ? processes : ANY_NUMBER));
    int error = fd >= 0 && write(fd, text, (size_t)length) == length ? 0 : errno;
    if (fd >= 0) close(fd);
    return error;
}

long sentry_enter_group(void) {
    static const char self[] = "0";
    return group < 0 ? 0 : raw(SYS_write, group, (long)(intptr_t)self, 1, 0);
}

/* ---- families ---------------------------------------------------------------------------------------------------- */

/* gVisor knows no limit that could be a mark; it has a kind of group that does nothing but keep processes together. */
static enum { FAMILIES_UNTRIED, FAMILIES_KEPT, FAMILIES_UNKNOWN } families;
static uint64_t left[LEFT_MAX]; /* of those that are forgotten: someone lived in them */
static int left_count;

static bool keeps_families(void) {
    if (is_on && families == FAMILIES_UNTRIED) {
        bool made = (mkdir(FAMILIES, 0755) == 0 || errno == EEXIST) && mount("none", FAMILIES, "cgroup", 0, "job") == 0;
        families = made ? FAMILIES_KEPT : FAMILIES_UNKNOWN;
    }
    return is_on && families == FAMILIES_KEPT;
}

static void name_family(char path[64], uint64_t id, const char *file) {
    snprintf(path, 64, FAMILIES "/%llx%s", (unsigned long long)id, file);
}

int sentry_family_begin(uint64_t id) {
    char path[64];
    if (!keeps_families()) return -1;
    name_family(path, id, "");
    if (mkdir(path, 0755) < 0 && errno != EEXIST) return -1;
    name_family(path, id, "/cgroup.procs");
    return open(path, O_WRONLY | O_CLOEXEC);
}

int sentry_family(uint64_t id, pid_t *members, int room) {
    char path[64];
    int count = 0;
    if (!is_on || families != FAMILIES_KEPT) return 0;
    name_family(path, id, "/cgroup.procs");
    FILE *list = fopen(path, "re");
    if (list == NULL) return 0;
    for (char line[NUMBER_CHARS]; count < room && fgets(line, sizeof line, list);) members[count++] = (pid_t)strtol(line, NULL, 10);
    fclose(list);
    return count;
}

static bool remove_family(uint64_t id) {
    char path[64];
    name_family(path, id, "");
    return rmdir(path) == 0 || errno != EBUSY;
}

void sentry_family_end(uint64_t id) {
    if (!is_on || families != FAMILIES_KEPT) return;
    int still = 0;
    for (int i = 0; i < left_count; i++)
        if (!remove_family(left[i])) left[still++] = left[i];
    left_count = still;
    if (!remove_family(id) && left_count < LEFT_MAX) left[left_count++] = id;
}

long sentry_enter(void) {
    static const char root[] = SENTRY_ROOT, top[] = "/";
    if (!is_on) return 0;
    long result = raw(SYS_chroot, (long)(intptr_t)root, 0, 0, 0);
    if (result == 0) result = raw(SYS_chdir, (long)(intptr_t)top, 0, 0, 0);
    if (result == 0) result = raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)(intptr_t)&filter, 0);
    for (size_t i = 0; result == 0 && i < sizeof dropped / sizeof *dropped; i++)
        result = raw(SYS_prctl, PR_CAPBSET_DROP, dropped[i], 0, 0);
    return result;
}

/* ---- terminals -------------------------------------------------------------------------------------------------- */

/* May signal everyone and nothing else: whoever takes it over has nothing more than root of the session. */
static void attend(int terminal, int orders) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct only[2] = {{1u << CAP_KILL, 1u << CAP_KILL, 0}, {0, 0, 0}};
    raw(SYS_setpgid, 0, 0, 0, 0);
    raw(SYS_dup3, terminal, 0, 0, 0);
    raw(SYS_dup3, orders, 1, 0, 0);
    raw(SYS_close_range, 2, INT_MAX, 0, 0);
    if (sentry_enter() < 0) return;
    if (raw(SYS_capset, (long)(intptr_t)&header, (long)(intptr_t)only, 0, 0) < 0) return;
    for (;;) {
        uint8_t number = 0;
        int front = 0;
        long got = raw(SYS_read, 1, (long)(intptr_t)&number, 1, 0);
        if (got == -EINTR) continue;
        if (got != 1) return;
        if (raw(SYS_ioctl, 0, TIOCGPGRP, (long)(intptr_t)&front, 0) == 0 && front > 1) raw(SYS_kill, -front, number, 0, 0);
    }
}

/* Two forks, so that pid 1 is its parent and the program never meets a child that it did not make. */
long sentry_attend(int terminal, int orders) {
    if (!is_on) return 0;
    long between = raw(SYS_clone, SIGCHLD, 0, 0, 0);
    if (between < 0) return between;
    if (between == 0) {
        if (raw(SYS_clone, SIGCHLD, 0, 0, 0) == 0) attend(terminal, orders);
        for (;;) raw(SYS_exit_group, 0, 0, 0, 0);
    }
    while (raw(SYS_wait4, between, 0, 0, 0) == -EINTR) {}
    return 0;
}

static int signal_of(const struct termios *modes, uint8_t byte, uint8_t before) {
    bool line_begins = before == 0 || before == '\n' || before == '\r';
    if (byte == 0) return 0;
    if ((modes->c_lflag & ICANON) && byte == modes->c_cc[VEOF] && line_begins) return SIGHUP;
    if (!(modes->c_lflag & ISIG)) return 0;
    if (byte == modes->c_cc[VINTR]) return SIGINT;
    if (byte == modes->c_cc[VQUIT]) return SIGQUIT;
    return byte == modes->c_cc[VSUSP] ? SIGTSTP : 0;
}

size_t sentry_plain_keys(int terminal, int orders, uint8_t *last, const uint8_t *bytes, size_t count) {
    struct termios modes;
    if (!is_on || orders < 0 || tcgetattr(terminal, &modes) < 0) return count;
    for (size_t i = 0; i < count; i++) {
        uint8_t number = (uint8_t)signal_of(&modes, bytes[i], i > 0 ? bytes[i - 1] : *last);
        if (number == 0) continue;
        if (i == 0) {
            *last = 0;
            (void)!write(orders, &number, 1);
        }
        return i;
    }
    return count;
}
