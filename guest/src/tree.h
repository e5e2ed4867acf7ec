/* Signals a process, its group and whoever descends from it. */
#ifndef SANDLOT_TREE_H
#define SANDLOT_TREE_H

#include <sys/types.h>

void tree_signal(pid_t root, int signal_number);

#endif
