#define _GNU_SOURCE
#include "scout.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../src/kernel.h"

#define REQUEST_MAGIC 0x31544353u
#define REQUEST_BYTES_MAX (8u << 20)
#define GROUPS_MAX 64
#define MEMORY_BYTES (1ull << 30)
#define DESCRIPTORS 4096

struct request asked;
struct tally tally;

void *take(size_t size) { return take_more(NULL, size); }

void *take_more(void *old, size_t size) {
    void *made = realloc(old, size ? size : 1);
    if (!made) fail(ENOMEM, "memory");
    return made;
}

void send_all(const void *data, size_t size) {
    const uint8_t *at = data;
    while (size) {
        ssize_t sent = write(1, at, size);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) _exit(3); /* nobody listens any more */
        at += sent;
        size -= (size_t)sent;
    }
}

void buffer_add(struct buffer *buffer, const void *data, size_t size) {
    if (buffer->used + size > buffer->room) {
        buffer->room = 2 * (buffer->used + size) + 4096;
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

/* Told apart from all that was told before: a reader takes records as they come. Other threads end here too. */
_Noreturn void fail(int number, const char *what) {
    struct { uint32_t size; char kind; int32_t number; char what[64]; } __attribute__((packed)) told = {
        .size = sizeof told - sizeof(uint32_t), .kind = 'X', .number = number};
    snprintf(told.what, sizeof told.what, "%s", what);
    send_all(&told, sizeof told);
    _exit(1);
}

int open_below(int folder, const char *name, int flags) {
    struct open_how how = {
        .flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW),
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    };
    for (int attempt = 0;; attempt++) {
        int fd = sys_openat2(folder, name, &how);
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR) || attempt == 128) return fd;
    }
}

/* ---- the request --------------------------------------------------------------------------------------------------- */

struct head {
    uint32_t magic, mode, wants, kinds, depth, context, line_bytes, has_ids, uid, gid, is_powerful, group_count;
    uint32_t groups[GROUPS_MAX];
    uint64_t limit, limit_per_file;
    uint32_t after, needle, pattern, include, exclude; /* bytes, bytes, and three times steps */
} __attribute__((packed));

static const uint8_t *at, *end;

static const void *next_bytes(size_t size) {
    const uint8_t *begin = at;
    if (size > (size_t)(end - at)) fail(EINVAL, "the request is cut off");
    at += size;
    return begin;
}

static void next_program(struct automaton *automaton, uint32_t count, bool in_lines) {
    if (count > PROGRAM_MAX) fail(EINVAL, "a pattern is too large");
    struct step *steps = take(count * sizeof *steps + 1);
    memcpy(steps, next_bytes(count * sizeof *steps), count * sizeof *steps);
    if (!automaton_prepare(automaton, steps, count, in_lines)) fail(EINVAL, "a pattern makes no sense");
}

static void read_request(struct head *head) {
    uint8_t *data = take(REQUEST_BYTES_MAX);
    size_t size = 0;
    for (ssize_t got; (got = read(0, data + size, REQUEST_BYTES_MAX - size)) > 0;) size += (size_t)got;
    at = data;
    end = data + size;
    memcpy(head, next_bytes(sizeof *head), sizeof *head);
    if (head->magic != REQUEST_MAGIC || head->group_count > GROUPS_MAX || head->after > PATH_BYTES_MAX)
        fail(EINVAL, "the request makes no sense");
    asked = (struct request){
        .mode = head->mode, .wants = head->wants, .kinds = head->kinds, .depth = head->depth, .context = head->context,
        .line_bytes = head->line_bytes, .limit = head->limit, .limit_per_file = head->limit_per_file,
    };
    char *after = take(head->after + 1);
    memcpy(after, next_bytes(head->after), head->after);
    after[head->after] = 0;
    asked.after = after;
    asked.needle = next_bytes(head->needle);
    asked.needle_length = head->needle;
    bool in_lines = head->mode == MODE_SEARCH || head->mode == MODE_SEARCH_ONE;
    next_program(&asked.pattern, head->pattern, in_lines);
    next_program(&asked.include, head->include, false);
    next_program(&asked.exclude, head->exclude, false);
    if (in_lines && !asked.pattern.count && !asked.needle_length) fail(EINVAL, "the request has no pattern");
}

