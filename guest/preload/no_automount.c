/* For sessions under a gVisor that refuses AT_NO_AUTOMOUNT: loaded into every program, it clears the flag, which says
 * nothing there. Needs nothing of the C library but the place of errno, so that it fits any. */
#include <sys/syscall.h>

#include "../src/raw.h"

extern int *__errno_location(void);

#define AT_NO_AUTOMOUNT 0x800

static int answer(long result) {
    if (result >= 0) return (int)result;
    *__errno_location() = (int)-result;
    return -1;
}

static long raw5(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long n __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(n), "r"(second), "r"(third), "r"(fourth), "r"(fifth) : "memory");
    return first;
#endif
}

int statx(int dir, const char *path, int flags, unsigned mask, void *out);
int statx(int dir, const char *path, int flags, unsigned mask, void *out) {
    return answer(raw5(SYS_statx, dir, (long)path, flags & ~AT_NO_AUTOMOUNT, (long)mask, (long)out));
}

int fstatat(int dir, const char *path, void *out, int flags);
int fstatat(int dir, const char *path, void *out, int flags) {
    return answer(raw(SYS_newfstatat, dir, (long)path, (long)out, flags & ~AT_NO_AUTOMOUNT));
}

int fstatat64(int dir, const char *path, void *out, int flags) __attribute__((alias("fstatat")));
