#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scout.h"

#define NAMES_MAX (64u << 20) /* of directories that are open, together */
#define ENTRIES_MAX (4u << 20)
#define LINKED_MAX (1u << 20)
#define FLUSH_BYTES (128u << 10)
#define LEVELS_MAX 1030u

struct level {
    struct folder *folder;
    uint32_t first, next, end; /* in `entries` */
    size_t names_used;         /* before it was read */
    size_t path_length;
    bool on_the_way; /* to what was told before */
};

struct listed {
    char *name;
    uint8_t kind;
};

/* Room for all there may be, in addresses: pages come when they are used, and nothing moves. */
static char *names;
static size_t names_used;
static struct listed *entries;
static uint32_t entries_used;
static struct level levels[LEVELS_MAX];
static uint32_t depth;
static char path[PATH_BYTES_MAX + 257];
static struct buffer out;
static struct runner pattern, include, exclude;

static uint8_t kind_of(mode_t mode) {
    return S_ISREG(mode) ? KIND_FILE : S_ISDIR(mode) ? KIND_DIRECTORY : S_ISLNK(mode) ? KIND_LINK : KIND_OTHER;
}

static uint8_t kind_of_entry(int folder, const char *name, unsigned char type) {
    struct stat info;
    switch (type) {
    case DT_REG: return KIND_FILE;
    case DT_DIR: return KIND_DIRECTORY;
    case DT_LNK: return KIND_LINK;
    case DT_UNKNOWN: return fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) ? 0 : kind_of(info.st_mode);
    default: return KIND_OTHER;
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

struct kernel_entry {
    uint64_t inode, offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static void list_add(int folder, const struct kernel_entry *entry) {
    const char *name = entry->name;
    if (!strcmp(name, ".") || !strcmp(name, "..") || (name[0] == '.' && !(asked.wants & WANT_HIDDEN))) return;
    size_t size = strlen(name) + 1;
    uint8_t kind = kind_of_entry(folder, name, entry->type);
    if (!kind) return;
    if (names_used + size > NAMES_MAX || entries_used == ENTRIES_MAX) fail(EMFILE, "directories with too many entries");
    memcpy(names + names_used, name, size);
    entries[entries_used++] = (struct listed){.name = names + names_used, .kind = kind};
    names_used += size;
}

/* All entries of a directory, in order. */
static bool list(struct level *level) {
    static char block[64 << 10] __attribute__((aligned(16)));
    level->first = level->next = entries_used;
    level->names_used = names_used;
    for (;;) {
        long got = syscall(SYS_getdents64, level->folder->fd, block, sizeof block);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        if (!got) break;
        for (long at = 0; at < got;) {
            const struct kernel_entry *entry = (const struct kernel_entry *)(block + at);
            list_add(level->folder->fd, entry);
            at += entry->length;
        }
    }
    level->end = entries_used;
    qsort(entries + level->first, level->end - level->first, sizeof *entries, by_name);
    return true;
}

void folder_leave(struct folder *folder) {
    if (__atomic_sub_fetch(&folder->uses, 1, __ATOMIC_ACQ_REL) > 0) return;
    close(folder->fd);
    free(folder);
}

static bool enter(int fd, size_t path_length, bool on_the_way) {
    struct folder *folder = take(sizeof *folder);
    *folder = (struct folder){.fd = fd, .uses = 1};
    levels[depth] = (struct level){.folder = folder, .path_length = path_length, .on_the_way = on_the_way};
    if (!list(&levels[depth])) {
        int number = errno;
        entries_used = levels[depth].first;
        names_used = levels[depth].names_used;
        folder_leave(folder);
        errno = number;
        return false;
    }
    depth++;
    return true;
}

static void leave(void) {
    struct level *level = &levels[--depth];
    entries_used = level->first;
    names_used = level->names_used;
    folder_leave(level->folder);
}

static void tell(const char *name, size_t length) {
    struct {
        uint32_t mode, uid, gid, links;
        uint64_t size, blocks;
        int64_t modified, changed;
        uint32_t modified_ns, changed_ns, target, path;
    } __attribute__((packed)) told;
    struct stat info;
    char target[PATH_BYTES_MAX + 1];
    int folder = levels[depth - 1].folder->fd;
    ssize_t size = 0;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0) return;
    if (S_ISLNK(info.st_mode) && (size = readlinkat(folder, name, target, sizeof target)) < 0) return;
    if (tally.found == asked.limit) {
        tally.is_cut = true;
        return;
    }
    tally.found++;
    told.mode = info.st_mode;
    told.uid = info.st_uid;
    told.gid = info.st_gid;
    told.links = (uint32_t)info.st_nlink;
    told.size = (uint64_t)info.st_size;
    told.blocks = (uint64_t)info.st_blocks;
    told.modified = info.st_mtim.tv_sec;
    told.modified_ns = (uint32_t)info.st_mtim.tv_nsec;
    told.changed = info.st_ctim.tv_sec;
    told.changed_ns = (uint32_t)info.st_ctim.tv_nsec;
    told.target = (uint32_t)size;
    told.path = (uint32_t)length;
    size_t begin = record_begin(&out, 'F');
    buffer_add(&out, &told, sizeof told);
    buffer_add(&out, target, (size_t)size);
    buffer_add(&out, path, length);
    record_end(&out, begin);
    if (out.used > FLUSH_BYTES) {
        send_all(out.data, out.used);
        out.used = 0;
    }
}

/* Whether a file with several names was counted before. */
static bool is_known(const struct stat *info) {
    static struct { uint64_t device, inode; } *known;
    static uint32_t count;
    if (S_ISDIR(info->st_mode) || info->st_nlink < 2) return false;
    if (!known) {
        known = take(2 * LINKED_MAX * sizeof *known);
        memset(known, 0, 2 * LINKED_MAX * sizeof *known);
    }
    uint64_t hash = (info->st_ino * 0x9e3779b97f4a7c15u) ^ info->st_dev;
    for (;; hash++) {
        uint32_t at = (uint32_t)(hash >> 8) % (2 * LINKED_MAX);
        hash += 255;
        if (known[at].inode == info->st_ino && known[at].device == info->st_dev) return true;
        if (known[at].inode) continue;
        if (count == LINKED_MAX) return false;
        count++;
        known[at].inode = info->st_ino;
        known[at].device = info->st_dev;
        return false;
    }
}

static void measure(int folder, const char *name, int flags) {
    struct stat info;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | flags) < 0 || is_known(&info)) return;
    if (S_ISDIR(info.st_mode)) tally.directories++;
    else {
        tally.files++;
        tally.bytes += (uint64_t)info.st_size;
    }
    tally.blocks += (uint64_t)info.st_blocks;
}

