/* Fuzzes what the guest does with bytes: frames of a message, the payload of a SPAWN, random or built to be whole, and
 * the ring that keeps output. The first byte of an input says which. Everything parsed is a heap copy of exact size, so that the address sanitizer
 * sees one byte read too far. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"
#include "wire.h"

enum { MODE_MESSAGE, MODE_SPAWN, MODE_RING, MODE_BUILT, MODES };
enum { RING_WRITE, RING_DROP, RING_DROP_PART, RING_READ, RING_DROP_WILD, RING_OPERATIONS };

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

static char *slots[SPAWN_SLOTS];

static uint8_t *exact_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    CHECK(copy != NULL);
    if (size) memcpy(copy, data, size);
    return copy;
}

/* The string lies in the payload with its end. Gives the first byte behind it. */
static const uint8_t *check_string(const char *string, const uint8_t *from, const uint8_t *end) {
    const uint8_t *at = (const uint8_t *)string;
    CHECK(at >= from && at < end);
    const uint8_t *zero = memchr(at, 0, (size_t)(end - at));
    CHECK(zero != NULL);
    return zero + 1;
}

static void check_spawn(const struct spawn_request *request, const uint8_t *payload, uint32_t length) {
    const uint8_t *end = payload + length, *at = payload + 24 + request->rlimit_count * 20;
    CHECK((request->flags & ~(uint32_t)SPAWN_FLAGS) == 0);
    CHECK(request->argc >= 1 && request->argc <= ARGUMENTS_MAX && request->envc <= ARGUMENTS_MAX);
    CHECK(request->rlimit_count <= RLIMITS_MAX && request->tag_length <= TAG_BYTES_MAX);
    CHECK(request->tag == at && request->tag_length <= (size_t)(end - at));
    at += request->tag_length;
    /* User, cwd, arguments and environment follow each other without a gap, and nothing comes behind them. */
    CHECK((const uint8_t *)request->user == at);
    at = check_string(request->user, at, end);
    CHECK((const uint8_t *)request->cwd == at);
    at = check_string(request->cwd, at, end);
    for (uint32_t i = 0; i < request->argc; i++) {
        CHECK((const uint8_t *)request->argv[i] == at);
        at = check_string(request->argv[i], at, end);
    }
    CHECK(request->argv[request->argc] == NULL);
    for (uint32_t i = 0; i < request->envc; i++) {
        CHECK((const uint8_t *)request->envp[i] == at);
        at = check_string(request->envp[i], at, end);
    }
    CHECK(request->envp[request->envc] == NULL);
    CHECK(at == end);
    /* Room for what the guest adds to an environment. */
    CHECK(request->envp + request->envc + ENVP_SPARE < slots + SPAWN_SLOTS);
}

static void fuzz_spawn(const uint8_t *data, size_t size) {
    uint8_t *payload = exact_copy(data, size);
    struct spawn_request request;
    if (spawn_parse(payload, (uint32_t)size, &request, slots) == 0) check_spawn(&request, payload, (uint32_t)size);
    CHECK(size == 0 || memcmp(payload, data, size) == 0);
    free(payload);
}

/* A payload whose parts fit together, with counts around the limits: refused exactly when one is over its limit. */
static void fuzz_built(const uint8_t *data, size_t size) {
    enum { FIXED = 9 };
    if (size < FIXED) return;
    uint32_t argc = get_u16(data) % (ARGUMENTS_MAX + 3), envc = get_u16(data + 2) % (ARGUMENTS_MAX + 3);
    uint32_t tag = get_u16(data + 4) % (TAG_BYTES_MAX + 3), limits = data[6] % (RLIMITS_MAX + 3), flags = data[7] % 5;
    size_t text = size - FIXED, strings = 2 + argc + envc;
    size_t length = 24 + limits * 20 + tag + strings + text;
    uint8_t *payload = calloc(1, length), *at = payload;
    CHECK(payload != NULL);
    at = put_u32(at, flags);
    at = put_u32(at, get_u32(data + 2));
    at = put_u32(put_u32(put_u32(put_u32(at, argc), envc), limits), tag);
    at += limits * 20 + tag + data[8] % strings;
    /* All of the text is one string, wherever it stands. */
    for (size_t i = 0; i < text; i++) *at++ = data[FIXED + i] ? data[FIXED + i] : 'x';
    struct spawn_request request;
    int result = spawn_parse(payload, (uint32_t)length, &request, slots);
    bool fits = argc >= 1 && argc <= ARGUMENTS_MAX && envc <= ARGUMENTS_MAX && tag <= TAG_BYTES_MAX &&
                limits <= RLIMITS_MAX && flags <= SPAWN_FLAGS;
    CHECK((result == 0) == fits);
    if (fits) check_spawn(&request, payload, (uint32_t)length);
    free(payload);
}

