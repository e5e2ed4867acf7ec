#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "ahead.h"
#include "boot.h"
#include "kernel.h"
#include "root.h"
#include "runsc.h"
#include "view.h"
#include "wire.h"

/* Requests of the daemon, docs/protocol.md. A message: u32 kind, u32 zero, u64 request, then strings each ended by a
 * zero byte. A reply: u32 kind, i32 errno, u64 request, then strings. Descriptors travel beside. */
enum { ASK_HELLO = 1, ASK_START = 2, ASK_LIST = 3, ASK_ADOPT = 4, ASK_SWAP = 5, ASK_STOP = 6, ASK_LEAVE = 7, ASK_VIEW = 8, ASK_AHEAD = 9 };

enum {
    ASK_HEADER = 16,
    ASK_BYTES_MAX = 128 * 1024,
    STRINGS_MAX = 512,
    NAME_MAX_BYTES = 160,
    DAEMONS_MAX = 8,
    ASK_FDS_MAX = 1 + BOOT_GROUPS_MAX,
    EVENTS = 32,
    SOCKET_BUFFER = 1024 * 1024,
    IDLE_EXIT_MS = 20000, /* nobody to serve and nothing to hold */
    JANITOR_PAUSE_US = 2000,
};

enum kind { KIND_LISTEN, KIND_DAEMON, KIND_GUEST };

struct source {
    enum kind kind;
    int fd;
};

struct daemon {
    struct source source;
};

struct guest {
    struct guest *next;
    struct source death; /* the pidfd */
    char name[NAME_MAX_BYTES];
    char runtime[16];
    int range;
    pid_t pid;
    int host_end;
    bool dead;
    int stop_reply_fd; /* who waits for the end, or -1 */
    uint64_t stop_request;
};

static int events, data, janitor;
static struct source listener = {KIND_LISTEN, KEEPER_LISTEN_FD};
static struct daemon daemons[DAEMONS_MAX];
static struct guest *guests;
static bool leaving;

/* ---- replies --------------------------------------------------------------------------------------------------- */

struct reply {
    uint8_t bytes[1024];
    size_t length;
    int fds[4];
    int fd_count;
};

static void reply_begin(struct reply *reply, uint32_t kind, int error, uint64_t request) {
    uint8_t *at = put_u32(reply->bytes, kind);
    put_u64(put_u32(at, (uint32_t)error), request);
    reply->length = ASK_HEADER;
    reply->fd_count = 0;
}

static void reply_text(struct reply *reply, const char *text) {
    size_t size = strlen(text) + 1;
    if (reply->length + size > sizeof reply->bytes) return;
    memcpy(reply->bytes + reply->length, text, size);
    reply->length += size;
}

static void reply_number(struct reply *reply, long value) {
    char text[24];
    snprintf(text, sizeof text, "%ld", value);
    reply_text(reply, text);
}

static void reply_fd(struct reply *reply, int fd) { reply->fds[reply->fd_count++] = fd; }

static void reply_send(int to, struct reply *reply) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof reply->fds)];
    } control = {0};
    struct iovec part = {reply->bytes, reply->length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (reply->fd_count) {
        size_t size = sizeof(int) * (size_t)reply->fd_count;
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(size);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(size);
        memcpy(CMSG_DATA(header), reply->fds, size);
    }
    /* Blocking on purpose: the daemon reads its replies, and when it dies the call fails. */
    (void)!sendmsg(to, &message, MSG_NOSIGNAL);
}

static void refuse(int to, uint32_t kind, uint64_t request, int error, const char *why) {
    struct reply reply;
    reply_begin(&reply, kind, error ? error : EINVAL, request);
    reply_text(&reply, why);
    reply_send(to, &reply);
}

/* ---- the janitor ------------------------------------------------------------------------------------------------ */

/* Closes what is handed to it. The last reference to an overlay syncs a disk: that is waited for here only, and only
 * after a pause in which whoever gave it away has closed his own. */
