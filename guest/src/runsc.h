/* The host's side of a guest under gVisor: from a fork of the keeper to `runsc`, in namespaces of its own. */
#ifndef SANDLOT_RUNSC_H
#define SANDLOT_RUNSC_H

#include <sys/types.h>

#include "boot.h"

/* What is mounted there is seen by one runsc only, and is gone with it. It needs a path that everyone may walk, because
 * parts of runsc have a user namespace of their own; every machine has this directory, and runsc needs nothing in it. */
#define RUNSC_STAGE "/sys"

struct runsc_plan {
    struct boot_plan boot; /* its directory and hostname are not used; `devices` is the sandbox's own small root */
    const char *config;    /* the text of config.json */
    char **words;          /* the program and its arguments, ended by NULL */
};

/* A detached, read-only tree with our program in it and places to mount on: where the guest stands. -1 with errno. */
int runsc_small_root(void);

/* Never returns: becomes runsc, or tells the host why not. */
_Noreturn void runsc_boot(const struct runsc_plan *plan);

/* Puts another root in the place of the one that the sandbox sees. Gives the old one to be closed where nobody waits.
 * Returns 0 or -1 with errno; runsc_error() says what went wrong. */
int runsc_swap(pid_t pid, int pidfd, int new_root, int *old);
const char *runsc_error(void);

/* Runs a program in the namespaces of a sandbox, as a child of this process: what runsc's own verbs need, because its
 * state and its sockets are seen there only. Gives its exit code; 125 when it was not run, 137 when it was killed. */
int runsc_enter(int pidfd, char **words);

/* The root that the sandbox sees, as a descriptor that only names it; -1 when it is gone. */
int runsc_root(pid_t pid);

#endif
