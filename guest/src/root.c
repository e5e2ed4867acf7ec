#define _GNU_SOURCE
#include "root.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernel.h"
#include "raw.h"

enum { TEXT_BYTES = 512 };

static char problem[TEXT_BYTES];

const char *root_error(void) { return problem; }

static int failed(const char *what) {
    int saved = errno;
    snprintf(problem, sizeof problem, "%s", what);
    errno = saved;
    return -1;
}

uint32_t range_first_id(int range) { return (uint32_t)DISK_FIRST_ID + (uint32_t)RANGE_IDS * (uint32_t)(range + 1); }

/* ---- user namespaces that only carry an id map ----------------------------------------------------------------- */

struct range_maps {
    int template_map; /* 0.. on disk -> the session's range */
    int volume_map;   /* canonical range on disk -> the session's range; 0 -> 0, or the kernel cannot make the work directory */
};

static struct range_maps *maps;
static int maps_count;

static int write_map(pid_t pid, const char *file, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t wrote = write(fd, text, strlen(text));
    close(fd);
    return wrote == (ssize_t)strlen(text) ? 0 : -1;
}

static int write_maps(pid_t pid, const char *text) {
    return write_map(pid, "uid_map", text) == 0 && write_map(pid, "gid_map", text) == 0 ? 0 : -1;
}

/* Shares our memory, so raw calls only. It must not outlive us: it would hold copies of our descriptors, and with them
 * the lines of guests that nobody serves any more. */
static int rest(void *keeper) {
    raw(SYS_close_range, 0, ~0u, 0, 0);
    raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
    while (raw(SYS_getppid, 0, 0, 0, 0) == (long)(intptr_t)keeper) {
        uint64_t second[2] = {1, 0};
        raw(SYS_nanosleep, (long)(intptr_t)second, 0, 0, 0);
    }
    return 0;
}

static int open_namespace(pid_t pid, const char *kind) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, kind);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* A namespace needs a process only while it is made. It shares our memory, so it costs no page tables. */
static pid_t make_resting(int flags, int *pidfd) {
    static char stack[16384] __attribute__((aligned(16)));
    flags |= CLONE_NEWUSER | CLONE_VM | CLONE_PIDFD | SIGCHLD;
    return clone(rest, stack + sizeof stack, flags, (void *)(intptr_t)getpid(), pidfd);
}

/* Gives its user namespace, with these maps, and its network when that is asked for; and ends it. */
static int take_namespaces(pid_t pid, int pidfd, const char *users, const char *groups, int *network) {
    int fd = -1;
    if (pid < 0) return failed("create an id map");
    if (write_map(pid, "uid_map", users) < 0 || write_map(pid, "gid_map", groups) < 0 || (fd = open_namespace(pid, "user")) < 0) failed("write an id map");
    if (fd >= 0 && network && (*network = open_namespace(pid, "net")) < 0) {
        failed("open a network");
        int why = errno;
        close(fd);
        fd = -1;
        errno = why;
    }
    int saved = errno;
    sys_pidfd_send_signal(pidfd, SIGKILL);
    /* The stack is reused: the process must be gone before we return. */
    siginfo_t info;
    waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED);
    close(pidfd);
    errno = saved;
    return fd;
}

static int make_map(const char *users, const char *groups) {
    int pidfd = -1;
    pid_t pid = make_resting(0, &pidfd);
    return take_namespaces(pid, pidfd, users, groups, NULL);
}

int root_make_namespaces(int range, unsigned long processes_max, int *network) {
    int pidfd = -1;
    struct rlimit usual;
    root_become_owner(range, processes_max, &usual);
    pid_t pid = make_resting(CLONE_NEWNET, &pidfd);
    int saved = errno;
    root_become_root(processes_max, &usual);
    errno = saved;
    char text[64];
    snprintf(text, sizeof text, "0 %u %d\n", range_first_id(range), RANGE_IDS);
    return take_namespaces(pid, pidfd, text, text, network);
}

