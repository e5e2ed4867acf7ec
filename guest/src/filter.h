/* The system call filter of a session. */
#ifndef SANDLOT_FILTER_H
#define SANDLOT_FILTER_H

#include <linux/filter.h>

enum { FILTER_LENGTH_MAX = 512 };

/* Writes the program; returns its length. Pure, so that a test can evaluate it for every call number. */
int filter_build(struct sock_filter *program);

/* The same for a kernel that lets root of the session signal pid 1: these calls are refused too. */
int filter_build_guarding(struct sock_filter *program);

/* Puts it on this process. Needs CAP_SYS_ADMIN in its user namespace: `no_new_privs` stays off, or sudo would not
 * work. Returns 0 or -1 with errno. */
int filter_install(void);

#endif
