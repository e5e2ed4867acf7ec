/* What a session is told of the machine, where that is not what the kernel would tell. */
#ifndef SANDLOT_VIEW_H
#define SANDLOT_VIEW_H

/* Puts files over those of /proc, and a /sys with nothing but files of ours, into the session of the guest behind
 * `pidfd`. `words` are pairs: an absolute path, its content. Returns 0, or -1 with errno. */
int view_show(int pidfd, char **words, int count);

#endif
