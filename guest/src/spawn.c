#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "users.h"

struct plan {
    struct spawn_request *request;
    struct identity who;
    bool as_self; /* no user was named: run as the guest itself does */
    bool terminal;
    int in, out, err; /* the child's ends */
    const char *path;
    struct spawn_failure *late;
};

static void give_up(struct plan *plan, int stage) {
    *plan->late = (struct spawn_failure){errno, stage};
    _exit(127);
}

static void exec_file(struct plan *plan, const char *file) {
    char **argv = plan->request->argv;
    execve(file, argv, plan->request->envp);
    if (errno != ENOEXEC) return;
    /* A script without an interpreter line belongs to the shell, as every shell does it. */
    char *shell[ARGUMENTS_MAX + 2];
    shell[0] = (char *)"/bin/sh";
    shell[1] = (char *)file;
    for (uint32_t i = 1; i <= plan->request->argc; i++) shell[i + 1] = argv[i];
    execve(shell[0], shell, plan->request->envp);
}

static void exec_search(struct plan *plan) {
    const char *name = plan->request->argv[0];
    if (strchr(name, '/') || *name == 0) {
        exec_file(plan, name);
        return;
    }
    char file[PATH_MAX];
    int worst = ENOENT;
    for (const char *at = plan->path; at;) {
        const char *colon = strchrnul(at, ':');
        int width = (int)(colon - at);
        int wrote = snprintf(file, sizeof file, "%.*s%s%s", width, at, width ? "/" : "", name);
        if (wrote > 0 && (size_t)wrote < sizeof file) {
            exec_file(plan, file);
            if (errno != ENOENT && errno != ENOTDIR) worst = errno;
        }
        at = *colon ? colon + 1 : NULL;
    }
    errno = worst;
}

static void child(struct plan *plan) {
    struct spawn_request *request = plan->request;
    setsid();
    if (plan->terminal && ioctl(plan->in, TIOCSCTTY, 0) < 0) give_up(plan, STAGE_PTY);
    if (dup2(plan->in, 0) < 0 || dup2(plan->out, 1) < 0 || dup2(plan->err, 2) < 0) give_up(plan, STAGE_RESOURCES);
    if (syscall(SYS_close_range, 3u, ~0u, 0u) < 0) give_up(plan, STAGE_RESOURCES);
    for (uint32_t i = 0; i < request->rlimit_count; i++) {
        struct rlimit value = {request->rlimits[i].soft, request->rlimits[i].hard};
        if (setrlimit((__rlimit_resource_t)request->rlimits[i].resource, &value) < 0) give_up(plan, STAGE_RLIMIT);
    }
    if (!plan->as_self) {
        if (syscall(SYS_setgroups, (size_t)plan->who.group_count, plan->who.groups) < 0 ||
            syscall(SYS_setresgid, plan->who.gid, plan->who.gid, plan->who.gid) < 0 ||
            syscall(SYS_setresuid, plan->who.uid, plan->who.uid, plan->who.uid) < 0)
            give_up(plan, STAGE_USER);
    }
    if (*request->cwd && chdir(request->cwd) < 0) give_up(plan, STAGE_CWD);
    umask(022);
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGPIPE, &plain, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    exec_search(plan);
    give_up(plan, STAGE_EXEC);
}

static const char *variable(const struct spawn_request *request, const char *name) {
    size_t width = strlen(name);
    for (uint32_t i = 0; i < request->envc; i++)
        if (strncmp(request->envp[i], name, width) == 0 && request->envp[i][width] == '=')
            return request->envp[i] + width + 1;
    return NULL;
}

