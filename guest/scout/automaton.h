/* Patterns that are matched in time that grows with the text alone: an automaton that is made while it is used, in
 * bounded memory. The program comes from src/sandlot/patterns/parsing.py. */
#ifndef SANDLOT_AUTOMATON_H
#define SANDLOT_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OP_MATCH, OP_RANGE, OP_SPLIT, OP_ASSERT };
enum { AT_START, AT_END, AT_WORD_EDGE, NOT_AT_WORD_EDGE };

#define END_OF_TEXT 256
#define PROGRAM_MAX 20000

struct step {
    uint8_t op, low, high, unused; /* low: which assertion */
    uint32_t next, other;
};

struct automaton {
    const struct step *steps;
    uint32_t count; /* 0: there is no pattern, and everything fits */
    bool in_lines;  /* it may fit anywhere in a line; otherwise a whole text must fit */
    uint32_t classes;
    uint16_t class_of[257];
    uint16_t byte_of[257]; /* one that stands for its class */
};

/* What one thread has found out so far. */
struct runner {
    const struct automaton *automaton;
    int32_t *table; /* state and class to (next state << 1 | fits); -1: not known yet */
    uint32_t *sets, *set_start, *set_length;
    uint8_t *flags; /* of a state: what stands before it */
    uint32_t *buckets;
    uint32_t states, pool_used;
    uint32_t *dense, *sparse, *stack, *next_dense, *next_sparse, *sorted;
};

/* False when the program makes no sense. */
bool automaton_prepare(struct automaton *automaton, const struct step *steps, uint32_t count, bool in_lines);
void runner_prepare(struct runner *runner, const struct automaton *automaton);

/* Whether a whole text fits; `can_go_on`: whether something that begins with it might. */
bool runner_fits(struct runner *runner, const uint8_t *text, size_t length, bool *can_go_on);

/* Where in `text` it is known that a line fits, or NULL. Lines end with a newline; the last one ends with the text. */
const uint8_t *runner_find(struct runner *runner, const uint8_t *text, size_t length);

#endif