static _Noreturn void janitor_run(int from) {
    prctl(PR_SET_NAME, "sandlot-janitor");
    for (;;) {
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(sizeof(int))];
        } control;
        char byte;
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
        ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
        if (got <= 0 && errno != EINTR) _exit(0);
        struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (header == NULL || header->cmsg_type != SCM_RIGHTS) continue;
        int fd;
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
        struct pollfd more = {.fd = from, .events = POLLIN};
        if (poll(&more, 1, 0) == 0) usleep(JANITOR_PAUSE_US);
        close(fd);
    }
}

static void start_janitor(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) _exit(1);
    pid_t pid = fork();
    if (pid < 0) _exit(1);
    if (pid == 0) {
        int end = dup2(ends[1], 3);
        syscall(SYS_close_range, 4u, ~0u, 0u);
        janitor_run(end);
    }
    close(ends[1]);
    janitor = ends[0];
}

static void give_to_janitor(int fd);

static void give_layers_to_janitor(struct layers *layers) {
    for (int i = 0; i < layers->count; i++) give_to_janitor(layers->fds[i]);
    layers->count = 0;
}

static void give_to_janitor(int fd) {
    if (fd < 0) return;
    struct reply note = {.bytes = "x", .length = 1, .fds = {fd}, .fd_count = 1};
    reply_send(janitor, &note);
    close(fd);
}

/* ---- /dev ------------------------------------------------------------------------------------------------------- */

static int fill_devices(int dir) {
    static const struct {
        const char *name;
        unsigned major, minor;
    } nodes[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
    static const char *const links[][2] = {
        {"/proc/self/fd", "fd"},         {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
        {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
    };
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (mknodat(dir, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0) return -1;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlinkat(links[i][0], dir, links[i][1]) < 0) return -1;
    return mkdirat(dir, "pts", 0755) | mkdirat(dir, "shm", 01777) | mkdirat(dir, "empty", 0555) ? -1 : 0;
}

/* A read-only tmpfs of the session's own: with shared nodes, one session could see by inotify and by locks what
 * another does. Detached: it appears in no mount table but the session's. */
static int make_devices(void) {
    int tree = -1, context = sys_fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (context < 0) return -1;
    if (sys_fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) == 0 &&
        sys_fsconfig(context, FSCONFIG_SET_STRING, "size", "64k", 0) == 0 &&
        sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        tree = sys_fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    close(context);
    if (tree < 0) return -1;
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY};
    umask(0);
    bool made = fill_devices(tree) == 0 && sys_mount_setattr(tree, "", AT_EMPTY_PATH, &read_only) == 0;
    umask(077);
    if (made) return tree;
    close(tree);
    return -1;
}

/* Whether one path lies above the other, or is it. */
static bool related(const char *one, const char *other) {
    size_t shorter = strlen(one), longer = strlen(other);
    if (shorter > longer) return related(other, one);
    return strncmp(one, other, shorter) == 0 && (other[shorter] == 0 || other[shorter] == '/' || shorter == 1);
}

/* Disks that storages mounted come and go: a copy of ours would keep one busy that is to go. root_look_outside has them. */
static bool is_of_storage(const char *point, const char *own) {
    size_t length = strlen(own);
    return strncmp(point, own, length) == 0 && strncmp(point + length, "/mounts/", 8) == 0;
}

/* Every guest starts with a copy of our mounts and drops it at once. So we let go of those that cannot hold a session's
 * files: a machine may have hundreds of them. */
static void shed_mounts(void) {
    static const char *const kinds[] = {"sysfs",   "cgroup",     "cgroup2",  "devpts", "devtmpfs",  "tmpfs",   "mqueue",
                                        "debugfs", "tracefs",    "bpf",      "pstore", "securityfs", "autofs", "overlay",
                                        "nsfs",    "hugetlbfs",  "configfs", "fusectl", "squashfs", "efivarfs",
                                        "ramfs",   "rpc_pipefs", "binfmt_misc"};
    char own[PATH_MAX], line[2 * PATH_MAX];
    FILE *list = fopen("/proc/self/mountinfo", "re");
    ssize_t length = readlink("/proc/self/cwd", own, sizeof own - 1);
    if (list == NULL || length < 0) return;
    own[length] = 0;
    while (fgets(line, sizeof line, list)) {
        char point[PATH_MAX], kind[64];
        const char *rest = strstr(line, " - ");
        if (rest == NULL || sscanf(line, "%*d %*d %*s %*s %4095s", point) != 1 || sscanf(rest, " - %63s", kind) != 1) continue;
        if (is_of_storage(point, own) || strstr(point, "/mounts/z-") || strcmp(kind, "fuse.zfs") == 0) umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW);
        if (strcmp(point, "/") == 0 || related(point, own)) continue;
        /* Storages of other engines are in files, too; and what is needed all the same is found outside. */
        if (strstr(rest, " /dev/loop")) umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (strcmp(kind, kinds[i]) == 0) umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW);
    }
    fclose(list);
}

