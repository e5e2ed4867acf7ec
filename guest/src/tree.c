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
#include <sys/resource.h>
#include <unistd.h>

#include "sentry.h"

enum { FAMILY_MAX = 8192, ROUNDS_MAX = 4, FIELDS = 5 };

struct kin {
    pid_t pid, parent, group, session;
    bool ours, below, lives;
};

static struct kin people[FAMILY_MAX];
static uint64_t unmarked; /* what who has no mark has in its place; 0: nobody has one */

/* ---- marks --------------------------------------------------------------------------------------------------------
 * What a program starts is its family, wherever it goes: also when its parents have ended, and it has a group and a
 * session of its own. It has its mark from whoever started it: a limit that the kernel has not looked at for twenty years,
 * that everyone inherits, and that only root of the machine can raise again. */

void tree_begin(void) {
    struct rlimit limit;
    /* gVisor neither takes nor tells this one. */
    unmarked = !sentry_is_on() && getrlimit(RLIMIT_LOCKS, &limit) == 0 ? limit.rlim_max : 0;
}

uint64_t tree_mark(uint64_t id) { return unmarked > id + 1 ? unmarked - 1 - id : 0; }

/* 0: it is not told. */
static uint64_t mark_of(pid_t pid) {
    static const char name[] = "Max file locks";
    char path[32], text[4096], hard[24];
    snprintf(path, sizeof path, "/proc/%d/limits", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *line = strstr(text, name);
    if (line == NULL || sscanf(line + sizeof name - 1, "%*s %23s", hard) != 1) return 0;
    return strcmp(hard, "unlimited") == 0 ? (uint64_t)RLIM_INFINITY : strtoull(hard, NULL, 10);
}

/* ---- families ----------------------------------------------------------------------------------------------------- */

/* Behind the last ')': the name may hold anything. */
static void read_kin(struct kin *one) {
    char path[32], text[1024], state = 0;
    int threads = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)one->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *close_paren = strrchr(text, ')');
    if (close_paren == NULL) return;
    int found = sscanf(close_paren + 1, " %c %d %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state, &one->parent,
                       &one->group, &one->session, &threads);
    /* A program whose first thread has ended looks dead, and may have others. */
    one->lives = found >= FIELDS - 1 && state != 'X' && (state != 'Z' || threads > 1);
}

static int read_people(void) {
    DIR *proc = opendir("/proc");
    if (proc == NULL) return 0;
    int count = 0;
    for (struct dirent *entry; count < FAMILY_MAX && (entry = readdir(proc));) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid <= 1) continue;
        people[count] = (struct kin){.pid = pid};
        read_kin(&people[count++]);
    }
    closedir(proc);
    return count;
}

/* Whoever descends from one of ours is ours. */
static void spread(int count) {
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < count; i++) {
            for (int j = 0; !people[i].ours && j < count; j++) {
                if (!people[j].ours || people[j].pid != people[i].parent) continue;
                people[i].ours = grew = true;
            }
        }
    }
}

/* Without a namespace of our own the others are none of our business; they may have been marked by another guest. */
static void mark_below(int count) {
    pid_t us = getpid();
    for (int i = 0; i < count; i++) people[i].ours = us == 1 || people[i].parent == us;
    if (us != 1) spread(count);
    for (int i = 0; i < count; i++) {
        people[i].below = people[i].ours;
        people[i].ours = false;
    }
}

static bool is_kin(const struct kin *one, const struct family *family) {
    if (one->pid == getpid()) return false;
    if (!family->is_headless && (one->pid == family->head || one->parent == family->head)) return true;
    if (!one->below) return false;
    uint64_t mark = family->mark ? mark_of(one->pid) : 0;
    if (mark && mark == family->mark) return true;
    if (mark && mark < unmarked) return false; /* of another family: numbers of those that are gone are given again */
    return one->session == family->head || one->group == family->head;
}

/* Those of them that live. */
static int find_family(const struct family *family, int count) {
    static pid_t members[FAMILY_MAX];
    int found = 0, known = sentry_family(family->id, members, FAMILY_MAX);
    mark_below(count);
    for (int i = 0; i < count; i++) {
        people[i].ours = is_kin(&people[i], family);
        for (int j = 0; !people[i].ours && j < known; j++) people[i].ours = people[i].pid == members[j];
        for (int j = 0; !people[i].ours && j < family->noted_count; j++) people[i].ours = people[i].pid == family->noted[j];
    }
    spread(count);
    for (int i = 0; i < count; i++) found += people[i].ours && people[i].lives;
    return found;
}

/* Whoever was below them then may have nobody above him by now. */
static void note(struct family *family, int count) {
    family->noted_count = 0;
    for (int i = 0; i < count && family->noted_count < NOTED_MAX; i++)
        if (people[i].ours && people[i].lives) family->noted[family->noted_count++] = people[i].pid;
}

int tree_signal(struct family *family, int signal_number) {
    /* Those that fork while we look are met in the next round; only a kill can be repeated without harm. */
    int rounds = signal_number == SIGKILL ? ROUNDS_MAX : 1, found = 0;
    bool has_group = !family->is_headless && family->head != getpid(); /* our own group is where we are ourselves */
    for (int round = 0; round < rounds; round++) {
        int count = read_people();
        found = find_family(family, count);
        if (family->noted) note(family, count);
        if (signal_number == 0 || (found == 0 && round > 0)) break;
        bool group_heard = has_group && kill(-family->head, signal_number) == 0;
        /* A child that has not yet made its own group is still alone. */
        if (has_group && !group_heard) kill(family->head, signal_number);
        for (int i = 0; i < count; i++) {
            bool heard = has_group && (people[i].pid == family->head || (group_heard && people[i].group == family->head));
            if (people[i].ours && !heard) kill(people[i].pid, signal_number);
        }
    }
    return found;
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
