#define _GNU_SOURCE
#include "filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the filter knows x86_64 and aarch64"
#endif

/* Calls up to this number are known and allowed unless listed below; what a later kernel adds answers ENOSYS until
 * someone has read what it does. 466 is removexattrat (Linux 6.13). */
enum { LAST_KNOWN = 466, NEW_NAMESPACES = 0x7e020080 };

/* Refused with EPERM: what containers refuse, and more. The reason stands beside each group. */
static const int refused[] = {
    /* mounts and roots: the tree is the host's business */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount,
    SYS_fspick, SYS_mount_setattr, SYS_quotactl, SYS_quotactl_fd, SYS_swapon, SYS_swapoff,
    457 /* statmount */, 458 /* listmount */,
    /* namespaces */
    SYS_unshare, SYS_setns,
    /* the kernel itself */
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_reboot, SYS_bpf,
    SYS_perf_event_open, SYS_syslog, SYS_acct, SYS_lookup_dcookie, SYS_fanotify_init, SYS_fanotify_mark, SYS_vhangup,
    459, 460, 461 /* lsm_* */,
    /* clocks of the machine */
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex,
    /* keys are not namespaced well enough */
    SYS_add_key, SYS_request_key, SYS_keyctl,
    /* handles reach files without a path; foreign descriptors */
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_pidfd_getfd, SYS_kcmp,
    /* large attack surfaces that agents' programs do without */
    SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    /* memory placement on the machine */
    SYS_move_pages, SYS_migrate_pages, SYS_mbind, SYS_set_mempolicy, SYS_set_mempolicy_home_node,
    SYS_nfsservctl,
#if defined(__x86_64__)
    SYS_iopl, SYS_ioperm, SYS_create_module, SYS_get_kernel_syms, SYS_query_module, SYS_uselib, SYS_ustat, SYS_sysfs,
    SYS__sysctl, SYS_modify_ldt,
#endif
};

struct writer {
    struct sock_filter *at;
    int count;
};

static void emit(struct writer *w, uint16_t code, uint32_t k, uint8_t yes, uint8_t no) {
    w->at[w->count++] = (struct sock_filter){code, yes, no, k};
}

static void load(struct writer *w, size_t offset) { emit(w, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0); }

static void answer(struct writer *w, int error) {
    emit(w, BPF_RET | BPF_K, error ? SECCOMP_RET_ERRNO | (uint32_t)error : SECCOMP_RET_ALLOW, 0, 0);
}

/* The lower half of an argument; both architectures are little-endian. */
static size_t argument(int index) { return offsetof(struct seccomp_data, args) + 8u * (size_t)index; }

/* clone: no flag that makes a namespace. */
static void check_clone(struct writer *w) {
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    load(w, argument(0));
    emit(w, BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1);
    answer(w, EPERM);
    answer(w, 0);
}

/* socket: families that stay inside the network namespace. AF_VSOCK would reach the hypervisor. */
static void check_socket(struct writer *w, int call) {
    static const uint32_t families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 7);
    load(w, argument(0));
    for (int i = 0; i < 4; i++) emit(w, BPF_JMP | BPF_JEQ | BPF_K, families[i], (uint8_t)(4 - i), 0);
    answer(w, EAFNOSUPPORT);
    answer(w, 0);
}

/* ioctl: nobody types into a terminal for somebody else. */
static void check_ioctl(struct writer *w) {
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 5);
    load(w, argument(1));
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, TIOCSTI, 1, 0);
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, TIOCLINUX, 0, 1);
    answer(w, EPERM);
    answer(w, 0);
}

/* personality: query, the default, and switching address randomisation off for debuggers. */
static void check_personality(struct writer *w) {
    static const uint32_t allowed[] = {0, 0x0008, 0x00040000, 0xffffffff};
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 7);
    load(w, argument(0));
    for (int i = 0; i < 4; i++) emit(w, BPF_JMP | BPF_JEQ | BPF_K, allowed[i], (uint8_t)(4 - i), 0);
    answer(w, EPERM);
    answer(w, 0);
}

/* Calls that change another process: root inside has the ids of pid 1, and could choke it. */
static void check_pid_one(struct writer *w, int call, int which) {
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4);
    load(w, argument(which));
    emit(w, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1);
    answer(w, EPERM);
    answer(w, 0);
}

static bool is_refused(int call) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i] == call) return true;
    return false;
}

/* Runs of refused numbers, one comparison pair each. */
static void check_refused(struct writer *w) {
    for (int call = 0; call <= LAST_KNOWN; call++) {
        if (!is_refused(call)) continue;
        int last = call;
        while (is_refused(last + 1)) last++;
        emit(w, BPF_JMP | BPF_JGE | BPF_K, (uint32_t)call, 0, 2);
        emit(w, BPF_JMP | BPF_JGT | BPF_K, (uint32_t)last, 1, 0);
        answer(w, EPERM);
        call = last;
    }
}

/* Of a kernel that does not protect its pid 1 by itself. */
static void check_signals(struct writer *w) {
    static const int calls[] = {SYS_kill, SYS_tgkill, SYS_tkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_open, SYS_ptrace};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) check_pid_one(w, calls[i], calls[i] == SYS_ptrace ? 1 : 0);
}

static int build(struct sock_filter *program, bool guarding) {
    struct writer w = {program, 0};
    load(&w, offsetof(struct seccomp_data, arch));
    emit(&w, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(&w, ENOSYS); /* no second system call table */
    load(&w, offsetof(struct seccomp_data, nr));
    emit(&w, BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN, 0, 1); /* x32 numbers are larger too */
    answer(&w, ENOSYS);
    check_refused(&w);
    check_clone(&w);
    check_socket(&w, SYS_socket);
    check_socket(&w, SYS_socketpair);
    check_ioctl(&w);
    check_personality(&w);
    check_pid_one(&w, SYS_prlimit64, 0);
    check_pid_one(&w, SYS_sched_setaffinity, 0);
    check_pid_one(&w, SYS_sched_setscheduler, 0);
    check_pid_one(&w, SYS_sched_setparam, 0);
    check_pid_one(&w, SYS_sched_setattr, 0);
    check_pid_one(&w, SYS_setpriority, 1);
    check_pid_one(&w, SYS_ioprio_set, 1);
    if (guarding) check_signals(&w);
    answer(&w, 0);
    return w.count;
}

int filter_build(struct sock_filter *program) { return build(program, false); }

int filter_build_guarding(struct sock_filter *program) { return build(program, true); }

int filter_install(void) {
    struct sock_filter program[FILTER_LENGTH_MAX];
    struct sock_fprog filter = {.filter = program};
    filter.len = (unsigned short)filter_build(program);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, &filter);
}
