#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "probe.h"
#include "raw.h"
#include "relay.h"
#include "sentry.h"
#include "users.h"

enum { STACK_BYTES = 16384 };

/* All that a child needs until its exec. It lives in our memory, which we go on using meanwhile, so this is a copy that
 * nobody else touches, with a stack of its own. */
struct plan {
    struct spawn_request request;
    struct identity who;
    bool as_self; /* no user was named: run as the guest itself does */
    bool terminal;
    int in, out, err; /* the child's ends */
    int orders;       /* the end of whoever attends its terminal, or -1 */
    int begun;        /* closed by the exec */
    const char *path;
    struct spawn_failure *late;
    uint8_t *buffers; /* of a connection */
    char **shell; /* argc + 2: the arguments behind "/bin/sh script" */
    char file[PATH_MAX];
    char home[HOME_BYTES + 8], user[NAME_BYTES + 8], logname[NAME_BYTES + 12], login_shell[HOME_BYTES + 8];
    char stack[STACK_BYTES] __attribute__((aligned(16)));
};

/* ---- the child: raw calls only ---------------------------------------------------------------------------------- */

#define CHILD __attribute__((no_sanitize("address", "undefined")))

static long address(const void *pointer) { return (long)(intptr_t)pointer; }

CHILD static void give_up(struct plan *plan, long result, int stage) {
    plan->late->error = (int)-result;
    plan->late->stage = stage;
    for (;;) raw(SYS_exit_group, 127, 0, 0, 0);
}

CHILD static void must(struct plan *plan, long result, int stage) {
    if (result < 0) give_up(plan, result, stage);
}

CHILD static long exec_file(struct plan *plan, const char *file) {
    struct spawn_request *request = &plan->request;
    long result = raw(SYS_execve, address(file), address(request->argv), address(request->envp), 0);
    if (result != -ENOEXEC) return result;
    /* A script without an interpreter line belongs to the shell, as every shell does it. */
    plan->shell[0] = (char *)"/bin/sh";
    plan->shell[1] = (char *)file;
    for (uint32_t i = 1; i <= request->argc; i++) plan->shell[i + 1] = request->argv[i];
    return raw(SYS_execve, address(plan->shell[0]), address(plan->shell), address(request->envp), 0);
}

CHILD static long exec_search(struct plan *plan) {
    const char *name = plan->request.argv[0];
    size_t length = 0;
    bool has_slash = false;
    for (; name[length]; length++) has_slash = has_slash || name[length] == '/';
    if (has_slash || length == 0) return exec_file(plan, name);
    long worst = -ENOENT;
    for (const char *at = plan->path; at;) {
        size_t width = 0;
        while (at[width] && at[width] != ':') width++;
        if (width + length + 2 <= sizeof plan->file) {
            char *to = plan->file;
            for (size_t i = 0; i < width; i++) *to++ = at[i];
            if (width) *to++ = '/';
            for (size_t i = 0; i <= length; i++) *to++ = name[i];
            long result = exec_file(plan, plan->file);
            if (result != -ENOENT && result != -ENOTDIR) worst = result;
        }
        at = at[width] ? at + width + 1 : NULL;
    }
    return worst;
}

