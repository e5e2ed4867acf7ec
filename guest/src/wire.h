/* The wire between a host and a guest, version 5. docs/protocol.md is the prose of this file.
 *
 * Both ends hold one AF_UNIX SOCK_SEQPACKET socketpair. A message is one or more whole frames, so a reader that
 * dies never leaves half a frame behind. All integers are little-endian.
 */
#ifndef SANDLOT_WIRE_H
#define SANDLOT_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_VERSION = 5,
    HEADER_BYTES = 16,
    MESSAGE_BYTES_MAX = 256 * 1024,
    DATA_BYTES_MAX = 64 * 1024,
    NONCE_BYTES = 16,
    TAG_BYTES_MAX = 4096,
    ARGUMENTS_MAX = 4096,
    RLIMITS_MAX = 16,
};

/* Host to guest. */
enum {
    FRAME_RESUME = 1,    /* nonce, u32 version */
    FRAME_SPAWN = 2,     /* see struct spawn_request */
    FRAME_STDIN = 3,     /* u64 offset, bytes */
    FRAME_STDIN_END = 4, /* empty */
    FRAME_SIGNAL = 5,    /* u32 signal, u32 scope */
    FRAME_RESIZE = 6,    /* u16 rows, u16 columns */
    FRAME_ACK = 7,       /* flags = stream, u64 offset: the host keeps everything before it */
    FRAME_DISCARD = 8,   /* flags = stream: read on, count, keep nothing */
    FRAME_RELEASE = 9,   /* forget a finished process */
    FRAME_PING = 10,     /* u64 token */
    FRAME_COUNT = 11,    /* u64 token, u32 end: how many processes there are but you; 1: kill them first */
    FRAME_PART = 13,     /* u64 token: you are about to be kept on disk; answered by COUNTED, how many things forbid it */
    FRAME_LIMIT = 12,    /* u64 processes that there may be but you, 0: any number; under gVisor only */
};

/* Guest to host. */
enum {
    FRAME_WELCOME = 65,     /* nonce, u32 version, u32 processes */
    FRAME_PROCESS = 66,     /* one known process, between WELCOME and SYNCED */
    FRAME_SYNCED = 67,      /* nonce */
    FRAME_STARTED = 68,     /* u32 pid */
    FRAME_FAILED = 69,      /* u32 errno, u32 stage */
    FRAME_DATA = 70,        /* flags = stream, u64 offset, bytes */
    FRAME_EXIT = 71,        /* i32 code, u32 signal, u64 user_us, u64 system_us, u64 rss_kb, u64 stdout_total, u64 stderr_total */
    FRAME_STDIN_ACK = 72,   /* u64 offset, u32 closed */
    FRAME_PONG = 73,        /* u64 token */
    FRAME_BROKEN = 74,      /* u32 reason: a message of the host was refused whole */
    FRAME_BOOT_FAILED = 75, /* u32 errno, text: the stage */
    FRAME_COUNTED = 76,     /* u64 token, u32 processes */
};

enum { STREAM_STDOUT = 0, STREAM_STDERR = 1, STREAMS = 2 };
/* SCOPE_END: as the tree, and EXIT is told when none of them lives. */
enum { SCOPE_GROUP = 0, SCOPE_TREE = 1, SCOPE_PROCESS = 2, SCOPE_END = 3 };
/* SPAWN_GROUPS: with the message come descriptors of cgroups that the program enters first. SPAWN_PROBE: no program; the
 * arguments are a port, and what to send there. SPAWN_CONNECT: no program; the argument is a port, and the streams are
 * those of a connection to it. SPAWN_FAMILY: worth being kept together with what it starts also where that takes time. */
enum {
    SPAWN_PTY = 1,
    SPAWN_STDIN = 2,
    SPAWN_GROUPS = 4,
    SPAWN_PROBE = 8,
    SPAWN_CONNECT = 16,
    SPAWN_FAMILY = 32,
    SPAWN_FLAGS = 63,
};
enum { SPAWN_GROUPS_MAX = 8 };

/* Where a spawn failed. */
enum {
    STAGE_DUPLICATE = 1,
    STAGE_TOO_MANY = 2,
    STAGE_RESOURCES = 3,
    STAGE_USER = 4,
    STAGE_RLIMIT = 5,
    STAGE_CWD = 6,
    STAGE_EXEC = 7,
    STAGE_PTY = 8,
};

enum { PROCESS_STARTED = 1, PROCESS_EXITED = 2, PROCESS_FAILED = 4, PROCESS_STDIN_CLOSED = 8 };

struct frame {
    uint8_t type;
    uint8_t flags;
    uint64_t id;
    const uint8_t *payload;
    uint32_t length;
};

struct rlimit_request {
    uint32_t resource;
    uint64_t soft;
    uint64_t hard;
};

/* Payload of SPAWN: u32 flags, u16 rows, u16 columns, u32 argc, u32 envc, u32 rlimits, u32 tag_length,
 * rlimits x (u32 resource, u64 soft, u64 hard), tag, then exactly 2 + argc + envc strings, each ended by a zero
 * byte: user, cwd, arguments, environment. */
struct spawn_request {
    uint32_t flags;
    uint16_t rows, columns;
    uint32_t argc, envc;
    uint32_t rlimit_count;
    struct rlimit_request rlimits[RLIMITS_MAX];
    int groups[SPAWN_GROUPS_MAX]; /* the host's descriptors; not part of the payload */
    int group_count;
    uint64_t mark;                /* of its family, or 0; not part of the payload either */
    const uint8_t *tag;
    uint32_t tag_length;
    const char *user;
    const char *cwd;
    char **argv; /* argc + 1 */
    char **envp; /* envc + ENVP_SPARE + 1 */
};

enum { ENVP_SPARE = 5 };

/* Takes the next frame of a message. Returns 1 with the frame, 0 at the end, -1 when the message is malformed. */
int frame_next(const uint8_t *message, size_t length, size_t *position, struct frame *out);

/* Reads a SPAWN payload in place. The strings stay in the payload; `slots` receives the two pointer arrays and must
 * hold SPAWN_SLOTS pointers. Returns 0, or -1 when the payload is malformed. */
enum { SPAWN_SLOTS = 2 * ARGUMENTS_MAX + ENVP_SPARE + 2 };
int spawn_parse(uint8_t *payload, uint32_t length, struct spawn_request *out, char **slots);

uint16_t get_u16(const uint8_t *p);
uint32_t get_u32(const uint8_t *p);
uint64_t get_u64(const uint8_t *p);
uint8_t *put_u32(uint8_t *p, uint32_t v);
uint8_t *put_u64(uint8_t *p, uint64_t v);
uint8_t *put_header(uint8_t *p, uint8_t type, uint8_t flags, uint64_t id, uint32_t length);

#endif