static int host_mounts = -1; /* as they were; plain guests run there */

/* Needed by the first confined guest only; a keeper without root serves plain ones. */
static int prepare_confinement(void) {
    static bool prepared;
    if (prepared) return 0;
    if (host_mounts < 0) host_mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (host_mounts < 0 || unshare(CLONE_NEWNS) < 0) return -1;
    /* Mounts of the host still reach us, ours never reach the host. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) return -1;
    if (fchdir(data) < 0) return -1;
    shed_mounts();
    root_look_outside(host_mounts);
    prepared = true;
    return 0;
}

/* ---- guests ------------------------------------------------------------------------------------------------------ */

static struct guest *guest_find(const char *name) {
    for (struct guest *g = guests; g; g = g->next)
        if (strcmp(g->name, name) == 0) return g;
    return NULL;
}

static struct guest *guest_add(const char *name, const char *runtime, int range, pid_t pid, int host_end, int pidfd) {
    struct guest *guest = calloc(1, sizeof *guest);
    if (guest == NULL) return NULL;
    snprintf(guest->name, sizeof guest->name, "%s", name);
    snprintf(guest->runtime, sizeof guest->runtime, "%s", runtime);
    guest->range = range;
    guest->pid = pid;
    guest->host_end = host_end;
    guest->death = (struct source){KIND_GUEST, pidfd};
    guest->stop_reply_fd = -1;
    guest->next = guests;
    guests = guest;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &guest->death};
    epoll_ctl(events, EPOLL_CTL_ADD, pidfd, &event);
    return guest;
}

static void guest_remove(struct guest *guest) {
    for (struct guest **at = &guests; *at; at = &(*at)->next) {
        if (*at != guest) continue;
        *at = guest->next;
        break;
    }
    close(guest->host_end);
    close(guest->death.fd);
    free(guest);
}

struct ask {
    int from;
    uint32_t kind;
    uint64_t request;
    char *strings[STRINGS_MAX];
    int count;
    int fds[ASK_FDS_MAX];
    int fd_count;
};

static void no(const struct ask *ask, int error, const char *why) {
    refuse(ask->from, ask->kind, ask->request, error, why);
}

static void yes(const struct ask *ask) {
    struct reply reply;
    reply_begin(&reply, ask->kind, 0, ask->request);
    reply_send(ask->from, &reply);
}

/* clone3 without a stack: the child goes on in a copy of this process. `group`: a cgroup to be born in, or -1. */
static pid_t fork_guest(uint64_t flags, int group, int *pidfd) {
    struct clone_args arguments = {
        .flags = flags | CLONE_PIDFD | (group >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = group >= 0 ? (uint64_t)group : 0,
    };
    return sys_clone3(&arguments);
}

/* Without root's user id the kernel asks the cgroup's file whether we may put a process there. */
static int override_files(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct capabilities[2];
    if (syscall(SYS_capget, &header, capabilities) < 0) return -1;
    capabilities[0].effective |= 1u << CAP_DAC_OVERRIDE;
    return (int)syscall(SYS_capset, &header, capabilities);
}

static int make_channel(int *ends) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return -1;
    int size = SOCKET_BUFFER;
    for (int i = 0; i < 2; i++) setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    return 0;
}