CHILD static int child(void *argument) {
    struct plan *plan = argument;
    struct spawn_request *request = &plan->request;
    /* Zero means whoever writes. First of all: nothing of the program happens outside. */
    for (int i = 0; i < request->group_count; i++)
        must(plan, raw(SYS_write, request->groups[i], address("0"), 1, 0), STAGE_RESOURCES);
    must(plan, sentry_enter_group(), STAGE_RESOURCES);
    raw(SYS_setsid, 0, 0, 0, 0);
    if (plan->terminal) must(plan, raw(SYS_ioctl, plan->in, TIOCSCTTY, 0, 0), STAGE_PTY);
    if (plan->orders >= 0) must(plan, sentry_attend(plan->in, plan->orders), STAGE_PTY);
    const int ends[] = {plan->in, plan->out, plan->err};
    for (int fd = 0; fd < 3; fd++) must(plan, raw(SYS_dup3, ends[fd], fd, 0, 0), STAGE_RESOURCES);
    if (plan->begun != 3) must(plan, raw(SYS_dup3, plan->begun, 3, O_CLOEXEC, 0), STAGE_RESOURCES);
    must(plan, raw(SYS_close_range, 4, INT_MAX, 0, 0), STAGE_RESOURCES); /* more than that gVisor refuses */
    for (uint32_t i = 0; i < request->rlimit_count; i++) {
        uint64_t value[2] = {request->rlimits[i].soft, request->rlimits[i].hard};
        must(plan, raw(SYS_prlimit64, 0, request->rlimits[i].resource, address(value), 0), STAGE_RLIMIT);
    }
    uint64_t mark[2] = {request->mark, request->mark};
    if (request->mark) raw(SYS_prlimit64, 0, RLIMIT_LOCKS, address(mark), 0);
    must(plan, sentry_enter(), STAGE_RESOURCES);
    if (!plan->as_self) {
        must(plan, raw(SYS_setgroups, plan->who.group_count, address(plan->who.groups), 0, 0), STAGE_USER);
        must(plan, raw(SYS_setresgid, plan->who.gid, plan->who.gid, plan->who.gid, 0), STAGE_USER);
        must(plan, raw(SYS_setresuid, plan->who.uid, plan->who.uid, plan->who.uid, 0), STAGE_USER);
    }
    if (*request->cwd) must(plan, raw(SYS_chdir, address(request->cwd), 0, 0, 0), STAGE_CWD);
    raw(SYS_umask, 022, 0, 0, 0);
    uint64_t nothing[4] = {0}; /* the default action, no flags, no signals: the kernel's own layout */
    raw(SYS_rt_sigaction, SIGPIPE, address(nothing), 0, 8);
    raw(SYS_rt_sigprocmask, SIG_SETMASK, address(nothing), 0, 8);
    if (request->flags & (SPAWN_PROBE | SPAWN_CONNECT)) {
        raw(SYS_close, 3, 0, 0, 0);
        bool asks = request->flags & SPAWN_PROBE;
        for (int code = asks ? probe_run(request->argv) : relay_run(request->argv, plan->buffers);;)
            raw(SYS_exit_group, code, 0, 0, 0);
    }
    give_up(plan, exec_search(plan), STAGE_EXEC);
    return 0;
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

static const char *variable(const struct spawn_request *request, const char *name) {
    size_t width = strlen(name);
    for (uint32_t i = 0; i < request->envc; i++)
        if (strncmp(request->envp[i], name, width) == 0 && request->envp[i][width] == '=')
            return request->envp[i] + width + 1;
    return NULL;
}

/* HOME, USER, LOGNAME and SHELL follow from the user unless the caller set them. */
static void complete_environment(struct plan *plan) {
    struct spawn_request *request = &plan->request;
    uint32_t at = request->envc;
    snprintf(plan->home, sizeof plan->home, "HOME=%s", plan->who.home);
    snprintf(plan->user, sizeof plan->user, "USER=%s", plan->who.name);
    snprintf(plan->logname, sizeof plan->logname, "LOGNAME=%s", plan->who.name);
    snprintf(plan->login_shell, sizeof plan->login_shell, "SHELL=%s", plan->who.shell);
    if (!variable(request, "HOME")) request->envp[at++] = plan->home;
    if (!variable(request, "USER")) request->envp[at++] = plan->user;
    if (!variable(request, "LOGNAME")) request->envp[at++] = plan->logname;
    if (!variable(request, "SHELL")) request->envp[at++] = plan->login_shell;
    request->envp[at] = NULL;
}

/* The plan with its strings and pointers in one piece of memory. */
static struct plan *make_plan(const struct spawn_request *request) {
    size_t pointers = (size_t)request->argc + 1 + request->envc + ENVP_SPARE + 1 + request->argc + 2;
    const char *first = request->user;
    const char *last = request->envc ? request->envp[request->envc - 1] : request->argv[request->argc - 1];
    size_t text = (size_t)(last - first) + strlen(last) + 1;
    size_t buffers = request->flags & SPAWN_CONNECT ? 2 * RELAY_BYTES : 0;
    struct plan *plan = malloc(sizeof *plan + pointers * sizeof(char *) + text + buffers);
    if (plan == NULL) return NULL;
    char **slots = (char **)(plan + 1);
    char *copy = (char *)(slots + pointers);
    memcpy(copy, first, text);
    plan->buffers = (uint8_t *)copy + text;
    plan->request = *request;
    plan->request.user = copy;
    plan->request.cwd = copy + (request->cwd - first);
    plan->request.argv = slots;
    plan->request.envp = slots + request->argc + 1;
    plan->shell = plan->request.envp + request->envc + ENVP_SPARE + 1;
    for (uint32_t i = 0; i < request->argc; i++) plan->request.argv[i] = copy + (request->argv[i] - first);
    for (uint32_t i = 0; i < request->envc; i++) plan->request.envp[i] = copy + (request->envp[i] - first);
    plan->request.argv[request->argc] = plan->request.envp[request->envc] = NULL;
    plan->as_self = *request->user == 0;
    plan->terminal = request->flags & SPAWN_PTY;
    plan->in = plan->out = plan->err = plan->orders = plan->begun = -1;
    return plan;
}

static bool open_terminal(const struct spawn_request *request, int *ours, int *theirs) {
    struct winsize size = {.ws_row = request->rows, .ws_col = request->columns};
    int unlock = 0;
    *ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (*ours < 0) return false;
    if (ioctl(*ours, TIOCSPTLCK, &unlock) < 0 || ioctl(*ours, TIOCSWINSZ, &size) < 0) return false;
    *theirs = ioctl(*ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*theirs < 0 && sentry_is_on()) { /* it may not know the call; its /dev is nobody's but ours */
        unsigned number = 0;
        char path[32];
        if (ioctl(*ours, TIOCGPTN, &number) < 0) return false;
        snprintf(path, sizeof path, "/dev/pts/%u", number);
        *theirs = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
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
    *out = (struct started){-1, -1, -1, -1, -1, -1};
    int begun[2];
    if (pipe2(begun, O_CLOEXEC | O_NONBLOCK) < 0) return false;
    out->begun = begun[0];
    plan->begun = begun[1];
    if (!plan->terminal) return open_streams(request, plan, out);
    if (!open_terminal(request, &out->out, &plan->in)) return false;
    plan->out = plan->err = plan->in;
    out->in = fcntl(out->out, F_DUPFD_CLOEXEC, 0);
    int orders[2];
    if (sentry_is_on()) {
        if (pipe2(orders, O_CLOEXEC) < 0) return false;
        plan->orders = orders[0];
        out->orders = orders[1];
        fcntl(out->orders, F_SETFL, O_NONBLOCK);
    }
    if (out->in >= 0 && !plan->as_self) (void)!fchown(plan->in, plan->who.uid, (gid_t)-1);
    return out->in >= 0;
}

static bool start(struct plan *plan, struct started *out, struct spawn_failure *failure) {
    *failure = (struct spawn_failure){sentry_prepare(), STAGE_RESOURCES};
    if (failure->error) return false;
    if (!plan->as_self) {
        *failure = (struct spawn_failure){identity_find(plan->request.user, &plan->who), STAGE_USER};
        if (failure->error) return false;
        complete_environment(plan);
    }
    const char *path = variable(&plan->request, "PATH");
    plan->path = path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    *failure = (struct spawn_failure){0, 0};
    if (!open_ends(&plan->request, plan, out)) {
        *failure = (struct spawn_failure){errno, plan->terminal ? STAGE_PTY : STAGE_RESOURCES};
    } else {
        out->pid = clone(child, plan->stack + STACK_BYTES, CLONE_VM | SIGCHLD, plan);
        if (out->pid < 0) *failure = (struct spawn_failure){errno, STAGE_RESOURCES};
    }
    int theirs[] = {plan->in, plan->terminal ? -1 : plan->out, plan->terminal ? -1 : plan->err, plan->orders, plan->begun};
    close_all(theirs, 5);
    if (failure->stage == 0) return true;
    int ours[] = {out->in, out->out, out->err, out->orders, out->begun};
    close_all(ours, 5);
    return false;
}

struct plan *spawn_start(const struct spawn_request *request, struct spawn_failure *late, struct started *out,
                         struct spawn_failure *failure) {
    *late = (struct spawn_failure){0, 0};
    *out = (struct started){-1, -1, -1, -1, -1, -1};
    struct plan *plan = make_plan(request);
    if (plan == NULL) {
        *failure = (struct spawn_failure){ENOMEM, STAGE_RESOURCES};
        return NULL;
    }
    plan->late = late;
    if (start(plan, out, failure)) return plan;
    free(plan);
    return NULL;
}

void spawn_forget(struct plan *plan) { free(plan); }
