#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process.h"
#include "sentry.h"
#include "tree.h"

enum {
    EVENTS = 64,
    BATCH_FRAMES = 64,
    BATCH_BYTES = 192 * 1024,
    SMALL_FRAME = 128,
    LEFTOVERS_MAX = 64,
    STARTED_DELAY_MS = 2,
    TERMINAL_LINGER_MS = 200,
    LAST_WORDS_MS = 2000,
    PARTING_MS = 20,
    LOOK_MS = 20,          /* between two looks whether anyone of a family lives */
    FAMILY_GRACE_MS = 5000, /* the host kills earlier, if there is one */
    FAMILY_KILL_MS = 2000,  /* who does not even end by a kill waits for the machine, and is not waited for */
};

static int host, events;
static struct watch host_watch = {.kind = WATCH_SOCKET}, signal_watch = {.kind = WATCH_SIGNALS};
static struct process *processes;
static struct process *graveyard;     /* freed behind the current round of events */
static struct watch *leftovers;       /* pipes of finished commands that a background child still holds */
static struct watch *leftover_graves; /* freed like the graveyard */
static int process_count, leftover_count;
static bool want_write, pong_due, broken_due;
static uint64_t pong_token, count_token;
static bool counted_due;
static int counted, limit_error;
static bool parting; /* we are about to be kept on disk, or are back and have not been greeted yet */
static uint32_t broken_reason;
static uint64_t broken_id;
static bool held_back; /* the news of a start is */
static uint8_t inbox[MESSAGE_BYTES_MAX];
static char *spawn_slots[SPAWN_SLOTS];
static int given[SPAWN_GROUPS_MAX]; /* descriptors that came with the message that is being heard */
static int given_count;
static enum { SYNC_IDLE, SYNC_WELCOME, SYNC_LIST, SYNC_DONE } sync_state;
static uint8_t sync_nonce[NONCE_BYTES];

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- epoll ---------------------------------------------------------------------------------------------------- */

static void watch_set(struct watch *watch, bool on, uint32_t interest) {
    if (watch->fd < 0 || watch->armed == on) return;
    struct epoll_event event = {.events = interest, .data.ptr = watch};
    epoll_ctl(events, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, watch->fd, &event);
    watch->armed = on;
}

static void watch_close(struct watch *watch) {
    if (watch->fd < 0) return;
    watch_set(watch, false, 0);
    close(watch->fd);
    watch->fd = -1;
}

/* ---- output of processes -------------------------------------------------------------------------------------- */

static void output_end(struct output *output) {
    output->ended = true;
    watch_close(&output->watch);
}

/* Keeps the pipe of a finished command open and empty, so that what it left running is not killed by SIGPIPE. */
static void leave_open(struct output *output) {
    struct watch *kept = leftover_count < LEFTOVERS_MAX ? malloc(sizeof *kept) : NULL;
    int fd = output->watch.fd;
    if (kept == NULL || fd < 0) {
        output_end(output);
        return;
    }
    watch_set(&output->watch, false, 0);
    output->watch.fd = -1;
    output->ended = true;
    *kept = (struct watch){.kind = WATCH_LEFTOVER, .fd = fd, .next = leftovers};
    leftovers = kept;
    leftover_count++;
    watch_set(kept, true, EPOLLIN);
}

static void leftover_read(struct watch *watch) {
    static char waste[16384];
    ssize_t got = read(watch->fd, waste, sizeof waste);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
    watch_close(watch);
    for (struct watch **at = &leftovers; *at; at = &(*at)->next) {
        if (*at != watch) continue;
        *at = watch->next;
        break;
    }
    watch->next = leftover_graves;
    leftover_graves = watch;
    leftover_count--;
}

static bool output_done_after_exit(struct process *process, struct output *output) {
    return process->exited && !process->terminal && output->left <= 0;
}