static const struct range_maps *range_maps(int range) {
    if (range >= maps_count) {
        int wanted = range + 64;
        struct range_maps *grown = realloc(maps, (size_t)wanted * sizeof *grown);
        if (grown == NULL) return NULL;
        maps = grown;
        for (; maps_count < wanted; maps_count++) maps[maps_count] = (struct range_maps){-1, -1};
    }
    struct range_maps *entry = &maps[range];
    char text[128];
    if (entry->template_map < 0) {
        snprintf(text, sizeof text, "0 %u %d\n", range_first_id(range), RANGE_IDS);
        if ((entry->template_map = make_map(text, text)) < 0) return NULL;
    }
    if (entry->volume_map < 0) {
        snprintf(text, sizeof text, "0 0 1\n%d %u %d\n", DISK_FIRST_ID, range_first_id(range), RANGE_IDS);
        if ((entry->volume_map = make_map(text, text)) < 0) return NULL;
    }
    return entry;
}

void root_become_owner(int range, unsigned long processes_max, struct rlimit *usual) {
    uid_t owner = range_first_id(range);
    if (setresgid((gid_t)-1, owner, (gid_t)-1) < 0 || setresuid(owner, owner, (uid_t)-1) < 0) abort();
    if (getrlimit(RLIMIT_NPROC, usual) < 0) abort();
    root_limit_processes(processes_max, usual);
}

void root_limit_processes(unsigned long processes_max, const struct rlimit *usual) {
    struct rlimit lowered = {processes_max < usual->rlim_max ? processes_max : usual->rlim_max, usual->rlim_max};
    if (processes_max > 0 && setrlimit(RLIMIT_NPROC, &lowered) < 0) abort();
}

void root_become_root(unsigned long processes_max, const struct rlimit *usual) {
    if (setresuid(0, 0, (uid_t)-1) < 0 || setresgid((gid_t)-1, 0, (gid_t)-1) < 0) abort();
    if (processes_max > 0 && setrlimit(RLIMIT_NPROC, usual) < 0) abort();
}

int root_map_ids(pid_t pid, int range) {
    char text[64];
    snprintf(text, sizeof text, "0 %u %d\n", range_first_id(range), RANGE_IDS);
    return write_maps(pid, text);
}

/* ---- assembling ------------------------------------------------------------------------------------------------ */

