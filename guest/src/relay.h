/* A connection of the host's to a port of the session: what it says comes on descriptor 0 and goes to whoever listens,
 * what that one says goes to descriptor 1. */
#ifndef SANDLOT_RELAY_H
#define SANDLOT_RELAY_H

#include <stdint.h>

enum { RELAY_BYTES = 64 * 1024 };

/* A connection to a port on 127.0.0.1 or ::1, named in decimal digits; or a negative errno. Patience has to end the
 * child. */
long loopback_connect(const char *digits);

/* In a child of the guest, in memory that the guest uses meanwhile; `buffers` holds twice RELAY_BYTES that nobody else
 * uses. Says on descriptor 2: 'c' when someone took the connection, 'e' and the u64 of all bytes before it when that one
 * says no more. Gives 0 when both have said all, else an errno. */
int relay_run(char *const *words, uint8_t *buffers);

#endif
