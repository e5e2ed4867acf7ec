/* Signals a process, its group and whoever descends from it. */
#ifndef SANDLOT_TREE_H
#define SANDLOT_TREE_H

#include <sys/types.h>

void tree_signal(pid_t root, int signal_number);

/* How many processes there are but this one, as far as /proc tells; those that only wait to be reaped are none. With a
 * signal number each of them gets it first. */
int tree_others(int signal_number);

#endif