/* A detached clone of one directory, seen through an id map. */
static int mapped_clone(int data, const char *path, int map) {
    int fd = sys_open_tree(data, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0) return failed("open a layer");
    struct mount_attr attributes = {
        .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NODEV,
        .propagation = MS_PRIVATE,
        .userns_fd = (uint64_t)map,
    };
    if (sys_mount_setattr(fd, "", AT_EMPTY_PATH, &attributes) < 0) {
        failed("id-map a layer");
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

/* The kernel's own words, if it has any. */
static int overlay_failed(int context, const char *what) {
    int saved = errno;
    char words[256];
    ssize_t got = read(context, words, sizeof words - 1);
    words[got > 0 ? got : 0] = 0;
    words[strcspn(words, "\n")] = 0;
    snprintf(problem, sizeof problem, "%s%s%s", what, *words ? ": " : "", words);
    errno = saved;
    return -1;
}

/* Clones must stay open until the overlay is made: closing a detached mount dissolves it. */
static int keep_open(struct layers *layers, int fd) {
    if (fd >= 0) layers->fds[layers->count++] = fd;
    return fd;
}

/* Layers of one storage lie beside each other. One clone of the directory that holds them, the shelf, serves them all. */
struct shelf {
    int fd;
    const char *path; /* not ended */
    size_t length;    /* with its last slash */
};

static int outside = -1;

void root_look_outside(int mounts) { outside = mounts; }

/* As mapped_clone, of what is mounted in the namespace that the host lives in, and not in ours. */
static int clone_outside(int data, const char *path, int map) {
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = -1, saved;
    if (home < 0 || cwd < 0) {
        failed("remember where we stand");
    } else if (setns(outside, CLONE_NEWNS) < 0) {
        failed("enter the namespace of the host");
    } else {
        fd = mapped_clone(data, path, map);
        saved = errno;
        /* A keeper that cannot come home must not go on: it would act on the host's tree. */
        if (setns(home, CLONE_NEWNS) < 0 || fchdir(cwd) < 0) abort();
        errno = saved;
    }
    saved = errno;
    if (home >= 0) close(home);
    if (cwd >= 0) close(cwd);
    errno = saved;
    return fd;
}

static int open_shelf(struct layers *layers, int data, const char *volume_path, int map, struct shelf *shelf) {
    const char *slash = strrchr(volume_path, '/');
    char path[PATH_MAX];
    if (slash == NULL || (size_t)(slash - volume_path) >= sizeof path - 1) {
        errno = EINVAL;
        return failed("the path of the volume");
    }
    shelf->path = volume_path;
    shelf->length = (size_t)(slash - volume_path) + 1;
    snprintf(path, sizeof path, "%.*s", (int)shelf->length, volume_path);
    int fd = mapped_clone(data, path, map);
    if (fd < 0 && errno == ENOENT && outside >= 0) fd = clone_outside(data, path, map);
    shelf->fd = keep_open(layers, fd);
    return shelf->fd < 0 ? -1 : 0;
}

/* Of a path on the shelf; nothing on the way may be a link or a mount. */
static int take_from(const struct shelf *shelf, struct layers *layers, const char *path) {
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
    };
    if (strncmp(path, shelf->path, shelf->length) != 0) {
        errno = EXDEV;
        return failed("a layer lies elsewhere");
    }
    int fd = keep_open(layers, sys_openat2(shelf->fd, path + shelf->length, &how));
    return fd < 0 ? failed("open a layer") : fd;
}

static int add(int context, const char *key, int fd) {
    if (fd < 0) return -1;
    return sys_fsconfig(context, FSCONFIG_SET_FD, key, NULL, fd) < 0 ? overlay_failed(context, key) : 0;
}

static int add_upper(int context, const struct shelf *shelf, struct layers *layers, const char *path) {
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s/u", path);
    if (add(context, "upperdir", take_from(shelf, layers, part)) < 0) return -1;
    snprintf(part, sizeof part, "%s/w", path);
    return add(context, "workdir", take_from(shelf, layers, part));
}

/* A template that was made here carries the canonical ids, like volumes; the built-in one those of the machine. */
static int template_clone(int data, const char *path, const struct range_maps *range) {
    struct stat info;
    if (fstatat(data, path, &info, AT_SYMLINK_NOFOLLOW) < 0) return failed("open the template");
    return mapped_clone(data, path, info.st_uid >= DISK_FIRST_ID ? range->volume_map : range->template_map);
}

static int configure(int context, struct layers *layers, int data, const struct root_plan *plan) {
    static const char *const options[][2] = {{"redirect_dir", "on"}, {"metacopy", "on"}, {"source", "sandlot"}};
    const struct range_maps *range = range_maps(plan->range);
    if (range == NULL) return -1;
    if (plan->layer_count > LAYERS_MAX - 5) {
        errno = E2BIG;
        return failed("too many layers");
    }
    struct shelf shelf;
    if (open_shelf(layers, data, plan->volume_path, range->volume_map, &shelf) < 0) return -1;
    for (int i = 0; i < plan->layer_count; i++)
        if (add(context, "lowerdir+", take_from(&shelf, layers, plan->layers[i])) < 0) return -1;
    const char *below[] = {plan->extra_path, plan->template_path};
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        if (below[i] == NULL || *below[i] == 0) continue;
        if (add(context, "lowerdir+", keep_open(layers, template_clone(data, below[i], range))) < 0) return -1;
    }
    if (add_upper(context, &shelf, layers, plan->volume_path) < 0) return -1;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (sys_fsconfig(context, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0) < 0)
            return overlay_failed(context, options[i][0]);
    if (sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0) return overlay_failed(context, "mount overlay");
    return 0;
}

