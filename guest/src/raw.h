/* System calls that touch nothing but the kernel: no errno, no thread-local state. For code that runs in memory which
 * another process uses at the same time. */
#ifndef SANDLOT_RAW_H
#define SANDLOT_RAW_H

#include <sys/syscall.h>

/* Gives what the kernel gives: a negative errno for a failure. */
static inline long raw(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long n __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(n), "r"(second), "r"(third), "r"(fourth) : "memory");
    return first;
#else
#error "raw system calls are written for x86_64 and aarch64"
#endif
}

#endif