static void confirm_start(const struct ask *ask, const char *name, const char *runtime, int range, pid_t pid, int host_end,
                          int pidfd) {
    if (guest_add(name, runtime, range, pid, host_end, pidfd) == NULL) {
        no(ask, ENOMEM, "remember the guest");
        close(host_end);
        close(pidfd);
        return;
    }
    (void)!send(host_end, "g", 1, MSG_NOSIGNAL);
    struct reply reply;
    reply_begin(&reply, ask->kind, 0, ask->request);
    reply_number(&reply, pid);
    reply_fd(&reply, host_end);
    reply_fd(&reply, pidfd);
    reply_send(ask->from, &reply);
}

/* Which descriptors came with a start: a directory is the cgroup to be born in, others are to be entered. */
static int sort_groups(const struct ask *ask, int *entered, int *count) {
    int birth = -1;
    *count = 0;
    for (int i = 0; i < ask->fd_count; i++) {
        struct stat info;
        if (fstat(ask->fds[i], &info) == 0 && S_ISDIR(info.st_mode)) birth = ask->fds[i];
        else if (*count < BOOT_GROUPS_MAX) entered[(*count)++] = ask->fds[i];
    }
    return birth;
}

enum { OWN_NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS };

static pid_t fork_owned(const struct root_plan *plan, int group, int *pidfd) {
    struct rlimit usual;
    root_become_owner(plan->range, plan->processes_max, &usual);
    if (group >= 0 && override_files() < 0) abort();
    pid_t pid = fork_guest((uint64_t)OWN_NAMESPACES | CLONE_NEWUSER | CLONE_NEWNET, group, pidfd);
    int error = errno;
    if (pid != 0) root_become_root(plan->processes_max, &usual);
    errno = error;
    return pid;
}

/* The same, in namespaces that are there already. */
static pid_t fork_ahead(const struct ahead *ready, const struct root_plan *plan, int group, int *pidfd) {
    struct rlimit usual;
    if (getrlimit(RLIMIT_NPROC, &usual) < 0) abort();
    root_limit_processes(plan->processes_max, &usual);
    pid_t pid = ahead_fork(ready, (uint64_t)OWN_NAMESPACES, group, pidfd);
    int error = errno;
    if (pid != 0 && setrlimit(RLIMIT_NPROC, &usual) < 0) abort();
    errno = error;
    return pid;
}

static void start_confined(const struct ask *ask, struct root_plan *plan, const char *hostname) {
    int ends[2], pidfd = -1;
    if (prepare_confinement() < 0) return no(ask, errno, "prepare confinement (root is needed)");
    static struct layers layers;
    int root = root_assemble(data, plan, &layers);
    if (root < 0) {
        no(ask, errno, root_error());
        give_layers_to_janitor(&layers);
        return;
    }
    int tree = make_devices();
    if (tree < 0 || make_channel(ends) < 0) {
        no(ask, errno, "make /dev");
        if (tree >= 0) close(tree);
        give_to_janitor(root);
        give_layers_to_janitor(&layers);
        return;
    }
    struct boot_plan boot = {.socket = ends[1], .root = root, .devices = tree, .hostname = hostname};
    int group = sort_groups(ask, boot.groups, &boot.group_count);
    struct ahead ready = ahead_take(plan->range, plan->processes_max);
    boot.has_network = ready.users >= 0;
    pid_t pid = boot.has_network ? fork_ahead(&ready, plan, group, &pidfd) : fork_owned(plan, group, &pidfd);
    if (pid == 0) boot_confined(&boot);
    int error = errno;
    ahead_drop(&ready);
    close(tree);
    close(ends[1]);
    if (pid > 0 && (boot.has_network || root_map_ids(pid, plan->range) == 0)) {
        confirm_start(ask, ask->strings[0], "namespaces", plan->range, pid, ends[0], pidfd);
        close(root); /* the guest holds its own copy by now, or has it inherited */
        give_layers_to_janitor(&layers);
        return;
    }
    if (pid > 0) error = errno;
    no(ask, error, pid < 0 ? "clone3" : "write the id maps");
    close(ends[0]); /* the half-made guest reads the end of its socket and goes */
    if (pidfd >= 0) close(pidfd);
    give_to_janitor(root);
    give_layers_to_janitor(&layers);
}