/* HOME, USER, LOGNAME and SHELL follow from the user unless the caller set them. */
static void complete_environment(struct plan *plan) {
    static char home[HOME_BYTES + 8], user[NAME_BYTES + 8], logname[NAME_BYTES + 12], shell[HOME_BYTES + 8];
    struct spawn_request *request = plan->request;
    uint32_t at = request->envc;
    snprintf(home, sizeof home, "HOME=%s", plan->who.home);
    snprintf(user, sizeof user, "USER=%s", plan->who.name);
    snprintf(logname, sizeof logname, "LOGNAME=%s", plan->who.name);
    snprintf(shell, sizeof shell, "SHELL=%s", plan->who.shell);
    if (!variable(request, "HOME")) request->envp[at++] = home;
    if (!variable(request, "USER")) request->envp[at++] = user;
    if (!variable(request, "LOGNAME")) request->envp[at++] = logname;
    if (!variable(request, "SHELL")) request->envp[at++] = shell;
    request->envp[at] = NULL;
}

static bool open_terminal(const struct spawn_request *request, int *ours, int *theirs) {
    struct winsize size = {.ws_row = request->rows, .ws_col = request->columns};
    int unlock = 0;
    *ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (*ours < 0) return false;
    if (ioctl(*ours, TIOCSPTLCK, &unlock) < 0 || ioctl(*ours, TIOCSWINSZ, &size) < 0) return false;
    *theirs = ioctl(*ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return *theirs >= 0;
}

static bool open_streams(const struct spawn_request *request, struct plan *plan, struct started *out) {
    int in[2] = {-1, -1}, first[2], second[2];
    if (request->flags & SPAWN_STDIN) {
        if (pipe2(in, O_CLOEXEC) < 0) return false;
        fcntl(in[1], F_SETFL, O_NONBLOCK);
    } else if ((in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) {
        return false;
    }
    plan->in = in[0];
    out->in = in[1];
    if (pipe2(first, O_CLOEXEC) < 0) return false;
    plan->out = first[1];
    out->out = first[0];
    if (pipe2(second, O_CLOEXEC) < 0) return false;
    plan->err = second[1];
    out->err = second[0];
    fcntl(out->out, F_SETFL, O_NONBLOCK);
    fcntl(out->err, F_SETFL, O_NONBLOCK);
    return true;
}

static void close_all(const int *fds, int count) {
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0) close(fds[i]);
}

static bool open_ends(struct spawn_request *request, struct plan *plan, struct started *out) {
    *out = (struct started){-1, -1, -1, -1};
    if (!plan->terminal) return open_streams(request, plan, out);
    if (!open_terminal(request, &out->out, &plan->in)) return false;
    plan->out = plan->err = plan->in;
    out->in = fcntl(out->out, F_DUPFD_CLOEXEC, 0);
    if (out->in >= 0 && !plan->as_self) (void)!fchown(plan->in, plan->who.uid, (gid_t)-1);
    return out->in >= 0;
}

bool spawn_start(struct spawn_request *request, struct spawn_failure *late, struct started *out,
                 struct spawn_failure *failure) {
    struct plan plan = {.request = request, .late = late, .in = -1, .out = -1, .err = -1};
    plan.as_self = *request->user == 0;
    plan.terminal = request->flags & SPAWN_PTY;
    *failure = *late = (struct spawn_failure){0, 0};
    *out = (struct started){-1, -1, -1, -1};
    if (!plan.as_self) {
        failure->error = identity_find(request->user, &plan.who);
        failure->stage = STAGE_USER;
        if (failure->error) return false;
        complete_environment(&plan);
    }
    const char *path = variable(request, "PATH");
    plan.path = path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    failure->stage = 0;
    if (open_ends(request, &plan, out)) {
        out->pid = fork();
        if (out->pid == 0) child(&plan);
        if (out->pid < 0) *failure = (struct spawn_failure){errno, STAGE_RESOURCES};
    } else {
        *failure = (struct spawn_failure){errno, plan.terminal ? STAGE_PTY : STAGE_RESOURCES};
    }
    int theirs[] = {plan.in, plan.terminal ? -1 : plan.out, plan.terminal ? -1 : plan.err};
    close_all(theirs, 3);
    if (failure->stage == 0) return true;
    int ours[] = {out->in, out->out, out->err};
    close_all(ours, 3);
    return false;
}
