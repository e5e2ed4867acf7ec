#define _GNU_SOURCE
#include "probe.h"

#include <stdint.h>
#include <sys/time.h>

#include "raw.h"
#include "relay.h"

#define CHILD __attribute__((no_sanitize("address", "undefined")))

enum { PATIENCE_S = 2, ANSWER_BYTES = 512 };

CHILD int probe_run(char *const *words) {
    struct itimerval patience = {{0, 0}, {PATIENCE_S, 0}};
    raw(SYS_setitimer, ITIMER_REAL, (long)(intptr_t)&patience, 0, 0);
    long fd = loopback_connect(words[0]);
    if (fd < 0) return 1;
    if (words[1] == 0) return 0;
    long length = 0;
    while (words[1][length]) length++;
    if (raw(SYS_write, fd, (long)(intptr_t)words[1], length, 0) != length) return 1;
    char answer[ANSWER_BYTES];
    long got = raw(SYS_read, fd, (long)(intptr_t)answer, sizeof answer, 0);
    if (got > 0) raw(SYS_write, 1, (long)(intptr_t)answer, got, 0);
    return got > 0 ? 0 : 1;
}