/* Takes what a process wrote, as far as there is room. */
static void output_read(struct process *process, struct output *output) {
    static uint8_t waste[DATA_BYTES_MAX];
    for (int rounds = 0; rounds < 4 && !output->ended; rounds++) {
        if (output_done_after_exit(process, output)) {
            leave_open(output);
            return;
        }
        uint8_t *where = waste;
        size_t room = sizeof waste;
        if (!output->discard && (room = ring_space(&output->ring, &where)) == 0) {
            watch_set(&output->watch, false, 0);
            return;
        }
        if (room > DATA_BYTES_MAX) room = DATA_BYTES_MAX;
        if (process->exited && !process->terminal && (uint64_t)room > (uint64_t)output->left)
            room = (size_t)output->left;
        ssize_t got = read(output->watch.fd, where, room);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) {
            output_end(output); /* end of file; a terminal says EIO */
            return;
        }
        if (output->left > 0) output->left -= got;
        if (output->discard) output->discarded += (uint64_t)got;
        else ring_written(&output->ring, (size_t)got);
        if ((size_t)got < room) break;
    }
    /* No event may come any more: a child that lives on holds the pipe open and says nothing. */
    if (!output->ended && output_done_after_exit(process, output)) leave_open(output);
}

static void output_resume(struct process *process, struct output *output) {
    if (output->ended || output->watch.fd < 0) return;
    watch_set(&output->watch, true, EPOLLIN);
    if (process->exited) output_read(process, output);
}

/* ---- stdin ---------------------------------------------------------------------------------------------------- */

static void stdin_close(struct process *process) {
    watch_close(&process->in);
    process->stdin_closed = true;
    ring_drop(&process->stdin_ring, process->stdin_ring.end);
    ring_free(&process->stdin_ring);
}

static void stdin_write(struct process *process) {
    while (!process->stdin_closed) {
        const uint8_t *piece;
        size_t count = ring_piece(&process->stdin_ring, process->stdin_ring.base, &piece);
        if (count == 0) break;
        if (process->terminal && (count = sentry_plain_keys(process->in.fd, process->orders, &process->last_key, piece, count)) == 0) {
            ring_drop(&process->stdin_ring, process->stdin_ring.base + 1);
            continue;
        }
        ssize_t wrote = write(process->in.fd, piece, count);
        if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) {
            watch_set(&process->in, true, EPOLLOUT);
            return;
        }
        if (wrote < 0) {
            stdin_close(process);
            return;
        }
        if (wrote > 0) process->last_key = piece[wrote - 1];
        ring_drop(&process->stdin_ring, process->stdin_ring.base + (uint64_t)wrote);
    }
    watch_set(&process->in, false, 0);
    if (process->stdin_end_asked && !process->stdin_closed) {
        if (process->terminal) {
            if (sentry_plain_keys(process->in.fd, process->orders, &process->last_key, (const uint8_t *)"\004", 1))
                (void)!write(process->in.fd, "\004", 1);
            process->stdin_end_asked = false;
        } else {
            stdin_close(process);
        }
    }
}

static void stdin_take(struct process *process, uint64_t offset, const uint8_t *bytes, size_t count) {
    struct ring *ring = &process->stdin_ring;
    if (offset > ring->end) return; /* a hole: the host's mistake; it sees that nothing was acknowledged */
    uint64_t known = ring->end - offset;
    if (known >= count) return;
    bytes += known;
    count -= (size_t)known;
    if (process->stdin_closed) {
        /* Nobody reads any more: everything counts as taken, so that the writer ends. */
        ring->base = ring->end += count;
        return;
    }
    while (count > 0) {
        uint8_t *where;
        size_t room = ring_space(ring, &where);
        if (room == 0) break; /* beyond the credit: the host's mistake */
        if (room > count) room = count;
        memcpy(where, bytes, room);
        ring_written(ring, room);
        bytes += room;
        count -= room;
    }
    stdin_write(process);
}

/* ---- life of a process ---------------------------------------------------------------------------------------- */

static struct process *find(uint64_t id) {
    for (struct process *p = processes; p; p = p->next)
        if (p->id == id) return p;
    return NULL;
}

static void watch_init(struct watch *watch, enum watch_kind kind, int fd, struct process *process, uint8_t stream) {
    *watch = (struct watch){.kind = kind, .fd = fd, .process = process, .stream = stream};
}

