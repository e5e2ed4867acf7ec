/* Fuzzes what the scout does with bytes that others wrote: patterns that are prepared and matched, and texts that are
 * searched for lines. The block of a file is tiny here, so that every text is looked at in many pieces. What is told must
 * be lines of the text, with their numbers; where every line fits into a block, exactly those that a plain search finds.
 * Without libFuzzer it is a program that makes its own inputs: `fuzz-scout-plain SEED COUNT`. */
#define BLOCK_BYTES 64u
#define HISTORY_BYTES 24u
#include "../scout/lines.c"

#include <setjmp.h>
#include <stdio.h>
#include <sys/mman.h>

enum { STEPS = 24, NEEDLE = 3, TEXT = 4096, CONTEXT = 3 };

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

struct request asked;
struct tally tally;
static struct buffer said;
static jmp_buf refused;
static uint64_t searched, found_all;

void *take(size_t size) { return take_more(NULL, size); }

void *take_more(void *old, size_t size) {
    void *made_now = realloc(old, size ? size : 1);
    CHECK(made_now != NULL);
    return made_now;
}

_Noreturn void fail(int number, const char *what) {
    (void)number;
    (void)what;
    longjmp(refused, 1);
}

void buffer_add(struct buffer *buffer, const void *data, size_t size) {
    if (buffer->used + size > buffer->room) {
        buffer->room = buffer->used + size; /* exact, so that one byte too far is seen */
        buffer->data = take_more(buffer->data, buffer->room);
    }
    if (size) memcpy(buffer->data + buffer->used, data, size);
    buffer->used += size;
}

size_t record_begin(struct buffer *buffer, char kind) {
    size_t begin = buffer->used;
    uint32_t size = 0;
    buffer_add(buffer, &size, sizeof size);
    buffer_add(buffer, &kind, 1);
    return begin;
}

void record_end(struct buffer *buffer, size_t begin) {
    uint32_t size = (uint32_t)(buffer->used - begin - sizeof size);
    memcpy(buffer->data + begin, &size, sizeof size);
}

void send_all(const void *data, size_t size) { buffer_add(&said, data, size); }
int open_below(int folder, const char *name, int flags) { (void)folder, (void)name, (void)flags; return -1; }
void folder_leave(struct folder *folder) { (void)folder; }

/* ---- what must be true --------------------------------------------------------------------------------------------- */

static size_t line_starts(const uint8_t *text, size_t size, size_t number, size_t *end) {
    size_t at = 0;
    for (size_t line = 1; line < number; line++) {
        const uint8_t *newline = at < size ? memchr(text + at, '\n', size - at) : NULL;
        CHECK(newline != NULL); /* a line that is not there was told */
        at = (size_t)(newline - text) + 1;
    }
    const uint8_t *newline = at < size ? memchr(text + at, '\n', size - at) : NULL;
    *end = newline ? (size_t)(newline - text) : size;
    return at;
}

static bool is_short(const uint8_t *text, size_t size) {
    size_t length = 0;
    for (size_t i = 0; i < size; i++) {
        length = text[i] == '\n' ? 0 : length + 1;
        if (length > BLOCK_BYTES / 4) return false;
    }
    return true;
}

static uint64_t plain_count(const uint8_t *text, size_t size, const uint8_t *needle, size_t length) {
    uint64_t count = 0;
    for (size_t at = 0; at < size;) {
        const uint8_t *newline = memchr(text + at, '\n', size - at);
        size_t end = newline ? (size_t)(newline - text) : size;
        if (end - at >= length && memmem(text + at, end - at, needle, length)) count++;
        at = end + 1;
    }
    return count;
}

/* Records of whole size; lines in order, each of the text. Gives how many fitted. */
static uint64_t check_said(const uint8_t *text, size_t size, bool short_lines) {
    uint64_t fitting = 0, last = 0;
    for (size_t at = 0; at < said.used;) {
        uint32_t length;
        CHECK(said.used - at >= sizeof length + 1);
        memcpy(&length, said.data + at, sizeof length);
        at += sizeof length;
        CHECK(length >= 1 && length <= said.used - at);
        const uint8_t *record = said.data + at;
        at += length;
        if (record[0] == 'P') continue;
        CHECK(record[0] == 'L' && length >= 10);
        uint64_t number;
        memcpy(&number, record + 2, sizeof number);
        size_t told_size = length - 10;
        CHECK(told_size <= asked.line_bytes || !(record[1] & 2));
        CHECK(number >= 1 && number >= last);
        fitting += record[1] & 1;
        if (short_lines) {
            size_t end, begin = line_starts(text, size, number, &end), whole = end - begin;
            CHECK(number > last); /* no line twice */
            CHECK(told_size == (whole > asked.line_bytes ? asked.line_bytes : whole));
            CHECK(told_size == 0 || memcmp(record + 10, text + begin, told_size) == 0);
        }
        last = number;
    }
    return fitting;
}

