#define _GNU_SOURCE
#include "tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
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

/* ---- what gVisor cannot keep --------------------------------------------------------------------------------------- */

/* Of those on the disk: what lies in memory is kept with it. */
static bool is_nameless(const char *path, const char *root) {
    static const char mark[] = " (deleted)", devices[] = "/dev/";
    size_t length = strlen(path), above = strlen(root);
    if (length < sizeof mark || strcmp(path + length - (sizeof mark - 1), mark) != 0) return false;
    return strncmp(path, root, above) == 0 && path[above] == '/' && strncmp(path + above, devices, sizeof devices - 1) != 0;
}

static int nameless_maps(const char *maps, const char *root) {
    FILE *list = fopen(maps, "re");
    if (list == NULL) return 0;
    int found = 0;
    for (char line[PATH_MAX + 128]; fgets(line, sizeof line, list);) {
        char *path = strchr(line, '/');
        line[strcspn(line, "\n")] = 0;
        if (path) found += is_nameless(path, root);
    }
    fclose(list);
    return found;
}

enum { SOCKETS_MAX = 4096 };

static unsigned long plain_sockets[SOCKETS_MAX]; /* those that epoll may watch: not TCP */
static int plain_count;

/* Their numbers stand in the column with this number. */
static void read_sockets(const char *path, int column) {
    FILE *list = fopen(path, "re");
    if (list == NULL) return;
    for (char line[512]; plain_count < SOCKETS_MAX && fgets(line, sizeof line, list);) {
        char *rest = line, *word = NULL;
        for (int i = 0; i < column; i++) word = strtok_r(i ? NULL : line, " ", &rest);
        if (word) plain_sockets[plain_count++] = strtoul(word, NULL, 10);
    }
    fclose(list);
}

static bool is_plain_socket(unsigned long number) {
    for (int i = 0; i < plain_count; i++)
        if (plain_sockets[i] == number) return true;
    return false;
}

static bool read_link(const char *path, char *target) {
    ssize_t length = readlink(path, target, PATH_MAX - 1);
    if (length <= 0) return false;
    target[length] = 0;
    return true;
}

static int of_one(pid_t pid, const char *root) {
    char path[64], target[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    int found = nameless_maps(path, root), watched = 0;
    bool watches = false;
    snprintf(path, sizeof path, "/proc/%d/cwd", (int)pid);
    if (read_link(path, target)) found += is_nameless(target, root);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *fds = opendir(path);
    for (struct dirent *entry; fds && (entry = readdir(fds));) {
        unsigned long number;
        snprintf(path, sizeof path, "/proc/%d/fd/%.16s", (int)pid, entry->d_name);
        if (!read_link(path, target)) continue;
        found += is_nameless(target, root);
        watches = watches || strcmp(target, "anon_inode:[eventpoll]") == 0;
        if (sscanf(target, "socket:[%lu]", &number) == 1) watched += !is_plain_socket(number);
    }
    if (fds) closedir(fds);
    return found + (watches ? watched : 0);
}

int tree_unkeepable(const char *root) {
    int count = read_people(), found = 0;
    plain_count = 0;
    read_sockets("/proc/net/unix", 7);
    read_sockets("/proc/net/udp", 10);
    for (int i = 0; i < count; i++) found += of_one(people[i].pid, root);
    return found;
}
