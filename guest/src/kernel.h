/* System calls that the C library of Debian 12 does not wrap. */
#ifndef SANDLOT_KERNEL_H
#define SANDLOT_KERNEL_H

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef FSCONFIG_CMD_CREATE_EXCL
#define FSCONFIG_CMD_CREATE_EXCL 8
#endif

static inline int sys_open_tree(int dir, const char *path, unsigned flags) {
    return (int)syscall(SYS_open_tree, dir, path, flags);
}

static inline int sys_openat2(int dir, const char *path, struct open_how *how) {
    return (int)syscall(SYS_openat2, dir, path, how, sizeof *how);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags) {
    return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_fsopen(const char *name, unsigned flags) { return (int)syscall(SYS_fsopen, name, flags); }

static inline int sys_fsconfig(int fd, unsigned command, const char *key, const void *value, int aux) {
    return (int)syscall(SYS_fsconfig, fd, command, key, value, aux);
}

static inline int sys_fsmount(int fd, unsigned flags, unsigned attributes) {
    return (int)syscall(SYS_fsmount, fd, flags, attributes);
}

static inline int sys_mount_setattr(int dir, const char *path, unsigned flags, struct mount_attr *attributes) {
    return (int)syscall(SYS_mount_setattr, dir, path, flags, attributes, sizeof *attributes);
}

static inline int sys_pivot_root(const char *new_root, const char *put_old) {
    return (int)syscall(SYS_pivot_root, new_root, put_old);
}

static inline pid_t sys_clone3(struct clone_args *arguments) {
    return (pid_t)syscall(SYS_clone3, arguments, sizeof *arguments);
}

static inline int sys_pidfd_open(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static inline int sys_pidfd_send_signal(int fd, int signal_number) {
    return (int)syscall(SYS_pidfd_send_signal, fd, signal_number, NULL, 0);
}

#endif
