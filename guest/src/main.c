#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "filter.h"
#include "guest.h"
#include "keeper.h"
#include "raw.h"
#include "runsc.h"
#include "sentry.h"
#include "wire.h"

#if defined(__SANITIZE_ADDRESS__)
/* The keeper has no environment to take options from. Its memory ends with it; a leak check would trace, which the
 * filter and the namespaces forbid. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0:abort_on_error=1:handle_segv=1"; }
#endif

#define SEALED "sealed-keeper"

/* The command line of pid 1 can be read inside a session: it must say nothing about the host. */
static void scrub(int argc, char **argv) {
    char *end = argv[argc - 1] + strlen(argv[argc - 1]);
    memset(argv[0], 0, (size_t)(end - argv[0]));
    snprintf(argv[0], (size_t)(end - argv[0]) + 1, "sandlot");
}

/* Goes on in a sealed copy of the program: until a child execs, its /proc/self/exe is ours, and a session must find
 * neither a path of the host there nor a file that anyone could change. */
static int run_sealed(char **argv) {
    char *arguments[] = {argv[0], (char *)SEALED, NULL}, *environment[] = {NULL};
    int copy = memfd_create("sandlot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (copy < 0 || program < 0) return 1;
    while (sendfile(copy, program, NULL, 1 << 20) > 0) {}
    fchmod(copy, 0555);
    if (fcntl(copy, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0) return 1;
    fexecve(copy, arguments, environment);
    return 1;
}

/* What our parents ignore, every program in every session would ignore too. Raw: the C library keeps two numbers for
 * itself and refuses to touch them. */
static void forget_ignored_signals(void) {
    uint64_t plain[4] = {0};
    for (long number = 1; number <= 64; number++) raw(SYS_rt_sigaction, number, (long)(intptr_t)plain, 0, 8);
}

/* The line is our input. Commands must not find it there, nor what runsc has for its own output. */
static int move_line(void) {
    int line = fcntl(0, F_DUPFD_CLOEXEC, 3), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        if (line < 0 || null < 0 || dup2(null, fd) < 0) _exit(1);
    close(null);
    return line;
}

/* Whether this kernel takes the flag that programs of today pass. */
static int try_automount(void) {
    struct stat info;
    return fstatat(AT_FDCWD, "/", &info, AT_NO_AUTOMOUNT) < 0;
}

static int print_filter(void) {
    struct sock_filter program[FILTER_LENGTH_MAX];
    int count = filter_build(program);
    for (int i = 0; i < count; i++)
        printf("%u %u %u %u\n", program[i].code, program[i].jt, program[i].jf, program[i].k);
    return 0;
}

int main(int argc, char **argv) {
    const char *verb = argc == 2 ? argv[1] : "";
    if (strcmp(verb, "true") == 0) return 0; /* the yardstick of the benchmark */
    if (strcmp(verb, "version") == 0) return printf("keeper %d wire %d\n", KEEPER_VERSION, WIRE_VERSION) < 0;
    if (strcmp(verb, "automount") == 0) return try_automount();
    if (strcmp(verb, "filter") == 0) return print_filter();
    if (strcmp(verb, "guest") == 0) {
        scrub(argc, argv);
        forget_ignored_signals();
        guest_serve(0, getpid() == 1);
    }
    if (strcmp(verb, "sentry") == 0) {
        scrub(argc, argv);
        forget_ignored_signals();
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        sentry_begin();
        guest_serve(move_line(), true);
    }
    if (argc > 3 && strcmp(argv[1], "enter") == 0) return runsc_enter(atoi(argv[2]), argv + 3);
    if (strcmp(verb, "keeper") == 0) return run_sealed(argv);
    if (strcmp(verb, SEALED) == 0) {
        scrub(argc, argv);
        forget_ignored_signals();
        return keeper_run();
    }
    fprintf(stderr, "usage: sandlot-keeper keeper | guest | sentry | enter PIDFD WORD... | filter | version | true\n");
    return 2;
}
