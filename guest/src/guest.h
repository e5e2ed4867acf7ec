/* The guest: pid 1 of a session. Serves one host socket until it is closed. */
#ifndef SANDLOT_GUEST_H
#define SANDLOT_GUEST_H

#include <stdbool.h>

/* Never returns. `whole_namespace`: the guest is pid 1, and everything ends with it; otherwise it ends its
 * descendants itself before it goes. */
_Noreturn void guest_serve(int socket, bool whole_namespace);

#endif
