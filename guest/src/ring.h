/* Bytes with absolute offsets, kept until someone says that he has them. Grows to a limit, never beyond. */
#ifndef SANDLOT_RING_H
#define SANDLOT_RING_H

#include <stddef.h>
#include <stdint.h>

struct ring {
    uint8_t *bytes;
    size_t capacity;
    size_t limit;
    uint64_t base; /* offset of the oldest byte kept */
    uint64_t end;  /* offset behind the newest byte */
};

void ring_init(struct ring *ring, size_t limit);
void ring_free(struct ring *ring);
/* A contiguous free piece behind the end, grown if allowed; 0 when full or out of memory. */
size_t ring_space(struct ring *ring, uint8_t **where);
void ring_written(struct ring *ring, size_t count);
/* The contiguous piece that starts at `offset`, which lies within [base, end]. */
size_t ring_piece(const struct ring *ring, uint64_t offset, const uint8_t **where);
/* Forgets everything before `offset`; offsets outside [base, end] change nothing. */
void ring_drop(struct ring *ring, uint64_t offset);

#endif
