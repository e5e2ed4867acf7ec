#include "automaton.h"

#include <stdlib.h>
#include <string.h>

#include "scout.h"

#define STATES_MAX 2048u
#define POOL_MAX (4u << 20)
#define BUCKETS 8192u
#define UNKNOWN (-1)
#define FLAG_START 1u
#define FLAG_WORD 2u

static bool is_word(unsigned byte) {
    return byte < 256 && (byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                          (byte >= 'a' && byte <= 'z') || byte == '_');
}

bool automaton_prepare(struct automaton *automaton, const struct step *steps, uint32_t count, bool in_lines) {
    bool edge[258] = {false}, words = false;
    *automaton = (struct automaton){.steps = steps, .count = count, .in_lines = in_lines};
    if (count > PROGRAM_MAX) return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct step *step = &steps[i];
        if (step->op > OP_ASSERT || step->next >= count || step->other >= count) return false;
        if (step->op == OP_RANGE) edge[step->low] = edge[step->high + 1] = true;
        if (step->op == OP_ASSERT) words |= step->low >= AT_WORD_EDGE;
    }
    for (unsigned byte = 1; words && byte <= 256; byte++) edge[byte] |= is_word(byte) != is_word(byte - 1);
    edge['\n'] = edge['\n' + 1] = edge[END_OF_TEXT] = true;
    unsigned class = 0;
    for (unsigned byte = 0; byte <= END_OF_TEXT; byte++) {
        if (byte && edge[byte]) class++;
        automaton->class_of[byte] = (uint16_t)class;
        if (!byte || edge[byte]) automaton->byte_of[class] = (uint16_t)byte;
    }
    automaton->classes = class + 1;
    /* The end of a line is the end of a text, and the next line begins anew. */
    if (in_lines) automaton->class_of['\n'] = automaton->class_of[END_OF_TEXT];
    return true;
}

static void forget(struct runner *runner) {
    runner->states = runner->pool_used = 0;
    memset(runner->buckets, 0, BUCKETS * sizeof(uint32_t));
}

void runner_prepare(struct runner *runner, const struct automaton *automaton) {
    memset(runner, 0, sizeof *runner);
    runner->automaton = automaton;
    if (!automaton->count) return;
    size_t count = automaton->count;
    runner->table = take(STATES_MAX * automaton->classes * sizeof *runner->table);
    runner->sets = take(POOL_MAX * sizeof *runner->sets);
    runner->set_start = take(STATES_MAX * sizeof(uint32_t));
    runner->set_length = take(STATES_MAX * sizeof(uint32_t));
    runner->flags = take(STATES_MAX);
    runner->buckets = take(BUCKETS * sizeof(uint32_t));
    uint32_t **lists[] = {&runner->dense, &runner->sparse, &runner->stack, &runner->next_dense, &runner->next_sparse, &runner->sorted};
    /* Every step is put on the stack at most twice: a split names two others, and each is entered once. */
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) *lists[i] = take((2 * count + 2) * sizeof(uint32_t));
    memset(runner->sparse, 0, count * sizeof(uint32_t));
    memset(runner->next_sparse, 0, count * sizeof(uint32_t));
    forget(runner);
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The state of a set; made when it is new. -1 when there is no room: then everything is to be forgotten. */
static int32_t state_of(struct runner *runner, const uint32_t *set, uint32_t length, uint8_t flags) {
    uint32_t hash = 2166136261u ^ flags;
    for (uint32_t i = 0; i < length; i++) hash = (hash ^ set[i]) * 16777619u;
    for (uint32_t probe = hash;; probe++) {
        uint32_t *bucket = &runner->buckets[probe % BUCKETS];
        if (*bucket) {
            uint32_t known = *bucket - 1;
            if (runner->set_length[known] == length && runner->flags[known] == flags &&
                memcmp(runner->sets + runner->set_start[known], set, length * sizeof *set) == 0)
                return (int32_t)known;
            continue;
        }
        if (runner->states == STATES_MAX || runner->pool_used + length > POOL_MAX) return -1;
        uint32_t made = runner->states++;
        *bucket = made + 1;
        runner->set_start[made] = runner->pool_used;
        runner->set_length[made] = length;
        runner->flags[made] = flags;
        memcpy(runner->sets + runner->pool_used, set, length * sizeof *set);
        runner->pool_used += length;
        memset(runner->table + (size_t)made * runner->automaton->classes, 0xff,
               runner->automaton->classes * sizeof *runner->table);
        return (int32_t)made;
    }
}

