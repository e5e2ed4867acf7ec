#define _GNU_SOURCE
#include "ahead.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "kernel.h"
#include "root.h"

enum { AHEAD_MAX = 4 };

static struct ahead kept[AHEAD_MAX]; /* oldest first */
static int kept_count;

static void forget(int index) {
    ahead_drop(&kept[index]);
    memmove(&kept[index], &kept[index + 1], sizeof *kept * (size_t)(--kept_count - index));
}

void ahead_drop(struct ahead *made) {
    if (made->users < 0) return;
    close(made->users);
    close(made->network);
    made->users = -1;
}

struct ahead ahead_take(int range, unsigned long processes_max) {
    struct ahead found = {.users = -1};
    for (int i = 0; i < kept_count; i++) {
        if (kept[i].range != range) continue;
        if (kept[i].processes_max == processes_max) {
            found = kept[i];
            kept[i].users = -1;
        }
        forget(i); /* with other limits it is of no use to anyone */
        break;
    }
    return found;
}

/* Loopback, from inside. We are root of the machine, so a network that belongs to others obeys us. */
static int bring_up(int network) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), result = -1;
    if (home < 0) return -1;
    if (setns(network, CLONE_NEWNET) == 0) {
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0) result = ioctl(fd, SIOCSIFFLAGS, &request);
        int saved = errno;
        if (fd >= 0) close(fd);
        if (setns(home, CLONE_NEWNET) < 0) abort();
        errno = saved;
    }
    int saved = errno;
    close(home);
    errno = saved;
    return result;
}

int ahead_make(int range, unsigned long processes_max) {
    for (int i = 0; i < kept_count; i++)
        if (kept[i].range == range && kept[i].processes_max == processes_max) return 0;
    struct ahead old = ahead_take(range, processes_max), made = {.range = range, .processes_max = processes_max};
    ahead_drop(&old);
    made.users = root_make_namespaces(range, processes_max, &made.network);
    if (made.users < 0) return -1;
    if (bring_up(made.network) < 0) {
        int saved = errno;
        ahead_drop(&made);
        errno = saved;
        return -1;
    }
    if (kept_count == AHEAD_MAX) forget(0);
    kept[kept_count++] = made;
    return 0;
}

pid_t ahead_fork(const struct ahead *made, uint64_t flags, int group, int *pidfd) {
    static volatile pid_t child;
    static volatile int error;
    struct clone_args arguments = {
        /* Ours, not of the one in between, which is about to end. */
        .flags = flags | CLONE_PARENT | (group >= 0 ? CLONE_INTO_CGROUP : 0),
        .cgroup = group >= 0 ? (uint64_t)group : 0,
    };
    child = -1;
    error = 0;
    /* What owns the new namespaces is what their maker is in; and from there is no way back. So someone else goes there,
     * in our memory, while we wait. */
    pid_t between = vfork();
    if (between < 0) return -1;
    if (between == 0) {
        if (setns(made->users, CLONE_NEWUSER) < 0 || setns(made->network, CLONE_NEWNET) < 0) {
            error = errno;
            _exit(1);
        }
        child = sys_clone3(&arguments);
        if (child == 0) return 0; /* in memory of its own: this is no return from the one in between */
        error = errno;
        _exit(0);
    }
    if (child < 0) {
        errno = error;
        return -1;
    }
    /* It waits for our word, so the number is still its own. */
    *pidfd = sys_pidfd_open(child);
    return *pidfd < 0 ? -1 : child;
}