static struct process *process_new(uint64_t id, const struct spawn_request *request) {
    struct process *process = calloc(1, sizeof *process);
    if (process == NULL) return NULL;
    process->id = id;
    process->terminal = request->flags & SPAWN_PTY;
    process->orders = -1;
    process->tag = malloc(request->tag_length + 1u);
    if (process->tag == NULL) {
        free(process);
        return NULL;
    }
    memcpy(process->tag, request->tag, request->tag_length);
    process->tag_length = request->tag_length;
    for (int i = 0; i < STREAMS; i++) {
        ring_init(&process->outputs[i].ring, OUTPUT_RING_BYTES);
        process->outputs[i].left = -1;
        watch_init(&process->outputs[i].watch, WATCH_OUTPUT, -1, process, (uint8_t)i);
    }
    ring_init(&process->stdin_ring, STDIN_RING_BYTES);
    watch_init(&process->in, WATCH_STDIN, -1, process, 0);
    watch_init(&process->begun, WATCH_BEGUN, -1, process, 0);
    process->next = processes;
    processes = process;
    process_count++;
    return process;
}

static void orders_close(struct process *process) {
    if (process->orders >= 0) close(process->orders);
    process->orders = -1;
}

static void process_forget(struct process *process) {
    orders_close(process);
    if (process->is_family) sentry_family_end(process->id);
    for (struct process **at = &processes; *at; at = &(*at)->next) {
        if (*at != process) continue;
        *at = process->next;
        break;
    }
    process_count--;
    for (int i = 0; i < STREAMS; i++) watch_close(&process->outputs[i].watch);
    watch_close(&process->in);
    watch_close(&process->begun);
    process->forgotten = true;
    process->next = graveyard;
    graveyard = process;
}

static void bury(void) {
    while (graveyard) {
        struct process *process = graveyard;
        graveyard = process->next;
        for (int i = 0; i < STREAMS; i++) ring_free(&process->outputs[i].ring);
        ring_free(&process->stdin_ring);
        free(process->tag);
        free(process->noted);
        free(process);
    }
    while (leftover_graves) {
        struct watch *watch = leftover_graves;
        leftover_graves = watch->next;
        free(watch);
    }
}

static void broken(uint32_t reason, uint64_t id) {
    broken_due = true;
    broken_reason = reason;
    broken_id = id;
}

static void on_spawn(uint64_t id, uint8_t *payload, uint32_t length) {
    struct spawn_request request;
    if (find(id)) return; /* heard twice, done once */
    if (spawn_parse(payload, length, &request, spawn_slots) < 0) {
        broken(FRAME_SPAWN, id);
        return;
    }
    if (request.flags & SPAWN_GROUPS) {
        memcpy(request.groups, given, sizeof given);
        request.group_count = given_count;
    }
    int family = -1;
    if (!(request.flags & (SPAWN_PROBE | SPAWN_CONNECT))) request.mark = tree_mark(id);
    struct process *process = process_new(id, &request);
    /* A program that should be under limits of its own does not run without. */
    if (process == NULL || ((request.flags & SPAWN_GROUPS) && given_count == 0)) {
        if (process) process_forget(process);
        broken(FRAME_SPAWN, id);
        return;
    }
    if ((request.flags & SPAWN_FAMILY) && request.group_count < SPAWN_GROUPS_MAX) family = sentry_family_begin(id);
    process->is_family = family >= 0;
    if (family >= 0) request.groups[request.group_count++] = family;
    struct started ends;
    if (limit_error) process->failure = (struct spawn_failure){limit_error, STAGE_RESOURCES};
    else if (process_count > PROCESSES_MAX) process->failure = (struct spawn_failure){EAGAIN, STAGE_TOO_MANY};
    else process->plan = spawn_start(&request, &process->late, &ends, &process->failure);
    /* Its child has descriptors of its own. */
    if (family >= 0) close(family);
    if (process->plan == NULL) {
        process->failed = true;
        process->outputs[0].ended = process->outputs[1].ended = process->stdin_closed = true;
        return;
    }
    process->pid = ends.pid;
    process->in.fd = ends.in;
    process->begun.fd = ends.begun;
    process->quiet_until_ms = now_ms() + STARTED_DELAY_MS;
    process->orders = ends.orders;
    process->stdin_closed = process->stdin_close_sent = ends.in < 0;
    process->outputs[0].watch.fd = ends.out;
    process->outputs[1].watch.fd = ends.err;
    for (int i = 0; i < STREAMS; i++) {
        process->outputs[i].ended = process->outputs[i].watch.fd < 0;
        watch_set(&process->outputs[i].watch, true, EPOLLIN);
    }
}