/* ---- rights -------------------------------------------------------------------------------------------------------- */

static void set_capabilities(uint32_t mask) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = mask, .permitted = mask}};
    if (syscall(SYS_capset, &header, data) < 0) fail(errno, "capset");
}

/* The directory is all that can be named from now on, and the user's rights are all there are. */
static void become_user(const struct head *head) {
    gid_t groups[GROUPS_MAX];
    for (uint32_t i = 0; i < head->group_count; i++) groups[i] = head->groups[i];
    if (head->mode != MODE_SEARCH_ONE) {
        struct stat info;
        if (fstat(TOP, &info) < 0) fail(errno, "the directory");
        if (S_ISDIR(info.st_mode) && (fchdir(TOP) < 0 || chroot(".") < 0)) fail(errno, "chroot");
    }
    if (prctl(PR_SET_KEEPCAPS, head->is_powerful ? 1 : 0) < 0 || setgroups(head->group_count, groups) < 0 ||
        setresgid(head->gid, head->gid, head->gid) < 0 || setresuid(head->uid, head->uid, head->uid) < 0)
        fail(errno, "the engine cannot act for the user");
    set_capabilities(head->is_powerful ? 1u << CAP_DAC_READ_SEARCH : 0);
}

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

static const int allowed[] = {
    SYS_openat2, /* the first: a search in one file goes without */
    SYS_read, SYS_write, SYS_close, SYS_newfstatat, SYS_fstat, SYS_getdents64, SYS_readlinkat, SYS_mmap, SYS_munmap,
    SYS_mprotect, SYS_mremap, SYS_brk, SYS_futex, SYS_clone, SYS_clone3, SYS_exit, SYS_exit_group, SYS_rt_sigprocmask,
    SYS_rt_sigaction, SYS_rt_sigreturn, SYS_madvise, SYS_set_robust_list, SYS_rseq, SYS_sched_getaffinity,
    SYS_sched_yield, SYS_getrandom, SYS_gettid, SYS_getpid, SYS_tgkill,
};

#define ALLOWED (sizeof allowed / sizeof *allowed)

static void install_filter(bool opens) {
    struct sock_filter program[ALLOWED + 6] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    size_t used = 4;
    for (size_t i = opens ? 0 : 1; i < ALLOWED; i++)
        program[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[i], (uint8_t)(ALLOWED - i), 0);
    program[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    program[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog given = {.len = (unsigned short)used, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &given) < 0)
        fail(errno, "seccomp");
}

static void confine(const struct head *head) {
    struct rlimit memory = {MEMORY_BYTES, MEMORY_BYTES}, descriptors = {DESCRIPTORS, DESCRIPTORS}, none = {0, 0};
    if (head->has_ids) become_user(head);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) fail(errno, "prctl");
    syscall(SYS_close_range, TOP + 1, ~0u, 0);
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_NOFILE, &descriptors);
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_FSIZE, &none);
    install_filter(head->mode != MODE_SEARCH_ONE);
}

int main(void) {
    struct head head;
    read_request(&head);
    confine(&head);
    if (asked.mode == MODE_SEARCH) lines_begin();
    if (asked.mode == MODE_SEARCH_ONE) lines_of_one(TOP);
    else walk();
    if (asked.mode == MODE_SEARCH) lines_end();
    struct buffer out = {0};
    size_t begin = record_begin(&out, 'E');
    uint64_t told[] = {tally.entries, tally.found, tally.unreadable, tally.is_cut, tally.bytes, tally.blocks, tally.files, tally.directories};
    buffer_add(&out, told, sizeof told);
    record_end(&out, begin);
    send_all(out.data, out.used);
    return 0;
}
