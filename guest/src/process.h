/* One program that the guest started, from SPAWN to RELEASE. */
#ifndef SANDLOT_PROCESS_H
#define SANDLOT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "ring.h"
#include "spawn.h"

enum { OUTPUT_RING_BYTES = 1024 * 1024, STDIN_RING_BYTES = 64 * 1024, PROCESSES_MAX = 1024 };

enum watch_kind { WATCH_SOCKET, WATCH_SIGNALS, WATCH_OUTPUT, WATCH_STDIN, WATCH_LEFTOVER, WATCH_BEGUN };

struct process;

/* What epoll gives back. */
struct watch {
    enum watch_kind kind;
    int fd;       /* -1 when closed */
    bool armed;   /* registered with epoll */
    uint8_t stream;
    struct process *process;
    struct watch *next; /* leftovers only */
};

struct output {
    struct watch watch;
    struct ring ring;
    uint64_t sent;      /* offset up to which the host was sent */
    uint64_t discarded; /* bytes dropped by order of the host */
    bool discard;
    bool ended;         /* nothing more will be kept: end of file, or all that was there at exit */
    int64_t left;       /* bytes still to take after exit; -1 while the process runs */
};

struct process {
    struct process *next;
    uint64_t id;
    pid_t pid;
    bool terminal;
    bool exited, failed, forgotten;
    bool started_sent, result_sent, listed;
    bool is_family;     /* gVisor keeps it together */
    bool ends, none_left; /* it is to end with all that it started; nobody of them lives */
    bool killed;
    pid_t *noted; /* where there are no marks: those that were found when it was to end */
    int noted_count;
    int64_t ends_deadline_ms, look_ms; /* of those that its end is waited for */
    int status;
    struct rusage usage;
    struct spawn_failure failure;
    struct spawn_failure late; /* written by the child, in our memory, when it cannot exec */
    struct plan *plan;         /* what the child uses until its exec; ours again when it is reaped */
    int64_t exit_deadline_ms; /* a terminal whose line is held open by a child is not waited for longer */
    struct output outputs[STREAMS];
    struct watch in;
    struct watch begun; /* closed when its program runs, which is told from then on */
    int64_t quiet_until_ms; /* a short command's start, output and end travel in one message */
    int orders; /* under gVisor, of a terminal: where signals for whoever is in front go; or -1 */
    uint8_t last_key;
    struct ring stdin_ring;
    uint64_t stdin_acked_sent;
    bool stdin_closed, stdin_end_asked, stdin_close_sent;
    uint8_t *tag;
    uint32_t tag_length;
};

#endif