static bool is_lasting(int number) {
    return number != ENOENT && number != ESTALE && number != ENOTDIR && number != ELOOP && number != EXDEV;
}

static void descend(const char *name, size_t length, bool on_the_way) {
    if (depth >= asked.depth || depth == LEVELS_MAX || length + 1 > PATH_BYTES_MAX) return;
    int fd = open_below(levels[depth - 1].folder->fd, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    path[length] = '/';
    if (fd < 0 || !enter(fd, length + 1, on_the_way)) {
        if (is_lasting(errno)) tally.unreadable++;
        if (errno == EMFILE) fail(EMFILE, "directories are too deep");
    }
}

/* The next name on the way to what was told before, at this level. */
static const char *way_at(uint32_t level, size_t *length) {
    const char *part = asked.after;
    for (uint32_t i = 0; i < level; i++) {
        part = strchr(part, '/');
        if (!part) return NULL;
        part++;
    }
    *length = strcspn(part, "/");
    return part;
}

/* -1: it was told before; 0: it is on the way to what comes; 1: it was not told. */
static int order(struct level *level, const char *name, bool *is_last) {
    size_t length;
    const char *part = level->on_the_way ? way_at(depth - 1, &length) : NULL;
    if (!part) return 1;
    int compared = strncmp(name, part, length);
    if (!compared && name[length]) compared = 1;
    *is_last = !part[length];
    return compared < 0 ? -1 : compared > 0;
}

static void visit(struct level *level, struct listed *entry) {
    const char *name = entry->name;
    size_t size = strlen(name), length = level->path_length + size;
    bool is_last = false, can_go_on = true, fits = true;
    int place = order(level, name, &is_last);
    if (place < 0 || length > PATH_BYTES_MAX) return;
    memcpy(path + level->path_length, name, size + 1);
    tally.entries++;
    const uint8_t *text = (const uint8_t *)path;
    bool is_directory = entry->kind == KIND_DIRECTORY;
    if (asked.exclude.count && runner_fits(&exclude, text, length, NULL)) return;
    if (asked.mode == MODE_USAGE) measure(level->folder->fd, name, 0);
    else if (asked.mode == MODE_SEARCH) {
        if (entry->kind == KIND_FILE && runner_fits(&include, text, length, NULL)) lines_add(level->folder, name, path);
    } else {
        fits = runner_fits(&pattern, text, length, NULL);
        if (fits && place > 0 && (asked.kinds & entry->kind)) tell(name, length);
        if (is_directory) {
            path[length] = '/';
            runner_fits(&pattern, text, length + 1, &can_go_on);
        }
    }
    /* The path is written over below; the name stays. */
    if (is_directory && can_go_on && !tally.is_cut) descend(name, length, place == 0 && !is_last);
}

void walk(void) {
    names = take(NAMES_MAX);
    entries = take(ENTRIES_MAX * sizeof *entries);
    if (asked.mode == MODE_FIND) runner_prepare(&pattern, &asked.pattern);
    runner_prepare(&include, &asked.include);
    runner_prepare(&exclude, &asked.exclude);
    if (asked.mode == MODE_USAGE) measure(TOP, "", AT_EMPTY_PATH);
    if (!enter(TOP, 0, asked.after[0] != 0)) fail(errno, "the directory");
    while (depth && !tally.is_cut && !lines_are_enough()) {
        struct level *level = &levels[depth - 1];
        if (level->next == level->end) leave();
        else visit(level, &entries[level->next++]);
    }
    send_all(out.data, out.used);
}
