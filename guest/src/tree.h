/* Finds and signals a process and whoever descends from it. */
#ifndef SANDLOT_TREE_H
#define SANDLOT_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { NOTED_MAX = 1024 };

/* A program and whoever descends from it. */
struct family {
    pid_t head;       /* its number, also of its group and its session */
    bool is_headless; /* it was reaped: the number may be another's */
    uint64_t id, mark;
    pid_t *noted; /* those that were found before, where there are no marks; NOTED_MAX of them, or NULL */
    int noted_count;
};

/* Before anything is started. */
void tree_begin(void);

/* What the family of this process is known by: a limit that its program gets. 0: nothing. */
uint64_t tree_mark(uint64_t id);

/* How many of them live; 0 as the signal only counts. */
int tree_signal(struct family *family, int signal_number);

/* How many processes there are but this one, as far as /proc tells; those that only wait to be reaped are none. With a
 * signal number each of them gets it first. */
int tree_others(int signal_number);

/* How many things are in use that gVisor cannot keep on disk, and would end of: files below this root that have no name
 * any more, and TCP sockets of a process that has an epoll, which may watch them. */
int tree_unkeepable(const char *root);

#endif
