#define _GNU_SOURCE
#include "probe.h"

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "raw.h"

#define CHILD __attribute__((no_sanitize("address", "undefined")))

enum { PATIENCE_S = 2, ANSWER_BYTES = 512 };

CHILD static long open_to(const void *address, long length, int family) {
    long fd = raw(SYS_socket, family, SOCK_STREAM, 0, 0);
    if (fd < 0) return fd;
    long result = raw(SYS_connect, fd, (long)(intptr_t)address, length, 0);
    if (result == 0) return fd;
    raw(SYS_close, fd, 0, 0, 0);
    return result;
}

CHILD int probe_run(char *const *words) {
    uint16_t port = 0;
    for (const char *digit = words[0]; *digit >= '0' && *digit <= '9'; digit++)
        port = (uint16_t)(port * 10 + (*digit - '0'));
    uint16_t swapped = (uint16_t)(port << 8 | port >> 8);
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = swapped, .sin_addr = {0x0100007f}};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = swapped, .sin6_addr = {{{0}}}};
    six.sin6_addr.s6_addr[15] = 1;
    struct itimerval patience = {{0, 0}, {PATIENCE_S, 0}};
    raw(SYS_setitimer, ITIMER_REAL, (long)(intptr_t)&patience, 0, 0);
    long fd = open_to(&four, sizeof four, AF_INET);
    if (fd < 0) fd = open_to(&six, sizeof six, AF_INET6);
    if (fd < 0) return 1;
    if (words[1] == 0) return 0;
    long length = 0;
    while (words[1][length]) length++;
    if (raw(SYS_write, fd, (long)(intptr_t)words[1], length, 0) != length) return 1;
    char answer[ANSWER_BYTES];
    long got = raw(SYS_read, fd, (long)(intptr_t)answer, sizeof answer, 0);
    if (got > 0) raw(SYS_write, 1, (long)(intptr_t)answer, got, 0);
    return got > 0 ? 0 : 1;
}