static void process_exited(struct process *process, int status, const struct rusage *usage) {
    process->exited = true;
    watch_close(&process->begun);
    process->failure = process->late;
    spawn_forget(process->plan);
    process->plan = NULL;
    process->failed = process->failure.stage != 0;
    process->status = status;
    process->usage = *usage;
    process->exit_deadline_ms = now_ms() + TERMINAL_LINGER_MS;
    orders_close(process);
    stdin_close(process);
    for (int i = 0; i < STREAMS; i++) {
        struct output *output = &process->outputs[i];
        int there = 0;
        if (output->watch.fd < 0) continue;
        ioctl(output->watch.fd, FIONREAD, &there);
        output->left = there;
        output_read(process, output);
    }
}

/* Everything that died, ours and orphans alike. */
static void reap(void) {
    struct signalfd_siginfo info[8];
    while (read(signal_watch.fd, info, sizeof info) > 0) {}
    int status;
    struct rusage usage;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &usage)) > 0;)
        for (struct process *p = processes; p; p = p->next)
            if (p->pid == pid && !p->exited) process_exited(p, status, &usage);
}

static void linger(void) {
    for (struct process *p = processes; p; p = p->next)
        if (p->exited && p->terminal && !p->outputs[0].ended && now_ms() >= p->exit_deadline_ms)
            output_end(&p->outputs[0]);
}

/* ---- frames of the host --------------------------------------------------------------------------------------- */

static void on_resume(const struct frame *frame) {
    if (frame->length != NONCE_BYTES + 4) {
        broken(FRAME_RESUME, 0);
        return;
    }
    memcpy(sync_nonce, frame->payload, NONCE_BYTES);
    sync_state = SYNC_WELCOME;
    parting = false;
    for (struct process *p = processes; p; p = p->next) {
        p->listed = p->started_sent = p->result_sent = p->stdin_close_sent = false;
        p->stdin_acked_sent = 0;
        for (int i = 0; i < STREAMS; i++) p->outputs[i].sent = p->outputs[i].ring.base;
    }
}

static struct family family_of(struct process *process) {
    return (struct family){.head = process->pid, .is_headless = process->exited, .id = process->id, .mark = tree_mark(process->id),
                           .noted = process->noted, .noted_count = process->noted_count};
}

static void end_family(struct process *process, int number) {
    struct family family = family_of(process);
    process->killed = process->killed || number == SIGKILL;
    process->ends_deadline_ms = now_ms() + (process->killed ? FAMILY_KILL_MS : FAMILY_GRACE_MS);
    process->ends = true;
    process->look_ms = 0;
    if (family.mark == 0 && process->noted == NULL) family.noted = process->noted = malloc(NOTED_MAX * sizeof(pid_t));
    tree_signal(&family, number);
    process->noted_count = family.noted_count;
}

/* Its program has ended; its end is told when it was the last. Those that do not listen are killed, also when the host has
 * gone meanwhile. */
static void family_look(struct process *process) {
    int64_t now = now_ms();
    if (!process->ends || !process->exited || process->none_left || now < process->look_ms) return;
    struct family family = family_of(process);
    process->look_ms = now + LOOK_MS;
    if (now >= process->ends_deadline_ms && process->killed) process->none_left = true;
    else if (now >= process->ends_deadline_ms) end_family(process, SIGKILL);
    else {
        process->none_left = tree_signal(&family, process->killed ? SIGKILL : 0) == 0;
        process->noted_count = family.noted_count;
    }
}

static void on_signal(struct process *process, const struct frame *frame) {
    uint32_t number = get_u32(frame->payload), scope = get_u32(frame->payload + 4);
    if (number == 0 || number >= (uint32_t)NSIG || scope > SCOPE_END) {
        broken(FRAME_SIGNAL, frame->id);
        return;
    }
    if (process->pid <= 0) return;
    struct family family = family_of(process);
    if (scope == SCOPE_END && !process->result_sent) {
        end_family(process, (int)number);
        return;
    }
    /* The group may outlive its leader, but a pid that was reaped may be someone else's by now. */
    if (process->exited) kill(-process->pid, (int)number);
    else if (scope == SCOPE_PROCESS) kill(process->pid, (int)number);
    else if (scope == SCOPE_GROUP) {
        /* A child that has not yet made its own group is still alone. */
        if (kill(-process->pid, (int)number) < 0 && errno == ESRCH) kill(process->pid, (int)number);
    }
    else tree_signal(&family, (int)number);
}

