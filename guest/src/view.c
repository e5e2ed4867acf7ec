#define _GNU_SOURCE
#include "view.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernel.h"

enum { VIEWS_MAX = 16, PATH_BYTES = 256 };

struct views {
    int trees[VIEWS_MAX];
    const char *points[VIEWS_MAX];
    int count;
};

static int make_tmpfs(void) {
    int tree = -1, context = sys_fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (context < 0) return -1;
    if (sys_fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) == 0 &&
        sys_fsconfig(context, FSCONFIG_SET_STRING, "size", "1m", 0) == 0 &&
        sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        tree = sys_fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV);
    close(context);
    return tree;
}

static int write_view(int tree, const char *path, const char *content) {
    char name[PATH_BYTES];
    if (snprintf(name, sizeof name, "%s", path) >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdirat(tree, name, 0755) < 0 && errno != EEXIST) return -1;
        *slash = '/';
    }
    int fd = openat(tree, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0) return -1;
    ssize_t wrote = write(fd, content, strlen(content));
    close(fd);
    return wrote == (ssize_t)strlen(content) ? 0 : -1;
}

static int add(struct views *views, int tree, const char *name, const char *point) {
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY};
    int clone = sys_open_tree(tree, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (clone < 0) return -1;
    views->trees[views->count] = clone;
    views->points[views->count++] = point;
    return sys_mount_setattr(clone, "", AT_EMPTY_PATH, &read_only);
}

/* All below /sys is one mount, of each other file one of its own. */
static int prepare(struct views *views, int tree, char **words, int count) {
    bool sys = false;
    for (int i = 0; i < count; i += 2) {
        const char *name = words[i] + 1;
        if (write_view(tree, name, words[i + 1]) < 0) return -1;
        if (strncmp(name, "sys/", 4) == 0) sys = true;
        else if (add(views, tree, name, words[i]) < 0) return -1;
    }
    return sys ? add(views, tree, "sys", "/sys") : 0;
}

static int attach(const struct views *views) {
    for (int i = 0; i < views->count; i++)
        if (sys_move_mount(views->trees[i], "", AT_FDCWD, views->points[i], MOVE_MOUNT_F_EMPTY_PATH) < 0) return -1;
    return 0;
}

static int attach_inside(int pidfd, const struct views *views) {
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int result = -1, saved;
    if (home >= 0 && cwd >= 0 && setns(pidfd, CLONE_NEWNS) == 0) {
        result = attach(views);
        saved = errno;
        /* A keeper that cannot come home must not go on: it would act on the guest's tree. */
        if (setns(home, CLONE_NEWNS) < 0 || fchdir(cwd) < 0) abort();
        errno = saved;
    }
    saved = errno;
    if (home >= 0) close(home);
    if (cwd >= 0) close(cwd);
    errno = saved;
    return result;
}

int view_show(int pidfd, char **words, int count) {
    struct views views = {.count = 0};
    if (count % 2 != 0 || count / 2 >= VIEWS_MAX) {
        errno = EINVAL;
        return -1;
    }
    for (int i = 0; i < count; i += 2) {
        if (words[i][0] == '/') continue;
        errno = EINVAL;
        return -1;
    }
    int tree = make_tmpfs();
    if (tree < 0) return -1;
    mode_t mask = umask(0);
    int result = prepare(&views, tree, words, count);
    umask(mask);
    if (result == 0) result = attach_inside(pidfd, &views);
    int saved = errno;
    for (int i = 0; i < views.count; i++) close(views.trees[i]);
    close(tree);
    errno = saved;
    return result;
}