/* Made once: what every sandbox of gVisor stands on. */
static int small_root(void) {
    static int made = -1;
    if (made < 0) made = runsc_small_root();
    return made < 0 ? -1 : sys_open_tree(made, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
}

/* runsc is pid 1 of a pid namespace, so that its end is the end of all that it started. */
static void start_runsc(const struct ask *ask, struct root_plan *plan, const char *config, char **words) {
    enum { APART = CLONE_NEWNET + CLONE_NEWIPC, NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | APART };
    int ends[2], pidfd = -1;
    if (prepare_confinement() < 0) return no(ask, errno, "prepare confinement (root is needed)");
    static struct layers layers;
    int root = root_assemble(data, plan, &layers);
    if (root < 0) {
        no(ask, errno, root_error());
        give_layers_to_janitor(&layers);
        return;
    }
    int small = small_root();
    if (small < 0 || make_channel(ends) < 0) {
        no(ask, errno, "make the small root");
        if (small >= 0) close(small);
        give_to_janitor(root);
        give_layers_to_janitor(&layers);
        return;
    }
    struct runsc_plan start = {.boot = {.socket = ends[1], .root = root, .devices = small}, .config = config, .words = words};
    pid_t pid = fork_guest((uint64_t)NAMESPACES, sort_groups(ask, start.boot.groups, &start.boot.group_count), &pidfd);
    if (pid == 0) runsc_boot(&start);
    int error = errno;
    close(ends[1]);
    close(small);
    if (pid > 0) confirm_start(ask, ask->strings[0], "gvisor", plan->range, pid, ends[0], pidfd);
    else {
        no(ask, error, "clone3");
        close(ends[0]);
    }
    give_to_janitor(root);
    give_layers_to_janitor(&layers);
}

static void start_plain(const struct ask *ask, const char *directory) {
    int ends[2], pidfd = -1;
    if (make_channel(ends) < 0) return no(ask, errno, "socketpair");
    struct boot_plan boot = {.socket = ends[1], .root = -1, .devices = -1, .directory = directory};
    pid_t pid = fork_guest(0, sort_groups(ask, boot.groups, &boot.group_count), &pidfd);
    if (pid == 0) {
        if (host_mounts >= 0 && setns(host_mounts, CLONE_NEWNS) < 0) _exit(1);
        boot_plain(&boot);
    }
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return no(ask, error, "fork");
    }
    confirm_start(ask, ask->strings[0], "none", -1, pid, ends[0], pidfd);
}

static bool read_range(const char *text, int *range) {
    char *end;
    long value = strtol(text, &end, 10);
    *range = (int)value;
    return *text && *end == 0 && value >= 0 && value < RANGES_MAX;
}

/* A range, or with a colon behind it how many processes there may be. */
static bool read_birth(char *text, struct root_plan *plan) {
    char *colon = strchr(text, ':'), *end = NULL;
    if (colon) {
        *colon = 0;
        plan->processes_max = strtoul(colon + 1, &end, 10);
        if (colon[1] == 0 || *end != 0 || plan->processes_max == 0) return false;
    }
    return read_range(text, &plan->range);
}

/* name, gvisor, range, the text of config.json, a layer over the template or nothing, the number of words of runsc, these
 * words, template, volume, older layers. */
static void on_start_runsc(struct ask *ask) {
    enum { WORDS = 6, WORDS_MAX = 32 };
    struct root_plan plan = {0};
    char *words[WORDS_MAX + 1] = {NULL};
    long count = ask->count > WORDS ? strtol(ask->strings[5], NULL, 10) : 0;
    if (count < 1 || count > WORDS_MAX || ask->count < WORDS + count + 2 || !read_range(ask->strings[2], &plan.range))
        return no(ask, EINVAL, "malformed start");
    memcpy(words, ask->strings + WORDS, (size_t)count * sizeof *words);
    plan.extra_path = ask->strings[4];
    plan.template_path = ask->strings[WORDS + count];
    plan.volume_path = ask->strings[WORDS + count + 1];
    plan.layers = ask->strings + WORDS + count + 2;
    plan.layer_count = ask->count - WORDS - (int)count - 2;
    start_runsc(ask, &plan, ask->strings[3], words);
}

