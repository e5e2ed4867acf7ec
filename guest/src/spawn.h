/* Starts one program as a child of the guest. */
#ifndef SANDLOT_SPAWN_H
#define SANDLOT_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "wire.h"

struct started {
    pid_t pid;
    int in;  /* our writing end of its stdin, or -1 */
    int out; /* our reading end of its stdout (both streams of a terminal), or -1 */
    int err; /* our reading end of its stderr, or -1 */
};

struct spawn_failure {
    int error;
    int stage; /* 0: no failure */
};

/* Returns true and fills `out`, or false and fills `failure`. All our ends are close-on-exec and non-blocking.
 *
 * The child is not waited for: what happens up to its exec is in the session's hands (a lease on the program, a stop
 * signal), and pid 1 must not stand still for that. A child that cannot exec leaves the reason in `late`, which must be
 * shared memory, before it exits; look there when it is reaped. */
bool spawn_start(struct spawn_request *request, struct spawn_failure *late, struct started *out,
                 struct spawn_failure *failure);

#endif