static void fuzz_message(const uint8_t *data, size_t size) {
    uint8_t *message = exact_copy(data, size);
    struct frame frame;
    size_t position = 0, before = 0;
    int more;
    while ((more = frame_next(message, size, &position, &frame)) > 0) {
        CHECK(position == before + HEADER_BYTES + frame.length && position <= size);
        CHECK(frame.payload == message + before + HEADER_BYTES);
        uint8_t again[HEADER_BYTES];
        put_header(again, frame.type, frame.flags, frame.id, frame.length);
        CHECK(memcmp(again, message + before, HEADER_BYTES) == 0);
        if (frame.type == FRAME_SPAWN) fuzz_spawn(frame.payload, frame.length);
        before = position;
    }
    CHECK(more < 0 || position == size);
    CHECK(position == before);
    free(message);
}

/* A ring beside a flat model: what is written at an offset is always the byte of the pattern at that offset. */
enum { FLAT_BYTES = 256 * 1024 };
static uint8_t pattern[FLAT_BYTES];

struct flat {
    uint64_t base, end;
};

static void check_ring(const struct ring *ring, const struct flat *flat) {
    CHECK(ring->base == flat->base && ring->end == flat->end);
    CHECK(ring->capacity <= ring->limit);
    CHECK(ring->end - ring->base <= ring->capacity || ring->end == ring->base);
}

static void ring_fill(struct ring *ring, struct flat *flat, size_t wanted) {
    while (wanted > 0 && flat->end < FLAT_BYTES) {
        uint8_t *where = NULL;
        size_t space = ring_space(ring, &where);
        if (space == 0) {
            CHECK(ring->end - ring->base == ring->limit);
            return;
        }
        CHECK(space <= ring->limit - (size_t)(ring->end - ring->base));
        if (space > wanted) space = wanted;
        if (space > FLAT_BYTES - flat->end) space = FLAT_BYTES - flat->end;
        memcpy(where, pattern + flat->end, space);
        ring_written(ring, space);
        flat->end += space;
        wanted -= space;
    }
}

static void ring_compare(const struct ring *ring, const struct flat *flat, uint64_t from) {
    int pieces = 0;
    while (from < flat->end) {
        const uint8_t *piece = NULL;
        size_t count = ring_piece(ring, from, &piece);
        CHECK(count > 0 && count <= flat->end - from);
        CHECK(memcmp(piece, pattern + from, count) == 0);
        from += count;
        CHECK(++pieces <= 2);
    }
    const uint8_t *nothing = NULL;
    CHECK(ring_piece(ring, flat->end, &nothing) == 0);
}

static void drop(struct ring *ring, struct flat *flat, uint64_t offset) {
    ring_drop(ring, offset);
    if (offset > flat->base && offset <= flat->end) flat->base = offset;
}

static void fuzz_ring(const uint8_t *data, size_t size) {
    if (size < 1) return;
    struct ring ring;
    struct flat flat = {0};
    /* From less than the first allocation to more than two growths. */
    ring_init(&ring, ((size_t)data[0] + 1) * 512);
    for (size_t at = 1; at + 1 < size; at += 2) {
        uint64_t amount = data[at + 1], used = flat.end - flat.base;
        switch (data[at] % RING_OPERATIONS) {
        case RING_WRITE: ring_fill(&ring, &flat, (size_t)(amount * amount) / 4 + 1); break;
        case RING_DROP: drop(&ring, &flat, flat.base + (amount < used ? amount : used)); break;
        case RING_DROP_PART: drop(&ring, &flat, flat.base + used * amount / 255); break;
        case RING_READ: ring_compare(&ring, &flat, flat.base + used * amount / 255); break;
        case RING_DROP_WILD:
            drop(&ring, &flat, amount & 1 ? flat.end + amount : flat.base - (amount < flat.base ? amount : flat.base));
            break;
        }
        check_ring(&ring, &flat);
    }
    ring_compare(&ring, &flat, flat.base);
    ring_free(&ring);
    CHECK(ring.base == flat.end && ring.end == flat.end);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < FLAT_BYTES; i++) pattern[i] = (uint8_t)(i * 31 + i / 251);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    switch (data[0] % MODES) {
    case MODE_MESSAGE: fuzz_message(data + 1, size - 1); break;
    case MODE_SPAWN: fuzz_spawn(data + 1, size - 1); break;
    case MODE_RING: fuzz_ring(data + 1, size - 1); break;
    case MODE_BUILT: fuzz_built(data + 1, size - 1); break;
    }
    return 0;
}