/* name, runtime, then for namespaces: hostname, range, template, volume, older layers; for none: directory. With it may
 * come descriptors: of the cgroup that the guest is born in, and of files of those that it enters. */
static void on_start(struct ask *ask) {
    if (ask->count < 3 || *ask->strings[0] == 0 || strlen(ask->strings[0]) >= NAME_MAX_BYTES)
        return no(ask, EINVAL, "malformed start");
    if (guest_find(ask->strings[0])) return no(ask, EEXIST, "a guest of that name is there");
    if (strcmp(ask->strings[1], "none") == 0) return start_plain(ask, ask->strings[2]);
    if (strcmp(ask->strings[1], "gvisor") == 0) return on_start_runsc(ask);
    struct root_plan plan = {0};
    if (strcmp(ask->strings[1], "namespaces") != 0 || ask->count < 6 || !read_birth(ask->strings[3], &plan))
        return no(ask, EINVAL, "malformed start");
    plan.template_path = ask->strings[4];
    plan.volume_path = ask->strings[5];
    plan.layers = ask->strings + 6;
    plan.layer_count = ask->count - 6;
    start_confined(ask, &plan, ask->strings[2]);
}

static void on_list(struct ask *ask) {
    for (struct guest *g = guests; g; g = g->next) {
        struct reply reply;
        reply_begin(&reply, ask->kind, 0, ask->request);
        reply_text(&reply, g->name);
        reply_text(&reply, g->runtime);
        reply_number(&reply, g->range);
        reply_number(&reply, g->pid);
        reply_fd(&reply, g->host_end);
        reply_fd(&reply, g->death.fd);
        reply_send(ask->from, &reply);
    }
    yes(ask);
}

/* A daemon that outlived the last keeper hands its guests to this one: name, runtime, range, pid; host end, pidfd. */
static void on_adopt(struct ask *ask) {
    int range = -1;
    if (ask->count != 4 || ask->fd_count != 2 || strlen(ask->strings[0]) >= NAME_MAX_BYTES)
        return no(ask, EINVAL, "malformed adopt");
    if (strcmp(ask->strings[1], "none") != 0 && !read_range(ask->strings[2], &range))
        return no(ask, EINVAL, "malformed range");
    if (guest_find(ask->strings[0])) return no(ask, EEXIST, "a guest of that name is there");
    pid_t pid = (pid_t)strtol(ask->strings[3], NULL, 10);
    if (guest_add(ask->strings[0], ask->strings[1], range, pid, ask->fds[0], ask->fds[1]) == NULL)
        return no(ask, ENOMEM, "remember the guest");
    ask->fd_count = 0; /* kept */
    yes(ask);
}

static bool is_runsc(const struct guest *guest) { return strcmp(guest->runtime, "gvisor") == 0; }

/* The number of an id range, with a colon how many processes there may be: a session that has both is likely to be next. */
static void on_ahead(struct ask *ask) {
    struct root_plan plan = {0};
    if (ask->count != 1 || !read_birth(ask->strings[0], &plan)) return no(ask, EINVAL, "malformed range");
    if (prepare_confinement() < 0) return no(ask, errno, "prepare confinement");
    if (ahead_make(plan.range, plan.processes_max) < 0) return no(ask, errno, "make namespaces ahead");
    yes(ask);
}

