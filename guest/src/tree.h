/* Signals a process, its group and whoever descends from it. */
#ifndef SANDLOT_TREE_H
#define SANDLOT_TREE_H

#include <sys/types.h>

void tree_signal(pid_t root, int signal_number);

/* How many processes there are but this one, as far as /proc tells; those that only wait to be reaped are none. With a
 * signal number each of them gets it first. */
int tree_others(int signal_number);

/* How many things are in use that gVisor cannot keep on disk, and would end of: files below this root that have no name
 * any more, and TCP sockets of a process that has an epoll, which may watch them. */
int tree_unkeepable(const char *root);

#endif