static void on_ack(struct process *process, const struct frame *frame) {
    struct output *output = &process->outputs[frame->flags];
    ring_drop(&output->ring, get_u64(frame->payload));
    if (output->sent < output->ring.base) output->sent = output->ring.base;
    output_resume(process, output);
}

static void on_discard(struct process *process, uint8_t stream) {
    struct output *output = &process->outputs[stream];
    if (output->discard) return;
    output->discard = true;
    ring_drop(&output->ring, output->ring.end);
    output->sent = output->ring.base;
    output_resume(process, output);
}

static void on_process_frame(struct process *process, const struct frame *frame) {
    switch (frame->type) {
    case FRAME_STDIN:
        if (frame->length < 8) break;
        stdin_take(process, get_u64(frame->payload), frame->payload + 8, frame->length - 8);
        return;
    case FRAME_STDIN_END:
        if (frame->length != 0) break;
        process->stdin_end_asked = true;
        stdin_write(process);
        return;
    case FRAME_SIGNAL:
        if (frame->length != 8) break;
        on_signal(process, frame);
        return;
    case FRAME_RESIZE:
        if (frame->length != 4) break;
        if (process->terminal && process->outputs[0].watch.fd >= 0) {
            struct winsize size = {.ws_row = get_u16(frame->payload), .ws_col = get_u16(frame->payload + 2)};
            ioctl(process->outputs[0].watch.fd, TIOCSWINSZ, &size);
            if (process->orders >= 0) (void)!write(process->orders, &(uint8_t){SIGWINCH}, 1);
        }
        return;
    case FRAME_ACK:
        if (frame->length != 8 || frame->flags >= STREAMS) break;
        on_ack(process, frame);
        return;
    case FRAME_DISCARD:
        if (frame->length != 0 || frame->flags >= STREAMS) break;
        on_discard(process, frame->flags);
        return;
    case FRAME_RELEASE:
        if (frame->length != 0) break;
        if (process->exited || process->failed) process_forget(process);
        return;
    default:
        break;
    }
    broken(frame->type, frame->id);
}

static void on_frame(const struct frame *frame) {
    if (frame->type == FRAME_RESUME) {
        on_resume(frame);
    } else if (frame->type == FRAME_PING && frame->length == 8) {
        pong_due = true;
        pong_token = get_u64(frame->payload);
    } else if (frame->type == FRAME_COUNT && frame->length == 12) {
        counted_due = true;
        count_token = get_u64(frame->payload);
        counted = tree_others(get_u32(frame->payload + 8) ? SIGKILL : 0);
    } else if (frame->type == FRAME_PART && frame->length == 8) {
        counted_due = true;
        count_token = get_u64(frame->payload);
        counted = tree_unkeepable(sentry_root());
        parting = counted == 0;
    } else if (frame->type == FRAME_LIMIT && frame->length == 8) {
        /* Nothing runs under a limit that does not hold. */
        limit_error = sentry_limit(get_u64(frame->payload));
    } else if (frame->type == FRAME_SPAWN) {
        on_spawn(frame->id, inbox + (frame->payload - inbox), frame->length);
    } else if (frame->type >= FRAME_STDIN && frame->type <= FRAME_RELEASE) {
        struct process *process = find(frame->id);
        if (process) on_process_frame(process, frame); /* else: released meanwhile */
    } else {
        broken(frame->type, frame->id);
    }
}

static _Noreturn void finish(bool whole_namespace) {
    /* The host is gone for good. As pid 1 the kernel ends everything with us. */
    struct family all = {.head = getpid()};
    if (!whole_namespace)
        for (int64_t until = now_ms() + LAST_WORDS_MS; now_ms() < until;) {
            tree_signal(&all, SIGKILL);
            while (waitpid(-1, NULL, WNOHANG) > 0) {}
            if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD) break;
            usleep(1000);
        }
    _exit(0);
}

static ssize_t hear_message(void) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof given)];
    } control;
    struct iovec part = {inbox, sizeof inbox};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(host, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
    given_count = 0;
    if (got < 0) return got;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        given_count = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(given, CMSG_DATA(h), sizeof(int) * (size_t)given_count);
    }
    /* Some of them were lost: a program must not run under a part of its limits. */
    if (message.msg_flags & MSG_CTRUNC)
        while (given_count > 0) close(given[--given_count]);
    return got;
}