/* The kernel mounts an overlay read-only without a word when the id map or the space is wrong. */
static int test_write(int root, int range) {
    uid_t id = range_first_id(range);
    setfsgid(id);
    setfsuid(id);
    int fd = openat(root, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    int saved = errno;
    setfsuid(0);
    setfsgid(0);
    if (fd >= 0) close(fd);
    errno = saved;
    return fd >= 0 ? 0 : failed("test write");
}

/* ---- volumes of users ------------------------------------------------------------------------------------------ */

/* What a layer's path never begins with. Behind it, each on its own line: whether it is read only, who owns the
 * directory and who that is to be in the session (or nothing, for files in the canonical range), where it goes, and
 * where it comes from. */
enum { MOUNT_MARK = '+', MOUNT_FIELDS = 6 };

static int map_of_mount(char **fields, int range, bool *own) {
    const struct range_maps *known = range_maps(range);
    *own = *fields[1] != 0;
    if (!*own) return known == NULL ? -1 : known->volume_map;
    char users[64], groups[64];
    unsigned inside = range_first_id(range) + (unsigned)strtoul(fields[3], NULL, 10);
    snprintf(users, sizeof users, "%lu %u 1\n", strtoul(fields[1], NULL, 10), inside);
    snprintf(groups, sizeof groups, "%lu %u 1\n", strtoul(fields[2], NULL, 10), inside);
    return make_map(users, groups);
}

/* Nothing on the way may be a link: where the path leads was decided once, when the session was made. */
static int clone_mount(int data, const char *source, int map, bool read_only) {
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int found = sys_openat2(data, source, &how);
    if (found < 0) return failed("open a volume");
    int fd = sys_open_tree(found, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    struct mount_attr attributes = {
        .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | (read_only ? MOUNT_ATTR_RDONLY : 0),
        .propagation = MS_PRIVATE,
        .userns_fd = (uint64_t)map,
    };
    if (fd < 0 || sys_mount_setattr(fd, "", AT_EMPTY_PATH, &attributes) < 0) {
        failed("id-map a volume");
        int saved = errno;
        if (fd >= 0) close(fd);
        fd = -1;
        errno = saved;
    }
    int saved = errno;
    close(found);
    errno = saved;
    return fd;
}

/* One step into the session's own files, made when it is missing. A link or a mount on the way is not followed. */
static int step_into(int above, const char *name, uid_t owner) {
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
    };
    int fd = sys_openat2(above, name, &how);
    if (fd >= 0 || errno != ENOENT) return fd;
    mode_t kept = umask(0);
    int made = mkdirat(above, name, 0755);
    umask(kept);
    if (made < 0 && errno != EEXIST) return -1;
    fd = sys_openat2(above, name, &how);
    if (fd >= 0 && fchownat(fd, "", owner, owner, AT_EMPTY_PATH) < 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static int open_place(int root, char *path, uid_t owner) {
    int here = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char *rest = path;
    for (char *name; here >= 0 && (name = strsep(&rest, "/")) != NULL;) {
        if (*name == 0) continue;
        int below = step_into(here, name, owner);
        int saved = errno;
        close(here);
        errno = saved;
        here = below;
    }
    return here < 0 ? failed("the place of a volume is a link or no directory") : here;
}

static int attach_mount(int root, int data, const char *word, int range) {
    char text[2 * PATH_MAX + 64], *rest = text + 1, *fields[MOUNT_FIELDS] = {0};
    bool own = false;
    snprintf(text, sizeof text, "%s", word);
    for (int i = 0; i < MOUNT_FIELDS; i++)
        if ((fields[i] = strsep(&rest, "\n")) == NULL) {
            errno = EINVAL;
            return failed("read a mount");
        }
    int map = map_of_mount(fields, range, &own);
    if (map < 0) return -1;
    int place = -1, result = -1, tree = clone_mount(data, fields[5], map, strcmp(fields[0], "ro") == 0);
    if (tree >= 0 && (place = open_place(root, fields[4], range_first_id(range))) >= 0) {
        result = sys_move_mount(tree, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
        if (result < 0) failed("attach a volume");
    }
    int saved = errno;
    if (own) close(map);
    if (tree >= 0) close(tree);
    if (place >= 0) close(place);
    errno = saved;
    return result;
}

/* Mounts stand behind the layers. Attached to a root that nobody has yet: they go wherever it goes. */
static int attach_mounts(int root, int data, const struct root_plan *plan, int layer_count) {
    for (int i = layer_count; i < plan->layer_count; i++)
        if (attach_mount(root, data, plan->layers[i], plan->range) < 0) return -1;
    return 0;
}

static int count_layers(const struct root_plan *plan) {
    int count = 0;
    while (count < plan->layer_count && *plan->layers[count] != MOUNT_MARK) count++;
    return count;
}

int root_assemble(int data, const struct root_plan *plan, struct layers *layers) {
    problem[0] = 0;
    layers->count = 0;
    int context = sys_fsopen("overlay", FSOPEN_CLOEXEC);
    if (context < 0) return failed("overlay filesystem");
    int root = -1;
    int layer_count = count_layers(plan);
    struct root_plan of_layers = *plan;
    of_layers.layer_count = layer_count;
    if (configure(context, layers, data, &of_layers) == 0) {
        root = sys_fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV);
        if (root < 0) overlay_failed(context, "make the mount");
        else if (test_write(root, plan->range) < 0 || attach_mounts(root, data, plan, layer_count) < 0) {
            int saved = errno;
            close(root);
            errno = saved;
            root = -1;
        }
    }
    int saved = errno;
    close(context);
    errno = saved;
    return root;
}

/* ---- swapping -------------------------------------------------------------------------------------------------- */

static int carry_over(const char *name, int new_root) {
    char path[16];
    snprintf(path, sizeof path, "/%s", name);
    if (mkdirat(new_root, name, 0755) < 0 && errno != EEXIST) return failed("make a mount point");
    int tree = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (tree < 0) return failed("take a mount along");
    int result = sys_move_mount(tree, "", new_root, name, MOVE_MOUNT_F_EMPTY_PATH);
    if (result < 0) failed("attach a mount");
    int saved = errno;
    close(tree);
    errno = saved;
    return result;
}

/* Sessions with limits have a /sys of ours. Going without it is no reason to stay. */
static void carry_sys_over(int new_root) {
    struct statx info;
    bool mounted = statx(AT_FDCWD, "/sys", AT_SYMLINK_NOFOLLOW, 0, &info) == 0 &&
                   (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    if (mounted) (void)carry_over("sys", new_root);
}

/* Stands in the guest's mount namespace, with its root as ours. */
static int swap_inside(int new_root, int *old) {
    if ((*old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) return failed("open the old root");
    if (sys_move_mount(new_root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0) return failed("attach the new root");
    /* "/" is still the old root for us: its /proc and /dev are the ones to take along. */
    if (carry_over("proc", new_root) < 0 || carry_over("dev", new_root) < 0) {
        int saved = errno;
        if (fchdir(new_root) == 0) umount2(".", MNT_DETACH);
        errno = saved;
        return -1;
    }
    carry_sys_over(new_root);
    if (fchdir(new_root) < 0 || sys_pivot_root(".", ".") < 0) return failed("pivot_root");
    if (umount2(".", MNT_DETACH) < 0) return failed("leave the old root");
    return 0;
}

int root_swap(int pidfd, int new_root, int *old) {
    problem[0] = 0;
    *old = -1;
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (home < 0 || cwd < 0) return failed("remember where we stand");
    int result = -1, saved;
    if (setns(pidfd, CLONE_NEWNS) < 0) {
        failed("enter the mount namespace");
    } else {
        result = swap_inside(new_root, old);
        saved = errno;
        /* A keeper that cannot come home must not go on: it would act on the guest's tree. */
        if (setns(home, CLONE_NEWNS) < 0 || fchdir(cwd) < 0) abort();
        errno = saved;
    }
    saved = errno;
    close(home);
    close(cwd);
    errno = saved;
    return result;
}
