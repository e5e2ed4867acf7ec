#define _GNU_SOURCE
#include "runsc.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernel.h"
#include "raw.h"
#include "sentry.h"

static const char *problem = "";

const char *runsc_error(void) { return problem; }

static int failed(const char *what) {
    problem = what;
    return -1;
}

/* ---- the small root --------------------------------------------------------------------------------------------- */

static int new_tmpfs(const char *size) {
    int tree = -1, context = sys_fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (context < 0) return -1;
    if (sys_fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) == 0 &&
        sys_fsconfig(context, FSCONFIG_SET_STRING, "size", size, 0) == 0 &&
        sys_fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        tree = sys_fsmount(context, FSMOUNT_CLOEXEC, 0); /* runsc mounts it again, and must not seem to take flags away */
    int saved = errno;
    close(context);
    errno = saved;
    return tree;
}

/* Our own program: the keeper carries the guest in it. */
static int copy_program(int root) {
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to = openat(root, SENTRY_PROGRAM + 1, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    ssize_t got = -1;
    if (from >= 0 && to >= 0)
        while ((got = sendfile(to, from, NULL, 1 << 20)) > 0) {}
    int saved = errno;
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    errno = saved;
    return got == 0 ? 0 : -1;
}

int runsc_small_root(void) {
    static const char *const folders[] = {"proc", "dev", "sys", "tmp", SENTRY_STAGE + 1};
    int root = new_tmpfs("8m");
    if (root < 0) return -1;
    bool made = true;
    mode_t mask = umask(0);
    for (size_t i = 0; made && i < sizeof folders / sizeof *folders; i++) made = mkdirat(root, folders[i], 0755) == 0;
    made = made && copy_program(root) == 0;
    umask(mask);
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY};
    if (made && sys_mount_setattr(root, "", AT_EMPTY_PATH, &read_only) == 0) return root;
    int saved = errno;
    close(root);
    errno = saved;
    return -1;
}

/* ---- the first moments ------------------------------------------------------------------------------------------ */

/* Attaches a detached tree, and gives a descriptor of the directory as it is now. */
static int attach(int tree, int where, const char *name, const char *stage) {
    boot_need(mkdirat(where, name, 0755) == 0 || errno == EEXIST, stage);
    boot_need(sys_move_mount(tree, "", where, name, MOVE_MOUNT_F_EMPTY_PATH) == 0, stage);
    return tree;
}

static void write_config(int stage, const char *text) {
    boot_need(mkdirat(stage, "bundle", 0755) == 0, "make the bundle");
    int fd = openat(stage, "bundle/config.json", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    size_t length = strlen(text), done = 0;
    while (fd >= 0 && done < length) {
        ssize_t wrote = write(fd, text + done, length - done);
        boot_need(wrote > 0, "write the bundle");
        done += (size_t)wrote;
    }
    boot_need(fd >= 0, "write the bundle");
    close(fd);
}

/* Inside, gVisor mounts its own over these. Here they keep whoever reaches for the session's files from writing below
 * them. A root without them, or with something else of the name, is left as it is: then nothing is mounted inside. */
static void cover(int root, int cover_fd) {
    static const char *const names[] = {"proc", "dev"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int clone = sys_open_tree(cover_fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
        if (clone < 0) continue;
        (void)sys_move_mount(clone, "", root, names[i], MOVE_MOUNT_F_EMPTY_PATH);
        close(clone);
    }
}

/* Everything that runsc needs lies on a tmpfs of this mount namespace: the bundle, its own state, and the directory that
 * is bound into the sandbox. That one is shared, so that what is mounted in it later is seen inside. */
static void build_stage(const struct runsc_plan *plan, int root, int small) {
    int stage = new_tmpfs("16m");
    boot_need(stage >= 0, "make the stage");
    boot_need(sys_move_mount(stage, "", AT_FDCWD, RUNSC_STAGE, MOVE_MOUNT_F_EMPTY_PATH) == 0, "attach the stage");
    struct mount_attr shared = {.propagation = MS_SHARED};
    boot_need(sys_mount_setattr(stage, "", AT_EMPTY_PATH, &shared) == 0, "share the stage");
    write_config(stage, plan->config);
    boot_need(mkdirat(stage, "state", 0711) == 0 && mkdirat(stage, "tree", 0755) == 0 && mkdirat(stage, "empty", 0555) == 0, "make the stage");
    attach(small, stage, "bundle/rootfs", "attach the small root");
    int tree = openat(stage, "tree", O_PATH | O_DIRECTORY | O_CLOEXEC);
    boot_need(tree >= 0, "open the tree");
    attach(root, tree, "cur", "attach the root");
    int empty = sys_open_tree(stage, "empty", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    boot_need(empty >= 0, "make the stage");
    cover(root, empty);
    close(empty);
    /* Whoever has to find the tree again finds it as our working directory. */
    boot_need(fchdir(tree) == 0, "enter the tree");
    close(tree);
    close(stage);
}

_Noreturn void runsc_boot(const struct runsc_plan *plan) {
    int keep[] = {plan->boot.socket, plan->boot.root, plan->boot.devices};
    boot_begin(&plan->boot, keep, 3);
    setsid();
    umask(022);
    /* Mounts of the host still reach us; ours reach nobody but the sandbox. */
    boot_need(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) == 0, "slave mounts");
    build_stage(plan, keep[1], keep[2]);
    boot_need(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "mount /proc");
    /* The keeper let go of it; runsc looks for /dev/null there, and for the processor's own virtualisation. */
    (void)mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC, NULL);
    struct rlimit core = {1, 1};
    setrlimit(RLIMIT_CORE, &core);
    uint64_t plain[4] = {0};
    for (long number = 1; number <= 64; number++) raw(SYS_rt_sigaction, number, (long)(intptr_t)plain, 0, 8);
    raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)(intptr_t)plain, 0, 8);
    close(keep[1]);
    close(keep[2]);
    /* The sandbox gets our input as the input of its pid 1. */
    boot_need(fcntl(keep[0], F_SETFD, FD_CLOEXEC) == 0 && dup2(keep[0], 0) == 0, "the line");
    char *environment[] = {NULL};
    execve(plan->words[0], plan->words, environment);
    boot_need(false, "execute runsc");
    _exit(1);
}

