/* Who a command runs as, looked up in the session's own /etc. Those files are the guest's: hostile, bounded. */
#ifndef SANDLOT_USERS_H
#define SANDLOT_USERS_H

#include <sys/types.h>

enum { GROUPS_MAX = 64, NAME_BYTES = 64, HOME_BYTES = 256 };

struct identity {
    uid_t uid;
    gid_t gid;
    gid_t groups[GROUPS_MAX];
    int group_count;
    char name[NAME_BYTES];
    char home[HOME_BYTES];
    char shell[HOME_BYTES];
};

/* `who` is a name, a uid, or uid:gid. Returns 0, or an errno (ENOENT: no such user). */
int identity_find(const char *who, struct identity *out);

#endif
