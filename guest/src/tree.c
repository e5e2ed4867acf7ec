#define _GNU_SOURCE
#include "tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAMILY_MAX = 8192, ROUNDS_MAX = 4 };

struct kin {
    pid_t pid, parent;
    bool ours, lives;
};

static struct kin people[FAMILY_MAX];

/* State and parent stand behind the last ')': the name may hold anything. Gives 0 for one that is gone. */
static pid_t parent_of(pid_t pid, char *state) {
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return 0;
    text[got] = 0;
    char *close_paren = strrchr(text, ')');
    if (close_paren == NULL || strlen(close_paren) < 5) return 0;
    *state = close_paren[2];
    return (pid_t)strtol(close_paren + 4, NULL, 10);
}

static int read_people(void) {
    DIR *proc = opendir("/proc");
    if (proc == NULL) return 0;
    int count = 0;
    for (struct dirent *entry; count < FAMILY_MAX && (entry = readdir(proc));) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        char state = 0;
        if (pid <= 1) continue;
        pid_t parent = parent_of(pid, &state);
        people[count++] = (struct kin){pid, parent, false, state != 0 && state != 'Z' && state != 'X'};
    }
    closedir(proc);
    return count;
}

static int mark_family(pid_t root, int count) {
    int found = 0;
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < count; i++) {
            if (people[i].ours) continue;
            bool child = people[i].pid == root || people[i].parent == root;
            for (int j = 0; !child && j < count; j++) child = people[j].ours && people[j].pid == people[i].parent;
            if (!child) continue;
            people[i].ours = grew = true;
            found++;
        }
    }
    return found;
}

void tree_signal(pid_t root, int signal_number) {
    /* Those that fork while we look are met in the next round; only a kill can be repeated without harm. */
    int rounds = signal_number == SIGKILL ? ROUNDS_MAX : 1;
    for (int round = 0; round < rounds; round++) {
        int count = read_people();
        if (mark_family(root, count) == 0 && round > 0) break;
        if (root != getpid()) { /* our own group is where we are ourselves */
            kill(-root, signal_number);
            kill(root, signal_number);
        }
        for (int i = 0; i < count; i++)
            if (people[i].ours && people[i].pid != root && people[i].pid != getpid()) kill(people[i].pid, signal_number);
    }
}

int tree_others(int signal_number) {
    int count = read_people(), alive = 0;
    for (int i = 0; i < count; i++) {
        if (people[i].pid == getpid() || !people[i].lives) continue;
        alive++;
        if (signal_number) kill(people[i].pid, signal_number);
    }
    return alive;
}