/* name, template, volume, older layers; under gVisor behind the name the layer over the template. */
static void on_swap(struct ask *ask) {
    struct guest *guest = ask->count >= 3 ? guest_find(ask->strings[0]) : NULL;
    if (guest == NULL || guest->dead) return no(ask, ESRCH, "no such guest");
    if (guest->range < 0) return no(ask, EOPNOTSUPP, "a guest without a root of its own");
    if (prepare_confinement() < 0) return no(ask, errno, "prepare confinement");
    int first = is_runsc(guest) ? 2 : 1;
    if (ask->count < first + 2) return no(ask, EINVAL, "malformed swap");
    struct root_plan plan = {
        .template_path = ask->strings[first],
        .volume_path = ask->strings[first + 1],
        .layers = ask->strings + first + 2,
        .layer_count = ask->count - first - 2,
        .extra_path = first == 2 ? ask->strings[1] : NULL,
        .range = guest->range,
    };
    static struct layers layers;
    int root = root_assemble(data, &plan, &layers), old = -1;
    if (root < 0) {
        no(ask, errno, root_error());
        give_layers_to_janitor(&layers);
        return;
    }
    int result = is_runsc(guest) ? runsc_swap(guest->pid, guest->death.fd, root, &old) : root_swap(guest->death.fd, root, &old);
    int error = errno;
    if (result < 0) no(ask, error, is_runsc(guest) ? runsc_error() : root_error());
    else yes(ask);
    give_to_janitor(old);
    give_to_janitor(root);
    give_layers_to_janitor(&layers);
}

/* name, then pairs of a path and its content. */
static void on_view(struct ask *ask) {
    struct guest *guest = ask->count >= 1 ? guest_find(ask->strings[0]) : NULL;
    if (guest == NULL || guest->dead) return no(ask, ESRCH, "no such guest");
    if (guest->range < 0 || is_runsc(guest)) return no(ask, EOPNOTSUPP, "a guest without mounts of its own");
    if (prepare_confinement() < 0) return no(ask, errno, "prepare confinement");
    if (view_show(guest->death.fd, ask->strings + 1, ask->count - 1) < 0) return no(ask, errno, "show the limits inside");
    yes(ask);
}

static void stopped(struct guest *guest) {
    if (guest->stop_reply_fd >= 0) {
        struct reply reply;
        reply_begin(&reply, ASK_STOP, 0, guest->stop_request);
        reply_send(guest->stop_reply_fd, &reply);
    }
    guest_remove(guest);
}

static void on_stop(struct ask *ask) {
    struct guest *guest = ask->count == 1 ? guest_find(ask->strings[0]) : NULL;
    if (guest == NULL) return no(ask, ESRCH, "no such guest");
    guest->stop_reply_fd = ask->from;
    guest->stop_request = ask->request;
    if (guest->dead) return stopped(guest);
    if (guest->range < 0) {
        /* A plain guest ends its own descendants when its socket closes. */
        shutdown(guest->host_end, SHUT_RDWR);
        return;
    }
    /* The guest's end would drop the last reference to its root, and whoever waits for it would wait for the disk. */
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/root", (int)guest->pid);
    int root = is_runsc(guest) ? runsc_root(guest->pid) : open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    sys_pidfd_send_signal(guest->death.fd, SIGKILL);
    give_to_janitor(root);
}

static void on_death(struct guest *guest) {
    epoll_ctl(events, EPOLL_CTL_DEL, guest->death.fd, NULL);
    guest->dead = true;
    if (guest->stop_reply_fd >= 0) stopped(guest);
}

/* ---- asks --------------------------------------------------------------------------------------------------------- */

static void on_ask(struct ask *ask) {
    switch (ask->kind) {
    case ASK_HELLO: {
        struct reply reply;
        reply_begin(&reply, ask->kind, 0, ask->request);
        reply_number(&reply, KEEPER_VERSION);
        reply_number(&reply, getpid());
        reply_send(ask->from, &reply);
        return;
    }
    case ASK_START: on_start(ask); return;
    case ASK_LIST: on_list(ask); return;
    case ASK_ADOPT: on_adopt(ask); return;
    case ASK_SWAP: on_swap(ask); return;
    case ASK_STOP: on_stop(ask); return;
    case ASK_VIEW: on_view(ask); return;
    case ASK_AHEAD: on_ahead(ask); return;
    case ASK_LEAVE:
        leaving = guests == NULL;
        /* Whoever connects from now on must meet nobody rather than someone who is about to go. */
        if (leaving) close(listener.fd);
        if (leaving) yes(ask);
        else no(ask, EBUSY, "guests are here");
        return;
    default: no(ask, EINVAL, "unknown request"); return;
    }
}

