/* A small program that goes through files of a session for the host: one directory is all that it can name, the user's
 * rights are all that it has, and it can be ended at any time. It reads a request from its input and tells what it finds
 * on its output; src/sandlot/host/scouting.py is the other end. */
#ifndef SANDLOT_SCOUT_H
#define SANDLOT_SCOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "automaton.h"

enum { MODE_FIND, MODE_SEARCH, MODE_USAGE, MODE_SEARCH_ONE };
enum { WANT_HIDDEN = 1, WANT_LITERAL = 2 };
enum { KIND_FILE = 1, KIND_DIRECTORY = 2, KIND_LINK = 4, KIND_OTHER = 8 };

#define TOP 3 /* the descriptor of the directory, or of the one file */
#define PATH_BYTES_MAX 4095u

struct request {
    uint32_t mode, wants, kinds, depth, context, line_bytes;
    uint64_t limit, limit_per_file;
    const char *after; /* a path below the directory, or "" */
    const uint8_t *needle;
    size_t needle_length;
    struct automaton pattern, include, exclude;
};

struct tally {
    uint64_t entries, found, unreadable, bytes, blocks, files, directories;
    bool is_cut;
};

extern struct request asked;
extern struct tally tally;

/* Memory, or the end. */
void *take(size_t size);
void *take_more(void *old, size_t size);
_Noreturn void fail(int number, const char *what);

struct buffer {
    uint8_t *data;
    size_t used, room;
};
void buffer_add(struct buffer *buffer, const void *data, size_t size);
size_t record_begin(struct buffer *buffer, char kind);
void record_end(struct buffer *buffer, size_t begin);
void send_all(const void *data, size_t size);

int open_below(int folder, const char *name, int flags);

/* walk.c */
void walk(void);

/* lines.c: files that the walk hands over are looked at by several threads, and told in the order of the walk. */
struct folder {
    int fd;
    int uses;
};
void lines_begin(void);
void lines_add(struct folder *folder, const char *name, const char *path);
void lines_end(void);
bool lines_are_enough(void);
void lines_of_one(int fd);
void folder_leave(struct folder *folder);

#endif