static void drop_given(void) {
    while (given_count > 0) close(given[--given_count]);
}

/* Returns false when the host has closed its end. */
static bool hear(void) {
    for (int rounds = 0; rounds < 16; rounds++) {
        drop_given();
        ssize_t got = hear_message();
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (got <= 0) return false;
        if ((size_t)got > sizeof inbox) {
            broken(0, 0);
            continue;
        }
        struct frame frame;
        size_t position = 0;
        int more;
        while ((more = frame_next(inbox, (size_t)got, &position, &frame)) > 0) on_frame(&frame);
        if (more < 0) broken(0, 0);
        drop_given();
    }
    return true;
}

/* ---- messages to the host ------------------------------------------------------------------------------------- */

struct batch {
    struct iovec parts[BATCH_FRAMES * 3];
    uint8_t heads[BATCH_FRAMES][SMALL_FRAME];
    int part_count, frame_count;
    size_t bytes;
    struct note {
        struct process *process;
        uint8_t type, stream;
        uint64_t amount;
    } notes[BATCH_FRAMES];
};

static struct batch batch;

static bool batch_has_room(size_t bytes) {
    return batch.frame_count < BATCH_FRAMES && batch.bytes + bytes <= BATCH_BYTES;
}

/* Adds a frame whose payload is `small` bytes already written behind the header, plus up to one external piece. */
static uint8_t *batch_head(void) { return batch.heads[batch.frame_count] + HEADER_BYTES; }

static void batch_add(struct process *process, uint8_t type, uint8_t stream, uint64_t amount, const uint8_t *end,
                      const uint8_t *piece, size_t piece_bytes) {
    uint8_t *head = batch.heads[batch.frame_count];
    size_t small = (size_t)(end - head);
    uint32_t payload = (uint32_t)(small - HEADER_BYTES + piece_bytes);
    put_header(head, type, stream, process ? process->id : 0, payload);
    batch.parts[batch.part_count++] = (struct iovec){head, small};
    if (piece_bytes) batch.parts[batch.part_count++] = (struct iovec){(void *)(uintptr_t)piece, piece_bytes};
    batch.notes[batch.frame_count++] = (struct note){process, type, stream, amount};
    batch.bytes += small + piece_bytes;
}

static uint8_t *put_exit(uint8_t *at, const struct process *p) {
    bool signalled = WIFSIGNALED(p->status);
    at = put_u32(at, signalled ? (uint32_t)-1 : (uint32_t)WEXITSTATUS(p->status));
    at = put_u32(at, signalled ? (uint32_t)WTERMSIG(p->status) : 0);
    at = put_u64(at, (uint64_t)p->usage.ru_utime.tv_sec * 1000000u + (uint64_t)p->usage.ru_utime.tv_usec);
    at = put_u64(at, (uint64_t)p->usage.ru_stime.tv_sec * 1000000u + (uint64_t)p->usage.ru_stime.tv_usec);
    at = put_u64(at, (uint64_t)p->usage.ru_maxrss);
    for (int i = 0; i < STREAMS; i++) at = put_u64(at, p->outputs[i].ring.end + p->outputs[i].discarded);
    return at;
}

static void batch_listing(struct process *p) {
    uint32_t flags = (p->failed ? 0u : (uint32_t)PROCESS_STARTED) | (p->exited ? (uint32_t)PROCESS_EXITED : 0u) |
                     (p->failed ? (uint32_t)PROCESS_FAILED : 0u) |
                     (p->stdin_closed ? (uint32_t)PROCESS_STDIN_CLOSED : 0u);
    uint8_t *at = put_u32(batch_head(), (uint32_t)p->pid);
    at = put_u32(at, flags);
    for (int i = 0; i < STREAMS; i++) at = put_u64(at, p->outputs[i].ring.base);
    at = put_u64(at, p->stdin_ring.end);
    batch_add(p, FRAME_PROCESS, 0, 0, at, p->tag, p->tag_length);
}

