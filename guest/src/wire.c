#include "wire.h"

#include <string.h>

uint16_t get_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t get_u64(const uint8_t *p) { return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32; }

uint8_t *put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) *p++ = (uint8_t)(v >> 8 * i);
    return p;
}

uint8_t *put_u64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++) *p++ = (uint8_t)(v >> 8 * i);
    return p;
}

uint8_t *put_header(uint8_t *p, uint8_t type, uint8_t flags, uint64_t id, uint32_t length) {
    p = put_u32(p, length);
    *p++ = type;
    *p++ = flags;
    *p++ = 0;
    *p++ = 0;
    return put_u64(p, id);
}

int frame_next(const uint8_t *message, size_t length, size_t *position, struct frame *out) {
    size_t at = *position;
    if (at == length) return 0;
    if (length - at < HEADER_BYTES) return -1;
    const uint8_t *head = message + at;
    uint32_t payload = get_u32(head);
    if (payload > length - at - HEADER_BYTES || head[6] != 0 || head[7] != 0) return -1;
    out->type = head[4];
    out->flags = head[5];
    out->id = get_u64(head + 8);
    out->payload = head + HEADER_BYTES;
    out->length = payload;
    *position = at + HEADER_BYTES + payload;
    return 1;
}

/* Moves over one string; NULL when it has no end. */
static char *take_string(uint8_t **at, const uint8_t *end) {
    uint8_t *start = *at;
    uint8_t *zero = start < end ? memchr(start, 0, (size_t)(end - start)) : NULL;
    if (zero == NULL) return NULL;
    *at = zero + 1;
    return (char *)start;
}

int spawn_parse(uint8_t *payload, uint32_t length, struct spawn_request *out, char **slots) {
    enum { FIXED = 24, RLIMIT_BYTES = 20 };
    if (length < FIXED) return -1;
    const uint8_t *end = payload + length;
    out->flags = get_u32(payload);
    out->group_count = 0;
    out->rows = get_u16(payload + 4);
    out->columns = get_u16(payload + 6);
    out->argc = get_u32(payload + 8);
    out->envc = get_u32(payload + 12);
    out->rlimit_count = get_u32(payload + 16);
    out->tag_length = get_u32(payload + 20);
    if (out->flags & ~(uint32_t)SPAWN_FLAGS) return -1;
    if (out->argc == 0 || out->argc > ARGUMENTS_MAX || out->envc > ARGUMENTS_MAX) return -1;
    if (out->rlimit_count > RLIMITS_MAX || out->tag_length > TAG_BYTES_MAX) return -1;
    uint8_t *at = payload + FIXED;
    if ((size_t)(end - at) < (size_t)out->rlimit_count * RLIMIT_BYTES + out->tag_length) return -1;
    for (uint32_t i = 0; i < out->rlimit_count; i++, at += RLIMIT_BYTES)
        out->rlimits[i] = (struct rlimit_request){get_u32(at), get_u64(at + 4), get_u64(at + 12)};
    out->tag = at;
    at += out->tag_length;
    out->user = take_string(&at, end);
    out->cwd = out->user ? take_string(&at, end) : NULL;
    if (out->cwd == NULL) return -1;
    out->argv = slots;
    out->envp = slots + out->argc + 1;
    for (uint32_t i = 0; i < out->argc; i++)
        if ((out->argv[i] = take_string(&at, end)) == NULL) return -1;
    out->argv[out->argc] = NULL;
    for (uint32_t i = 0; i < out->envc; i++)
        if ((out->envp[i] = take_string(&at, end)) == NULL) return -1;
    out->envp[out->envc] = NULL;
    return at == end ? 0 : -1;
}
