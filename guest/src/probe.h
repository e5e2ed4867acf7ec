/* Asks a port of the session whether someone answers there. */
#ifndef SANDLOT_PROBE_H
#define SANDLOT_PROBE_H

/* In a child of the guest, in memory that the guest uses meanwhile. `words`: the port in decimal digits, and what to send
 * or NULL. What comes back first goes to descriptor 1. Gives 0 when someone took the connection, else 1; a port that takes
 * it and then says nothing ends the child by a signal. */
int probe_run(char *const *words);

#endif
