/* Namespaces made ahead of the session that gets them: half of what a new guest costs is a network of its own. */
#ifndef SANDLOT_AHEAD_H
#define SANDLOT_AHEAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ahead {
    int range;
    unsigned long processes_max;
    int users;   /* a user namespace with the maps of the range; -1: there is none */
    int network; /* its network, with loopback up. Nobody was ever in it */
};

/* Makes the two for a range, unless they are there; the oldest others go when there are too many. Returns 0, or -1 with
 * errno and root_error(). */
int ahead_make(int range, unsigned long processes_max);

/* Those that were made for this session, now the caller's to drop; with `users` -1 where there are none. */
struct ahead ahead_take(int range, unsigned long processes_max);
void ahead_drop(struct ahead *made);

/* A fork of the caller in those two and in further new namespaces of `flags`, born in a cgroup or with `group` -1 where
 * the caller is. Returns its number and, in `pidfd`, its descriptor; 0 in the child; -1 with errno. */
pid_t ahead_fork(const struct ahead *made, uint64_t flags, int group, int *pidfd);

#endif
