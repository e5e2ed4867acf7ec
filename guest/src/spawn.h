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
    int stage;
};

/* Returns true and fills `out`, or false and fills `failure`. All our ends are close-on-exec and non-blocking. */
bool spawn_start(struct spawn_request *request, struct started *out, struct spawn_failure *failure);

#endif
