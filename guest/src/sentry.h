/* The guest under gVisor: pid 1 of a small root, with the session's root below it, mounted by the host. */
#ifndef SANDLOT_SENTRY_H
#define SANDLOT_SENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SENTRY_PROGRAM "/guest"
#define SENTRY_STAGE "/stage"
#define SENTRY_ROOT SENTRY_STAGE "/cur"

/* Called once, before anything is started. */
void sentry_begin(void);

/* Whether this is a guest under gVisor. */
bool sentry_is_on(void);

/* Where the session's root is, as this process names it: empty, or SENTRY_ROOT. */
const char *sentry_root(void);

/* The host may have put another root in place: then /proc and /dev are mounted in it again. 0 or an errno. */
int sentry_prepare(void);

/* How many processes there may be beside pid 1; 0: any number. 0 or an errno. */
int sentry_limit(uint64_t processes);

/* Keeps together what this process will start, wherever it goes. A descriptor that takes the number of the process, which
 * the caller closes, or -1 where there is nothing of the kind. */
int sentry_family_begin(uint64_t id);

/* Who is in it, as far as there is room. */
int sentry_family(uint64_t id, pid_t *members, int room);

/* Its process is forgotten: it is kept no longer than someone of it lives. */
void sentry_family_end(uint64_t id);

/* What a child goes through between its birth and its exec: raw calls only, the first while it has
 * our descriptors. 0 (or more) or a negative errno. */
long sentry_enter_group(void);
long sentry_enter(void);

/* gVisor's terminals send no signals, neither for keys nor for a new size. Who is in front only a process of the same
 * session may ask, so every terminal has one of ours beside its program: it takes numbers of signals from `orders` and
 * sends them to whoever is in front of `terminal`, until there is no more to come. Called by the child, once it leads the
 * session: raw calls only. 0 or a negative errno. */
long sentry_attend(int terminal, int orders);

/* How many of these bytes belong to the terminal as they are. 0: the first is a key that has become a signal. The end of
 * input, which these terminals do not know, becomes a hang-up where a line begins; `last` is the byte before these. */
size_t sentry_plain_keys(int terminal, int orders, uint8_t *last, const uint8_t *bytes, size_t count);

#endif