static int32_t start_state(struct runner *runner) {
    uint32_t first = 0;
    int32_t state = state_of(runner, &first, 1, FLAG_START);
    if (state >= 0) return state;
    forget(runner);
    return state_of(runner, &first, 1, FLAG_START);
}

static bool holds(unsigned assertion, uint8_t flags, unsigned byte) {
    bool before = flags & FLAG_WORD, after = is_word(byte);
    switch (assertion) {
    case AT_START: return flags & FLAG_START;
    case AT_END: return byte == END_OF_TEXT;
    case AT_WORD_EDGE: return before != after;
    default: return before == after;
    }
}

static bool put(uint32_t *dense, uint32_t *sparse, uint32_t *used, uint32_t value) {
    if (sparse[value] < *used && dense[sparse[value]] == value) return false;
    sparse[value] = *used;
    dense[(*used)++] = value;
    return true;
}

/* What comes after a state when a byte of a class is read; whether the text fits before it. */
static int32_t work_out(struct runner *runner, int32_t *state, uint32_t class) {
    const struct automaton *automaton = runner->automaton;
    uint32_t length = runner->set_length[*state], used = 0, next_used = 0, top = 0;
    uint8_t flags = runner->flags[*state];
    unsigned byte = automaton->byte_of[class];
    bool fits = false;
    for (uint32_t i = length; i-- > 0;) runner->stack[top++] = runner->sets[runner->set_start[*state] + i];
    while (top) {
        uint32_t at = runner->stack[--top];
        if (!put(runner->dense, runner->sparse, &used, at)) continue;
        const struct step *step = &automaton->steps[at];
        if (step->op == OP_MATCH) fits = true;
        else if (step->op == OP_RANGE && byte < 256 && byte >= step->low && byte <= step->high)
            put(runner->next_dense, runner->next_sparse, &next_used, step->next);
        else if (step->op == OP_ASSERT && holds(step->low, flags, byte)) runner->stack[top++] = step->next;
        else if (step->op == OP_SPLIT) {
            runner->stack[top++] = step->other;
            runner->stack[top++] = step->next;
        }
    }
    if (byte == END_OF_TEXT) {
        int32_t result = start_state(runner) << 1 | fits;
        /* Where there was no room, `state` is another one now. */
        return result;
    }
    if (automaton->in_lines) put(runner->next_dense, runner->next_sparse, &next_used, 0);
    memcpy(runner->sorted, runner->next_dense, next_used * sizeof(uint32_t));
    qsort(runner->sorted, next_used, sizeof(uint32_t), compare);
    uint8_t next_flags = is_word(byte) ? FLAG_WORD : 0;
    int32_t next = state_of(runner, runner->sorted, next_used, next_flags);
    if (next < 0) {
        forget(runner);
        *state = -1;
        next = state_of(runner, runner->sorted, next_used, next_flags);
        if (next < 0) fail(0, "a pattern is too large");
    }
    return next << 1 | fits;
}

static inline int32_t advance(struct runner *runner, int32_t state, uint32_t class) {
    int32_t *cell = &runner->table[(size_t)state * runner->automaton->classes + class];
    if (*cell != UNKNOWN) return *cell;
    uint32_t before = runner->states;
    int32_t from = state, result = work_out(runner, &from, class);
    /* When everything was forgotten meanwhile, the cell is somebody else's. */
    if (from == state && runner->states >= before) *cell = result;
    return result;
}

bool runner_fits(struct runner *runner, const uint8_t *text, size_t length, bool *can_go_on) {
    const struct automaton *automaton = runner->automaton;
    if (can_go_on) *can_go_on = true;
    if (!automaton->count) return true;
    int32_t state = start_state(runner);
    for (size_t i = 0; i < length; i++) state = advance(runner, state, automaton->class_of[text[i]]) >> 1;
    if (can_go_on) *can_go_on = runner->set_length[state] > 0;
    return advance(runner, state, automaton->class_of[END_OF_TEXT]) & 1;
}

const uint8_t *runner_find(struct runner *runner, const uint8_t *text, size_t length) {
    const uint16_t *class_of = runner->automaton->class_of;
    int32_t state = start_state(runner);
    for (size_t i = 0; i < length; i++) {
        int32_t result = advance(runner, state, class_of[text[i]]);
        if (result & 1) return text + i;
        state = result >> 1;
    }
    return advance(runner, state, class_of[END_OF_TEXT]) & 1 ? text + length : NULL;
}