/* ---- later ------------------------------------------------------------------------------------------------------ */

static int open_of(pid_t pid, const char *what) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

int runsc_root(pid_t pid) { return open_of(pid, "cwd/cur"); }

/* Stands in the mount namespace of runsc, and in its tree. */
static int replace(int new_root, int *old) {
    *old = sys_open_tree(AT_FDCWD, "cur", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (*old < 0) return failed("take the old root");
    if (umount2("cur", MNT_DETACH | UMOUNT_NOFOLLOW) < 0) return failed("leave the old root");
    if (sys_move_mount(new_root, "", AT_FDCWD, "cur", MOVE_MOUNT_F_EMPTY_PATH) == 0) {
        int empty = sys_open_tree(AT_FDCWD, RUNSC_STAGE "/empty", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (empty >= 0) {
            cover(new_root, empty);
            close(empty);
        }
        return 0;
    }
    int saved = errno;
    (void)sys_move_mount(*old, "", AT_FDCWD, "cur", MOVE_MOUNT_F_EMPTY_PATH);
    errno = saved;
    return failed("attach the new root");
}

int runsc_swap(pid_t pid, int pidfd, int new_root, int *old) {
    *old = -1;
    int tree = open_of(pid, "cwd");
    /* Asked afterwards: one that lives now had its number then. */
    if (tree < 0 || sys_pidfd_send_signal(pidfd, 0) < 0) {
        if (tree >= 0) close(tree);
        return failed("find the sandbox");
    }
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int result = home < 0 || cwd < 0 ? failed("remember where we stand") : 0;
    if (result == 0 && setns(pidfd, CLONE_NEWNS) < 0) result = failed("enter the mount namespace");
    else if (result == 0) {
        result = fchdir(tree) < 0 ? failed("enter the tree") : replace(new_root, old);
        int saved = errno;
        /* A keeper that cannot come home must not go on. */
        if (setns(home, CLONE_NEWNS) < 0 || fchdir(cwd) < 0) abort();
        errno = saved;
    }
    int saved = errno;
    close(tree);
    if (home >= 0) close(home);
    if (cwd >= 0) close(cwd);
    errno = saved;
    return result;
}

/* ---- its own verbs ---------------------------------------------------------------------------------------------- */

int runsc_enter(int pidfd, char **words) {
    enum { NOT_RUN = 125, KILLED = 137, ALL = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS };
    char *environment[] = {NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (setns(pidfd, ALL) < 0) {
        fprintf(stderr, "enter the sandbox: %s\n", strerror(errno));
        return NOT_RUN;
    }
    pid_t pid = fork(); /* a pid namespace is that of children */
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        syscall(SYS_close_range, 3u, ~0u, 0u);
        execve(words[0], words, environment);
        _exit(NOT_RUN);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return NOT_RUN;
    return WIFEXITED(status) ? WEXITSTATUS(status) : KILLED;
}
