"""Files of the host and of others, device nodes, attributes, and what setuid gives."""

from sandlot.attack.rows import ATTEMPT, ROOT, USER, Row, attempt

_ABSENT = "no mount of the session holds that file"
_NO_DEVICES = "device nodes need CAP_MKNOD in the initial user namespace"
_GOLDEN_CAPABILITIES = "00000000a80405fb"
_NONE = "0000000000000000"

HOST = (
    attempt("file of the host", "open @%marker% 0", "ENOENT", _ABSENT),
    attempt("file of the host by the own root", "open @/proc/self/root%marker% 0", "ENOENT", _ABSENT),
    attempt("file of the host by climbing", f"open @{'../' * 40}%marker% 0", "ENOENT", _ABSENT),
    attempt("file of the host by pid 1", "open @/proc/1/root%marker% 0", "EACCES", "pid 1 is undumpable"),
    attempt("link to a file of the host", "link @%marker% @/workspace/linked", "ENOENT", _ABSENT),
    attempt("link to pid 1's root", "link @/proc/1/root%marker% @/workspace/linked", "EACCES", "pid 1 is undumpable"),
    attempt("data directory", "open @%data% 0x10000", "ENOENT", _ABSENT),
    attempt("socket of the host by path", "open @%socket% 0x200000", "ENOENT", _ABSENT),
    Row("secrets by name", "find / -name '*%host_mark%*' 2>/dev/null", "", _ABSENT, (ROOT,)),
    Row("secrets of others by name", "find / -name '*%other_mark%*' 2>/dev/null", "", _ABSENT, (ROOT,)),
    Row("home of root", "ls -A /root | xargs", ".bashrc .profile", "the template makes its own /root", (ROOT,)),
    Row(
        "shadow of the host",
        "cut -d: -f2 /etc/shadow | sort -u",
        "*",
        "the template writes its own /etc/shadow, without a password",
        (ROOT,),
    ),
)

OWNERS = (
    attempt(
        "give a file to the host's root", "chown @/workspace/mine 0xfffffffe 0", "EINVAL", "the id map has no such id"
    ),
    attempt(
        "give a file to a host id",
        "chown @/workspace/mine %host_uid% %host_uid%",
        "EINVAL",
        "the id map has no such id",
    ),
    attempt("files of nobody", "chmod @/dev/null 0600", "EROFS", "/dev is read-only", (ROOT,)),
)

NODES = (
    *(
        attempt(f"node {name}", f"mknod @/workspace/node {mode} {device}", "EPERM", _NO_DEVICES)
        for name, mode, device in (
            ("null", 0o20666, 0x103),
            ("mem", 0o20666, 0x101),
            ("kmsg", 0o20666, 0x10B),
            ("first disk", 0o60666, 0xFE00),
            ("loop", 0o60666, 0x700),
            ("fuse", 0o20666, 0xAE5),
        )
    ),
    attempt("whiteout", "mknod @/workspace/node 0020000 0", "EPERM", "overlayfs makes no whiteouts for others"),
    attempt(
        "rename to a whiteout", "renameat2 -100 @/workspace/mine -100 @/workspace/m 4", "EINVAL", "overlayfs refuses"
    ),
    attempt("node in shm", "mknod @/dev/shm/node 0020666 0x103", "EPERM", _NO_DEVICES),
    Row("nodes on the root", "grep -c ' / / [^ ]*nodev' /proc/self/mountinfo", "1", "the root is mounted nodev"),
    Row(
        "/dev",
        "ls -A /dev | xargs",
        "empty fd full null ptmx pts random shm stderr stdin stdout tty urandom zero",
        "six harmless nodes, made by the keeper",
    ),
    attempt("new file in /dev", "open @/dev/x 0101 0644", "EROFS", "/dev is read-only", (ROOT,)),
    attempt("remove from /dev", "unlink @/dev/null", "EROFS", "/dev is read-only", (ROOT,)),
    Row(
        "disks", "find / -xdev -type b 2>/dev/null; ls /dev/sd* /dev/vd* /dev/mem /dev/kmsg 2>/dev/null", "", "not made"
    ),
)

ATTRIBUTES = (
    *(
        Row(
            f"attribute {name}",
            f"tell(lambda: os.setxattr('/workspace', '{name}', b'y'))",
            "EPERM",
            "trusted attributes need CAP_SYS_ADMIN in the initial user namespace",
            python=True,
        )
        for name in ("trusted.x", "trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy")
    ),
    Row(
        "attribute user.overlay.opaque",
        "os.makedirs('/workspace/o/a', exist_ok=True)\nos.setxattr('/workspace/o', 'user.overlay.opaque', b'y')\n"
        "print(os.listdir('/workspace/o'))",
        "['a']",
        "the overlay is mounted without userxattr, so these are attributes like any other",
        (USER,),
        python=True,
    ),
    Row(
        "immutable flag",
        "import fcntl\ntell(lambda: fcntl.ioctl(os.open('/workspace/mine', 0), 0x40086602, struct.pack('Q', 0x10)))",
        "EPERM",
        "CAP_LINUX_IMMUTABLE is not in the bounding set",
        python=True,
    ),
    Row(
        "program with CAP_SYS_ADMIN",
        """
import shutil
shutil.copy('/bin/true', '/workspace/capable')
os.setxattr('/workspace/capable', 'security.capability', struct.pack('<IIIII', 0x02000001, 1 << 21, 0, 0, 0))
tell(lambda: os.execv('/workspace/capable', ['capable']))
""",
        "EPERM",
        "CAP_SYS_ADMIN is not in the bounding set, so such a program does not start",
        (ROOT,),
        python=True,
    ),
)


def _report(bounding: str, effective: str) -> str:
    return (
        f"CapInh:{_NONE} CapPrm:{effective} CapEff:{effective} CapBnd:{bounding} CapAmb:{_NONE} NoNewPrivs:0 Seccomp:2"
    )


_SHOW = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t' | xargs"
_BOUNDED = "thirteen capabilities are left in the bounding set, and nothing adds to it"

POWERS = (
    Row("powers of root", _SHOW, _report(_GOLDEN_CAPABILITIES, _GOLDEN_CAPABILITIES), _BOUNDED, (ROOT,)),
    Row("powers of a user", _SHOW, _report(_GOLDEN_CAPABILITIES, _NONE), "a user has none", (USER,)),
    Row(
        "powers by sudo",
        f'sudo -n sh -c "id -u; {_SHOW}"',
        f"0\n{_report(_GOLDEN_CAPABILITIES, _GOLDEN_CAPABILITIES)}",
        "sudo gives the session's root, whose bounding set is the same",
        (USER,),
    ),
    Row(
        "powers by a setuid program",
        "sudo -n sh -c 'cp /bin/bash /workspace/shell; chmod 4755 /workspace/shell'; "
        "/workspace/shell -p -c 'head -n 0 /proc/self/status; grep CapEff /proc/self/status | cut -f2; id -u'",
        f"{_GOLDEN_CAPABILITIES}\n0",
        "a setuid program gives the session's root, no more",
        (USER,),
    ),
    Row(
        "mount by sudo",
        f"sudo -n {ATTEMPT} mount @none @/mnt @tmpfs 0 0",
        "EPERM",
        "the filter and the bounding set stay through setuid programs",
        (USER,),
    ),
    Row(
        "id map",
        "awk '{print $1, $3}' /proc/self/uid_map /proc/self/gid_map | sort -u; awk '$2 < 65536' /proc/self/uid_map",
        "0 65536",
        "root of the session is an ordinary high id of the host",
    ),
)
