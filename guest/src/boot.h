/* The first moments of a guest: from a fork of the keeper to a confined pid 1 on its own root. */
#ifndef SANDLOT_BOOT_H
#define SANDLOT_BOOT_H

#include <stdbool.h>

enum { BOOT_GROUPS_MAX = 7 };

struct boot_plan {
    int socket;           /* the guest's end */
    int root;             /* detached mount of the assembled root */
    int devices;          /* detached /dev of this session */
    const char *hostname;
    bool has_network;     /* it was born in one that is up */
    int groups[BOOT_GROUPS_MAX]; /* cgroups to enter: files that take the number of a process */
    int group_count;
    const char *directory; /* runtime none: where the guest stands */
};

/* The beginning of every guest: enters its groups, closes all but `keep` and the standard streams, and waits until the
 * keeper knows it. */
void boot_begin(const struct boot_plan *plan, int *keep, int count);

/* Unless fine, tells the host the stage and errno, and ends. */
void boot_need(bool fine, const char *stage);

/* Both never return: they end in guest_serve, or tell the host why not. */
_Noreturn void boot_confined(const struct boot_plan *plan);
_Noreturn void boot_plain(const struct boot_plan *plan);

#endif
