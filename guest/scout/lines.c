#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scout.h"

#define BATCH_FILES 64
#define BATCH_BYTES (16u << 10)
#define BATCHES 16
#define THREADS_MAX 4
#define STACK_BYTES (256u << 10)
#ifndef BLOCK_BYTES /* the fuzzer has small ones */
#define BLOCK_BYTES (1u << 20)  /* of a file, in memory; a longer line is looked at in pieces */
#define HISTORY_BYTES (64u << 10) /* of what was looked at, for lines before the next one that fits */
#endif
#define HELD_BYTES (1u << 20)   /* of what a thread has found and may not tell yet */
#define BINARY_BYTES (8u << 10)

struct batch {
    uint64_t number;
    unsigned count;
    size_t names_used;
    struct { struct folder *folder; uint32_t name, path; } files[BATCH_FILES];
    char names[BATCH_BYTES + 2 * (PATH_BYTES_MAX + 257)];
};

struct searcher {
    struct runner pattern;
    struct batch *batch; /* NULL: what is found is told at once */
    struct buffer found;
    uint8_t *block;
};

/* Where one stands in a file. All positions are in the block. */
struct reading {
    int fd;
    const char *path;
    size_t used;     /* bytes that are there */
    size_t next;     /* the first line that was not looked at */
    size_t told;     /* what is before this was told, or is no context any more */
    size_t counted;  /* the line that begins here has this number */
    uint64_t line;
    uint32_t behind; /* lines that are still to be told as context */
    uint64_t hits;
    bool at_end, path_told;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct batch ring[BATCHES];
static uint64_t made, taken, told; /* batches */
static bool is_over, is_enough;
static uint64_t unreadable;
static pthread_t threads[THREADS_MAX];
static unsigned thread_count;

/* ---- telling ----------------------------------------------------------------------------------------------------- */

/* As much of it as may be told. The lock is held, or there is one thread. */
static void tell_found(struct buffer *found) {
    size_t at = 0;
    while (at < found->used && !is_enough) {
        uint32_t size;
        memcpy(&size, found->data + at, sizeof size);
        const uint8_t *record = found->data + at + sizeof size;
        if (record[0] == 'L' && (record[1] & 1)) {
            if (tally.found == asked.limit) {
                tally.is_cut = true;
                __atomic_store_n(&is_enough, true, __ATOMIC_RELEASE);
                break;
            }
            tally.found++;
        }
        at += sizeof size + size;
    }
    send_all(found->data, at);
    found->used = 0;
}

/* In the order of the batches: waits until those before were told. */
static void hand_over(struct searcher *searcher, bool is_done) {
    if (!searcher->batch) {
        tell_found(&searcher->found);
        return;
    }
    pthread_mutex_lock(&lock);
    while (told != searcher->batch->number) pthread_cond_wait(&changed, &lock);
    tell_found(&searcher->found);
    if (is_done) {
        told++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

static void tell_line(struct searcher *searcher, struct reading *file, size_t begin, size_t end, uint64_t line, bool fits) {
    struct buffer *found = &searcher->found;
    if (!file->path_told) {
        size_t record = record_begin(found, 'P');
        buffer_add(found, file->path, strlen(file->path));
        record_end(found, record);
        file->path_told = true;
    }
    size_t size = end - begin;
    bool is_cut = size > asked.line_bytes;
    if (is_cut) size = asked.line_bytes;
    size_t record = record_begin(found, 'L');
    uint8_t flags = (uint8_t)((fits ? 1 : 0) | (is_cut ? 2 : 0));
    buffer_add(found, &flags, 1);
    buffer_add(found, &line, sizeof line);
    buffer_add(found, searcher->block + begin, size);
    record_end(found, record);
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static size_t end_of_line(const struct searcher *searcher, const struct reading *file, size_t at) {
    const uint8_t *end = memchr(searcher->block + at, '\n', file->used - at);
    return end ? (size_t)(end - searcher->block) : file->used;
}

static uint64_t number_at(const struct searcher *searcher, struct reading *file, size_t at) {
    const uint8_t *block = searcher->block;
    for (size_t i = file->counted; i < at; i++) file->line += block[i] == '\n';
    file->counted = at;
    return file->line;
}

/* Lines behind the last one that fitted, as far as `stop`. */
static void tell_behind(struct searcher *searcher, struct reading *file, size_t stop) {
    while (file->behind && file->told < stop) {
        size_t end = end_of_line(searcher, file, file->told);
        tell_line(searcher, file, file->told, end, number_at(searcher, file, file->told), false);
        file->told = end + 1;
        file->behind--;
    }
}

static void on_fit(struct searcher *searcher, struct reading *file, size_t begin, size_t end) {
    tell_behind(searcher, file, begin);
    size_t first = begin;
    for (uint32_t i = 0; i < asked.context && first > file->told; i++) {
        const uint8_t *before = first > 1 ? memrchr(searcher->block, '\n', first - 1) : NULL;
        size_t start = before ? (size_t)(before - searcher->block) + 1 : 0;
        if (start < file->told) break;
        first = start;
    }
    /* Numbers are counted forward only: the first line of the context may lie before what was counted. */
    uint64_t line = number_at(searcher, file, begin);
    for (size_t i = first; i < begin; i++) line -= searcher->block[i] == '\n';
    for (size_t at = first; at < begin; line++) {
        size_t stop = end_of_line(searcher, file, at);
        tell_line(searcher, file, at, stop, line, false);
        at = stop + 1;
    }
    tell_line(searcher, file, begin, end, line, true);
    file->told = file->next = end + 1;
    file->behind = asked.context;
    file->hits++;
    if (searcher->found.used > HELD_BYTES) hand_over(searcher, false);
}

static bool line_fits(struct searcher *searcher, size_t begin, size_t end) {
    if (asked.wants & WANT_LITERAL) return true;
    return runner_find(&searcher->pattern, searcher->block + begin, end - begin) != NULL;
}

/* Looks at whole lines up to `stop`. */
static void look(struct searcher *searcher, struct reading *file, size_t stop) {
    uint8_t *block = searcher->block;
    while (file->next < stop && file->hits < asked.limit_per_file && !__atomic_load_n(&is_enough, __ATOMIC_ACQUIRE)) {
        size_t length = stop - file->next;
        const uint8_t *at = asked.needle_length
                                ? memmem(block + file->next, length, asked.needle, asked.needle_length)
                                : runner_find(&searcher->pattern, block + file->next, length);
        if (!at) break;
        const uint8_t *before = memrchr(block + file->next, '\n', (size_t)(at - block) - file->next);
        size_t begin = before ? (size_t)(before - block) + 1 : file->next;
        size_t end = end_of_line(searcher, file, (size_t)(at - block));
        if (begin >= stop) break; /* behind the last newline there is no line */
        if (asked.needle_length && !line_fits(searcher, begin, end)) file->next = end + 1;
        else on_fit(searcher, file, begin, end);
    }
    if (file->next < stop) file->next = stop;
    tell_behind(searcher, file, stop);
}

/* Makes room for more of the file; what may be told as context stays. */
static void slide(struct searcher *searcher, struct reading *file) {
    size_t keep = file->next;
    for (uint32_t i = 0; i < asked.context && keep > file->told; i++) {
        const uint8_t *before = keep > 1 ? memrchr(searcher->block, '\n', keep - 1) : NULL;
        keep = before ? (size_t)(before - searcher->block) + 1 : 0;
    }
    if (keep < file->told) keep = file->told < file->next ? file->told : file->next;
    if (file->next - keep > HISTORY_BYTES) keep = file->next;
    number_at(searcher, file, keep > file->counted ? keep : file->counted);
    if (file->counted > keep) { /* lines of the context are counted back from what follows them */
        for (size_t i = keep; i < file->counted; i++) file->line -= searcher->block[i] == '\n';
        file->counted = keep;
    }
    memmove(searcher->block, searcher->block + keep, file->used - keep);
    file->used -= keep;
    file->next -= keep;
    file->counted -= keep;
    file->told = file->told > keep ? file->told - keep : 0;
}

static ssize_t fill(struct searcher *searcher, struct reading *file) {
    ssize_t got;
    do got = read(file->fd, searcher->block + file->used, BLOCK_BYTES - file->used);
    while (got < 0 && errno == EINTR);
    if (got > 0) file->used += (size_t)got;
    return got;
}

static void search_file(struct searcher *searcher, int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) return;
    struct reading file = {.fd = fd, .path = path, .line = 1};
    uint64_t size = 0;
    while (!file.at_end && file.hits < asked.limit_per_file && !__atomic_load_n(&is_enough, __ATOMIC_ACQUIRE)) {
        ssize_t got = fill(searcher, &file);
        if (got < 0) {
            if (errno == EACCES || errno == EPERM) __atomic_add_fetch(&unreadable, 1, __ATOMIC_RELAXED);
            return;
        }
        if (!size && memchr(searcher->block, 0, file.used < BINARY_BYTES ? file.used : BINARY_BYTES)) return;
        size += (uint64_t)got;
        file.at_end = !got || size == (uint64_t)info.st_size;
        const uint8_t *last = file.at_end ? NULL : memrchr(searcher->block + file.next, '\n', file.used - file.next);
        size_t stop = file.at_end ? file.used : last ? (size_t)(last - searcher->block) + 1 : file.next;
        if (stop == file.next && file.used == BLOCK_BYTES) {
            slide(searcher, &file);
            if (file.used < BLOCK_BYTES) continue;
            stop = file.used; /* one line is all that there is */
        }
        look(searcher, &file, stop);
        if (file.at_end) break;
        if (file.next > file.used) file.next = file.used; /* the line goes on */
        if (file.told > file.used) file.told = file.used;
        slide(searcher, &file);
    }
}

/* ---- many files -------------------------------------------------------------------------------------------------- */

static void searcher_prepare(struct searcher *searcher) {
    memset(searcher, 0, sizeof *searcher);
    runner_prepare(&searcher->pattern, &asked.pattern);
    searcher->block = take(BLOCK_BYTES);
}

static void search_batch(struct searcher *searcher) {
    struct batch *batch = searcher->batch;
    for (unsigned i = 0; i < batch->count; i++) {
        if (!__atomic_load_n(&is_enough, __ATOMIC_ACQUIRE)) {
            int fd = open_below(batch->files[i].folder->fd, batch->names + batch->files[i].name,
                                O_RDONLY | O_NONBLOCK | O_NOCTTY);
            if (fd >= 0) {
                search_file(searcher, fd, batch->names + batch->files[i].path);
                close(fd);
            } else if (errno == EACCES || errno == EPERM) __atomic_add_fetch(&unreadable, 1, __ATOMIC_RELAXED);
        }
        folder_leave(batch->files[i].folder);
    }
    hand_over(searcher, true);
}

static void *work(void *unused) {
    struct searcher searcher;
    searcher_prepare(&searcher);
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (taken == made && !is_over) pthread_cond_wait(&changed, &lock);
        if (taken == made) {
            pthread_mutex_unlock(&lock);
            return NULL;
        }
        searcher.batch = &ring[taken++ % BATCHES];
        pthread_mutex_unlock(&lock);
        search_batch(&searcher);
    }
}

void lines_begin(void) {
    cpu_set_t set;
    pthread_attr_t attributes;
    int wanted = sched_getaffinity(0, sizeof set, &set) < 0 ? 1 : CPU_COUNT(&set);
    if (wanted > THREADS_MAX) wanted = THREADS_MAX;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    while (thread_count < (unsigned)wanted && !pthread_create(&threads[thread_count], &attributes, work, NULL)) thread_count++;
    if (!thread_count) fail(EAGAIN, "a thread cannot be started");
}

static struct batch *open_batch(void) { return &ring[made % BATCHES]; }

static void close_batch(void) {
    pthread_mutex_lock(&lock);
    made++;
    pthread_cond_broadcast(&changed);
    while (made - told >= BATCHES) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    struct batch *batch = open_batch();
    batch->number = made;
    batch->count = 0;
    batch->names_used = 0;
}

void lines_add(struct folder *folder, const char *name, const char *path) {
    struct batch *batch = open_batch();
    size_t name_size = strlen(name) + 1, path_size = strlen(path) + 1;
    __atomic_add_fetch(&folder->uses, 1, __ATOMIC_ACQ_REL);
    batch->files[batch->count].folder = folder;
    batch->files[batch->count].name = (uint32_t)batch->names_used;
    batch->files[batch->count].path = (uint32_t)(batch->names_used + name_size);
    memcpy(batch->names + batch->names_used, name, name_size);
    memcpy(batch->names + batch->names_used + name_size, path, path_size);
    batch->names_used += name_size + path_size;
    batch->count++;
    if (batch->count == BATCH_FILES || batch->names_used > BATCH_BYTES) close_batch();
}

void lines_end(void) {
    if (open_batch()->count) close_batch();
    pthread_mutex_lock(&lock);
    is_over = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < thread_count; i++) pthread_join(threads[i], NULL);
    tally.unreadable += unreadable;
}

bool lines_are_enough(void) { return __atomic_load_n(&is_enough, __ATOMIC_ACQUIRE); }

void lines_of_one(int fd) {
    struct searcher searcher;
    searcher_prepare(&searcher);
    search_file(&searcher, fd, "");
    hand_over(&searcher, true);
    tally.entries = 1;
    tally.unreadable += unreadable;
}
