/* The keeper: starts guests, holds their host ends while no daemon does, swaps their roots. */
#ifndef SANDLOT_KEEPER_H
#define SANDLOT_KEEPER_H

enum { KEEPER_VERSION = 5 };

/* Descriptors that a daemon hands over when it starts a keeper. */
enum { KEEPER_DAEMON_FD = 3, KEEPER_LISTEN_FD = 4, KEEPER_DATA_FD = 5 };

int keeper_run(void);

#endif