static void search(const uint8_t *text, size_t size, bool is_literal) {
    int fd = memfd_create("text", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, text, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
    said.used = 0;
    is_enough = false;
    tally = (struct tally){0};
    struct searcher searcher;
    searcher_prepare(&searcher);
    search_file(&searcher, fd, "p");
    hand_over(&searcher, true);
    close(fd);
    bool is_binary = memchr(text, 0, size < BLOCK_BYTES ? size : BLOCK_BYTES) != NULL, short_lines = is_short(text, size);
    uint64_t fitting = check_said(text, size, short_lines);
    CHECK(fitting <= asked.limit && fitting <= asked.limit_per_file && tally.found == fitting);
    if (is_literal && short_lines && !is_binary && !memchr(asked.needle, '\n', asked.needle_length)) {
        uint64_t wanted = plain_count(text, size, asked.needle, asked.needle_length);
        if (wanted > asked.limit) wanted = asked.limit;
        if (wanted > asked.limit_per_file) wanted = asked.limit_per_file;
        CHECK(fitting == wanted);
    }
    searched++;
    found_all += fitting;
    free(searcher.block);
    free(searcher.found.data);
    free(searcher.pattern.table), free(searcher.pattern.sets), free(searcher.pattern.set_start);
    free(searcher.pattern.set_length), free(searcher.pattern.flags), free(searcher.pattern.buckets);
    free(searcher.pattern.dense), free(searcher.pattern.sparse), free(searcher.pattern.stack);
    free(searcher.pattern.next_dense), free(searcher.pattern.next_sparse), free(searcher.pattern.sorted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct step *steps;
    if (size < 8 || size > TEXT) return 0;
    bool is_literal = data[0] & 1;
    uint32_t count = data[1] % STEPS + 1;
    size_t used = 8 + (is_literal ? NEEDLE : count * 4u);
    if (size < used) return 0;
    asked = (struct request){
        .mode = MODE_SEARCH_ONE, .wants = is_literal ? WANT_LITERAL : 0, .context = data[2] % (CONTEXT + 1),
        .line_bytes = data[3] % 40 + 1, .limit = data[4] & 1 ? data[4] : UINT64_MAX, .limit_per_file = data[5] & 1 ? data[5] : UINT64_MAX,
    };
    if (setjmp(refused)) return 0;
    free(steps);
    steps = take(count * sizeof *steps);
    memset(steps, 0, count * sizeof *steps);
    if (is_literal) {
        asked.needle = data + 8;
        asked.needle_length = data[6] % NEEDLE + 1u;
    } else {
        for (uint32_t i = 0; i < count; i++) {
            const uint8_t *at = data + 8 + i * 4;
            /* Steps that make sense more often than not; what does not must be refused. */
            uint32_t beyond = at[0] >= 252; /* now and then one that must be refused */
            steps[i] = (struct step){.op = at[0] % 4 + 4 * beyond, .low = at[1], .high = at[2], .next = at[3] % count + beyond, .other = at[2] % count};
            if (at[0] & 64 && steps[i].op == OP_RANGE) steps[i].low = 'a', steps[i].high = 'c';
            if (steps[i].op == OP_ASSERT) steps[i].low = at[1] % 5;
        }
    }
    if (!automaton_prepare(&asked.pattern, steps, is_literal ? 0 : count, true)) return 0;
    search(data + used, size - used, is_literal);
    return 0;
}

#ifdef PLAIN
/* Mostly text, with few letters, so that things are found; now and then anything. */
int main(int argc, char **argv) {
    uint64_t state = argc > 1 ? strtoull(argv[1], NULL, 10) * 2 + 1 : 1, rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    static const uint8_t letters[] = "aab b\n\n_cA";
    for (uint64_t round = 0; round < rounds; round++) {
        uint8_t data[TEXT];
        size_t size = 0;
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t wanted = 8 + (state >> 40) % 700;
        bool is_wild = (state >> 33) % 8 == 0;
        for (; size < wanted; size++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint8_t byte = (uint8_t)(state >> 50);
            data[size] = size < 8 || is_wild || (!(data[0] & 1) && size < 8 + 4 * (data[1] % STEPS + 1u)) ? byte : letters[byte % 10];
        }
        uint8_t *exact = malloc(size);
        CHECK(exact != NULL);
        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("%llu inputs, %llu searched, %llu lines\n", (unsigned long long)rounds, (unsigned long long)searched, (unsigned long long)found_all);
    return 0;
}
#endif