static bool split(uint8_t *bytes, size_t length, struct ask *ask) {
    size_t at = ASK_HEADER;
    while (at < length) {
        uint8_t *zero = memchr(bytes + at, 0, length - at);
        if (zero == NULL || ask->count == STRINGS_MAX) return false;
        ask->strings[ask->count++] = (char *)bytes + at;
        at = (size_t)(zero - bytes) + 1;
    }
    return true;
}

static void take_fds(struct msghdr *message, struct ask *ask) {
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        int count = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + sizeof(int) * (size_t)i, sizeof fd);
            if (ask->fd_count < ASK_FDS_MAX) ask->fds[ask->fd_count++] = fd;
            else close(fd);
        }
    }
}

/* Returns false when the daemon has gone. */
static bool hear(int from) {
    static uint8_t bytes[ASK_BYTES_MAX];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(ASK_FDS_MAX * sizeof(int))];
    } control;
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    struct ask ask = {.from = from};
    take_fds(&message, &ask);
    if (got < ASK_HEADER || (message.msg_flags & MSG_TRUNC)) {
        refuse(from, 0, 0, EINVAL, "malformed message");
    } else {
        ask.kind = get_u32(bytes);
        ask.request = get_u64(bytes + 8);
        if (split(bytes, (size_t)got, &ask)) on_ask(&ask);
        else no(&ask, EINVAL, "malformed strings");
    }
    for (int i = 0; i < ask.fd_count; i++) close(ask.fds[i]);
    return true;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------ */

static void daemon_add(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    bool trusted = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
    for (int i = 0; trusted && i < DAEMONS_MAX; i++) {
        if (daemons[i].source.fd >= 0) continue;
        daemons[i].source = (struct source){KIND_DAEMON, fd};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &daemons[i].source};
        epoll_ctl(events, EPOLL_CTL_ADD, fd, &event);
        return;
    }
    close(fd);
}

static void daemon_gone(struct source *source) {
    for (struct guest *g = guests; g; g = g->next)
        if (g->stop_reply_fd == source->fd) g->stop_reply_fd = -1;
    close(source->fd);
    source->fd = -1;
}

/* Guests are kept for the next daemon; but none comes to a data directory that was removed. */
static bool data_is_gone(void) {
    struct stat info;
    return fstat(data, &info) == 0 && info.st_nlink == 0;
}

static bool deserted(void) {
    for (int i = 0; i < DAEMONS_MAX; i++)
        if (daemons[i].source.fd >= 0) return false;
    return true;
}

static void handle(struct source *source) {
    if (source->kind == KIND_LISTEN) {
        int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) daemon_add(fd);
    } else if (source->kind == KIND_DAEMON) {
        if (source->fd >= 0 && !hear(source->fd)) daemon_gone(source);
    } else {
        for (struct guest *g = guests; g; g = g->next) {
            if (&g->death != source) continue;
            on_death(g);
            break;
        }
    }
}

int keeper_run(void) {
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    const int ignored[] = {SIGCHLD, SIGPIPE, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) sigaction(ignored[i], &ignore, NULL);
    setsid();
    umask(077);
    prctl(PR_SET_NAME, "sandlot-keeper");
    data = KEEPER_DATA_FD;
    for (int fd = 3; fd < 6; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, 6u, ~0u, 0u);
    if (fchdir(data) < 0) return 1;
    for (int i = 0; i < DAEMONS_MAX; i++) daemons[i].source.fd = -1;
    start_janitor();
    events = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener};
    if (events < 0 || epoll_ctl(events, EPOLL_CTL_ADD, listener.fd, &event) < 0) return 1;
    daemon_add(KEEPER_DAEMON_FD);
    while (!leaving) {
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(events, ready, EVENTS, deserted() ? IDLE_EXIT_MS : -1);
        if (count == 0 && deserted() && (guests == NULL || data_is_gone())) break;
        for (int i = 0; i < count; i++) handle(ready[i].data.ptr);
    }
    return 0;
}