/* Returns true while the resynchronisation has the line to itself. */
static bool batch_sync(void) {
    if (sync_state == SYNC_IDLE) return false;
    if (sync_state == SYNC_WELCOME) {
        uint8_t *at = batch_head();
        memcpy(at, sync_nonce, NONCE_BYTES);
        at = put_u32(at + NONCE_BYTES, WIRE_VERSION);
        at = put_u32(at, (uint32_t)process_count);
        batch_add(NULL, FRAME_WELCOME, 0, 0, at, NULL, 0);
        return true;
    }
    if (sync_state == SYNC_LIST) {
        for (struct process *p = processes; p; p = p->next)
            if (!p->listed && batch_has_room(SMALL_FRAME + p->tag_length)) batch_listing(p);
        if (batch.frame_count) return true;
        uint8_t *at = batch_head();
        memcpy(at, sync_nonce, NONCE_BYTES);
        batch_add(NULL, FRAME_SYNCED, 0, 0, at + NONCE_BYTES, NULL, 0);
    }
    return true;
}

static bool batch_output(struct process *p, uint8_t stream) {
    struct output *output = &p->outputs[stream];
    uint64_t sent = output->sent;
    while (sent < output->ring.end) {
        const uint8_t *piece;
        size_t count = ring_piece(&output->ring, sent, &piece);
        if (count > DATA_BYTES_MAX) count = DATA_BYTES_MAX;
        if (!batch_has_room(SMALL_FRAME + count)) return false;
        batch_add(p, FRAME_DATA, stream, count, put_u64(batch_head(), sent), piece, count);
        sent += count;
    }
    return true;
}

/* Whether its program runs. A child that could not execute it never tells of a start. */
static bool has_begun(struct process *p) {
    if (p->begun.fd < 0) return p->late.stage == 0;
    char nothing;
    bool spoke = p->outputs[0].ring.end || p->outputs[1].ring.end;
    if (!spoke && now_ms() < p->quiet_until_ms) {
        held_back = true;
        return false;
    }
    if (spoke || read(p->begun.fd, &nothing, 1) == 0) {
        watch_close(&p->begun);
        return p->late.stage == 0; /* written before the end that closes the line */
    }
    watch_set(&p->begun, true, EPOLLIN);
    return false;
}

static void batch_process(struct process *p) {
    if (!p->started_sent && !p->failed && batch_has_room(SMALL_FRAME) && has_begun(p))
        batch_add(p, FRAME_STARTED, 0, 0, put_u32(batch_head(), (uint32_t)p->pid), NULL, 0);
    bool all = true;
    for (uint8_t i = 0; i < STREAMS; i++) all = batch_output(p, i) && all;
    bool acked = p->stdin_acked_sent != p->stdin_ring.base || (p->stdin_closed && !p->stdin_close_sent);
    if (acked && !p->exited && !p->failed && batch_has_room(SMALL_FRAME)) {
        uint8_t *at = put_u64(batch_head(), p->stdin_ring.base);
        batch_add(p, FRAME_STDIN_ACK, p->stdin_closed, p->stdin_ring.base, put_u32(at, p->stdin_closed), NULL, 0);
    }
    if (p->result_sent || !all || !batch_has_room(SMALL_FRAME) || (p->ends && p->exited && !p->none_left)) return;
    if (p->failed && p->outputs[0].ended && p->outputs[1].ended) {
        uint8_t *at = put_u32(batch_head(), (uint32_t)p->failure.error);
        batch_add(p, FRAME_FAILED, 0, 0, put_u32(at, (uint32_t)p->failure.stage), NULL, 0);
    } else if (!p->failed && p->exited && p->outputs[0].ended && p->outputs[1].ended) {
        batch_add(p, FRAME_EXIT, 0, 0, put_exit(batch_head(), p), NULL, 0);
    }
}

static void batch_fill(void) {
    batch.part_count = batch.frame_count = 0;
    batch.bytes = 0;
    if (broken_due) {
        batch_add(NULL, FRAME_BROKEN, 0, 0, put_u32(batch_head(), broken_reason), NULL, 0);
        put_u64(batch.heads[0] + 8, broken_id);
    }
    if (pong_due)
        batch_add(NULL, FRAME_PONG, 0, 0, put_u64(batch_head(), pong_token), NULL, 0);
    if (counted_due)
        batch_add(NULL, FRAME_COUNTED, 0, 0, put_u32(put_u64(batch_head(), count_token), (uint32_t)counted), NULL, 0);
    if (batch_sync()) return;
    for (struct process *p = processes; p; p = p->next) batch_process(p);
}

