#include "ring.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 4096 };

void ring_init(struct ring *ring, size_t limit) { *ring = (struct ring){.limit = limit}; }

void ring_free(struct ring *ring) {
    free(ring->bytes);
    ring->bytes = NULL;
    ring->capacity = 0;
    ring->base = ring->end;
}

static void grow(struct ring *ring) {
    size_t wanted = ring->capacity ? ring->capacity * 4 : FIRST_BYTES;
    if (wanted > ring->limit) wanted = ring->limit;
    uint8_t *bytes = malloc(wanted);
    if (bytes == NULL) return;
    size_t used = (size_t)(ring->end - ring->base);
    for (size_t done = 0; done < used;) {
        const uint8_t *piece = NULL;
        size_t count = ring_piece(ring, ring->base + done, &piece);
        /* Offsets keep their place modulo the capacity, so a piece may have to be split once more. */
        size_t to = (size_t)((ring->base + done) % wanted);
        if (count > wanted - to) count = wanted - to;
        memcpy(bytes + to, piece, count);
        done += count;
    }
    free(ring->bytes);
    ring->bytes = bytes;
    ring->capacity = wanted;
}

size_t ring_space(struct ring *ring, uint8_t **where) {
    size_t used = (size_t)(ring->end - ring->base);
    if (used == ring->capacity && ring->capacity < ring->limit) grow(ring);
    size_t free_bytes = ring->capacity - used;
    if (free_bytes == 0) return 0;
    size_t at = (size_t)(ring->end % ring->capacity);
    *where = ring->bytes + at;
    return free_bytes < ring->capacity - at ? free_bytes : ring->capacity - at;
}

void ring_written(struct ring *ring, size_t count) { ring->end += count; }

size_t ring_piece(const struct ring *ring, uint64_t offset, const uint8_t **where) {
    size_t left = (size_t)(ring->end - offset);
    if (left == 0) return 0;
    size_t at = (size_t)(offset % ring->capacity);
    *where = ring->bytes + at;
    return left < ring->capacity - at ? left : ring->capacity - at;
}

void ring_drop(struct ring *ring, uint64_t offset) {
    if (offset <= ring->base || offset > ring->end) return;
    ring->base = offset;
    if (ring->base == ring->end && ring->capacity > FIRST_BYTES) ring_free(ring);
}
