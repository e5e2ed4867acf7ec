/* Assembles a session's root and swaps it under a living guest. One way for every storage. */
#ifndef SANDLOT_ROOT_H
#define SANDLOT_ROOT_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* Files that sessions write carry ids of one canonical range on disk; each session sees them through its own. */
enum { DISK_FIRST_ID = 1 << 28, RANGE_IDS = 65536, RANGES_MAX = 28000 };

struct root_plan {
    const char *template_path; /* owned by real ids 0..65535 */
    const char *volume_path;   /* holds u/ and w/ */
    char **layers;             /* older uppers, newest first, in canonical ids, below the directory that holds the volume;
                                * behind them, marked, what is mounted into the root */
    int layer_count;
    const char *extra_path;    /* a layer between those and the template, owned like it; NULL or empty: none */
    int range;                 /* index of the session's id range */
    unsigned long processes_max; /* of a new session; 0: any number */
};

uint32_t range_first_id(int range);

/* The mount namespace where volumes are looked for that are not in ours: a storage may have mounted their disk since. */
void root_look_outside(int mounts);

/* Descriptors that were needed on the way. Closing a detached mount waits for the kernel: do it where nobody waits. */
enum { LAYERS_MAX = 500 };
struct layers {
    int fds[LAYERS_MAX];
    int count;
};

/* Opens paths below `data`, or absolute ones. Returns a detached mount of the merged root, or -1 with errno; then
 * root_error() says what went wrong. Either way `layers` is the caller's to close. */
int root_assemble(int data, const struct root_plan *plan, struct layers *layers);
const char *root_error(void);

/* Be the one who owns a range and what is made for it, with so many processes; and back. The owner of a user namespace
 * pays for what is used in it (inotify, signals, queues): not the host's root. And all users of the namespace together,
 * root inside too, get no further than its maker might: that costs nothing, while to enter a cgroup may wait for every
 * processor of the machine. Only for who is not the machine's root. */
void root_become_owner(int range, unsigned long processes_max, struct rlimit *usual);
void root_limit_processes(unsigned long processes_max, const struct rlimit *usual);
void root_become_root(unsigned long processes_max, const struct rlimit *usual);

/* A user namespace with the maps of a range and a network of it. Returns the first, or -1 with errno. */
int root_make_namespaces(int range, unsigned long processes_max, int *network);

/* Writes the id maps of a process that was cloned into a new user namespace. Returns 0 or -1. */
int root_map_ids(pid_t pid, int range);

/* Replaces the root of the guest behind `pidfd`. Every process that stands on the old root stands on the new one
 * afterwards. Gives the old root as an O_PATH descriptor in `old`, to be closed where nobody waits: the last
 * reference syncs the disk. Returns 0 or -1 with errno. */
int root_swap(int pidfd, int new_root, int *old);

#endif