/* What a sent message changed. */
static void batch_sent(void) {
    for (int i = 0; i < batch.frame_count; i++) {
        struct note *note = &batch.notes[i];
        switch (note->type) {
        case FRAME_BROKEN: broken_due = false; break;
        case FRAME_PONG: pong_due = false; break;
        case FRAME_COUNTED: counted_due = false; break;
        case FRAME_WELCOME: sync_state = SYNC_LIST; break;
        case FRAME_PROCESS: note->process->listed = true; break;
        case FRAME_SYNCED: sync_state = SYNC_IDLE; break;
        case FRAME_STARTED: note->process->started_sent = true; break;
        case FRAME_DATA: note->process->outputs[note->stream].sent += note->amount; break;
        case FRAME_STDIN_ACK:
            note->process->stdin_acked_sent = note->amount;
            note->process->stdin_close_sent = note->stream;
            break;
        default: note->process->result_sent = true; break;
        }
    }
}

/* Tells the host all there is to tell, but starts that are too fresh. */
static void tell(void) {
    for (;;) {
        held_back = false;
        batch_fill();
        if (batch.frame_count == 0) {
            want_write = false;
            return;
        }
        struct msghdr message = {.msg_iov = batch.parts, .msg_iovlen = (size_t)batch.part_count};
        if (sendmsg(host, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            want_write = errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
            return;
        }
        batch_sent();
    }
}

/* ---- the loop ------------------------------------------------------------------------------------------------- */

static void prepare(int socket, bool whole_namespace) {
    sigset_t all, child;
    struct sigaction plain = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
    /* What the keeper ignores, our children would ignore too. */
    const int ignored[] = {SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) sigaction(ignored[i], &plain, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    host = socket;
    if (!whole_namespace) prctl(PR_SET_CHILD_SUBREAPER, 1);
    tree_begin();
    events = epoll_create1(EPOLL_CLOEXEC);
    signal_watch.fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    host_watch.fd = socket;
    if (events < 0 || signal_watch.fd < 0) _exit(1);
    watch_set(&host_watch, true, EPOLLIN);
    watch_set(&signal_watch, true, EPOLLIN);
}

static int patience(void) {
    if (held_back) return STARTED_DELAY_MS;
    if (parting) return PARTING_MS;
    bool lingers = false;
    for (struct process *p = processes; p; p = p->next) {
        if (p->exited && p->ends && !p->none_left) return LOOK_MS;
        lingers = lingers || (p->exited && p->terminal && !p->outputs[0].ended);
    }
    return lingers ? TERMINAL_LINGER_MS / 4 : -1;
}

static bool handle(struct watch *watch, uint32_t what) {
    struct process *process = watch->process;
    if (watch->kind == WATCH_SOCKET) return !(what & (EPOLLIN | EPOLLHUP | EPOLLERR)) || hear();
    if (watch->kind == WATCH_SIGNALS) reap();
    else if (watch->fd < 0 || (process && process->forgotten)) return true;
    else if (watch->kind == WATCH_OUTPUT) output_read(process, &process->outputs[watch->stream]);
    else if (watch->kind == WATCH_STDIN) stdin_write(process);
    else if (watch->kind == WATCH_LEFTOVER) leftover_read(watch);
    else if (watch->kind == WATCH_BEGUN) watch_close(watch);
    return true;
}

/* After a checkpoint our line is another socket of the host, and gVisor tells of nothing that comes there before it is
 * asked to watch it. Nothing tells us that we are back either. So we ask again and again, until someone greets us. */
static bool listen_again(void) {
    watch_set(&host_watch, false, 0);
    watch_set(&host_watch, true, EPOLLIN);
    return true;
}

_Noreturn void guest_serve(int socket, bool whole_namespace) {
    prepare(socket, whole_namespace);
    bool writing = false;
    for (;;) {
        if (want_write != writing) {
            struct epoll_event event = {.events = EPOLLIN | (want_write ? (uint32_t)EPOLLOUT : 0u), .data.ptr = &host_watch};
            epoll_ctl(events, EPOLL_CTL_MOD, host, &event);
            writing = want_write;
        }
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(events, ready, EVENTS, patience());
        if (parting && listen_again()) writing = false;
        for (int i = 0; i < count; i++)
            if (!handle(ready[i].data.ptr, ready[i].events)) finish(whole_namespace);
        linger();
        for (struct process *p = processes; p; p = p->next) family_look(p);
        tell();
        bury();
    }
}
