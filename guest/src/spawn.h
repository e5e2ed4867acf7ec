/* Starts one program as a child of the guest. */
#ifndef SANDLOT_SPAWN_H
#define SANDLOT_SPAWN_H

#include <sys/types.h>

#include "wire.h"

struct started {
    pid_t pid;
    int in;  /* our writing end of its stdin, or -1 */
    int out; /* our reading end of its stdout (both streams of a terminal), or -1 */
    int err; /* our reading end of its stderr, or -1 */
    int begun;  /* ends when the child has executed its program, or has ended */
    int orders; /* under gVisor: where signals for whoever is in front of a terminal go, or -1 */
};

struct spawn_failure {
    int error;
    int stage; /* 0: no failure */
};

struct plan;

/* Starts the program and fills `out`, or gives NULL and fills `failure`. All our ends are close-on-exec and non-blocking.
 *
 * The child shares our memory until its exec, and is not waited for: what happens up to there is in the session's hands
 * (a lease on the program, a stop signal), and pid 1 must not stand still for that. A child that cannot exec leaves the
 * reason in `late`; look there when it is reaped. Until then the plan and `late` must stay; then forget the plan. */
struct plan *spawn_start(const struct spawn_request *request, struct spawn_failure *late, struct started *out,
                         struct spawn_failure *failure);
void spawn_forget(struct plan *plan);

#endif
