"""Addresses and sockets that must not be reached. Only documentation ranges are tried: there is no route."""

from sandlot.attack.rows import ROOT, USER, Row

_OWN_NETWORK = "a network namespace with nothing but its own loopback"
_ADDRESSES = ("198.18.0.1", "198.19.255.254", "192.0.2.1")


def _connect(
    name: str, family: str, address: str, seen: str, reason: str, users: tuple[str, ...] = (ROOT, USER)
) -> Row:
    return Row(
        name, f"tell(lambda: socket.socket(socket.{family}).connect({address}))", seen, reason, users, python=True
    )


NETWORK = (
    _connect("loopback of the host", "AF_INET", "('127.0.0.1', %host_port%)", "ECONNREFUSED", _OWN_NETWORK),
    _connect("all addresses of the host", "AF_INET", "('0.0.0.0', %host_port%)", "ECONNREFUSED", _OWN_NETWORK),
    _connect("loopback of another session", "AF_INET", "('127.0.0.1', %other_port%)", "ECONNREFUSED", _OWN_NETWORK),
    _connect("abstract socket of the host", "AF_UNIX", "chr(0) + '%host_mark%'", "ECONNREFUSED", _OWN_NETWORK),
    _connect("abstract socket of another session", "AF_UNIX", "chr(0) + '%other_mark%'", "ECONNREFUSED", _OWN_NETWORK),
    _connect("socket file of the host", "AF_UNIX", "'%socket%'", "ENOENT", "no mount of the session holds that file"),
    *(
        _connect(f"address {address}", "AF_INET", f"('{address}', 80)", "ENETUNREACH", "no route")
        for address in _ADDRESSES
    ),
    *(
        Row(
            f"datagram to {address}",
            f"tell(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{address}', 53)))",
            "ENETUNREACH",
            "no route",
            python=True,
        )
        for address in _ADDRESSES
    ),
    Row(
        "interfaces",
        # Tunnels that some kernels put into every namespace; they are down, and only CAP_NET_ADMIN raises them.
        "idle = 'sit0 tunl0 gre0 gretap0 erspan0 ip_vti0 ip6_vti0 ip6tnl0 ip6gre0'.split()\n"
        "print(*(name for _, name in socket.if_nameindex() if name not in idle))",
        "lo",
        _OWN_NETWORK,
        python=True,
    ),
    Row("routes", "tail -n +2 /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route 2>&-", "", _OWN_NETWORK),
    Row("sockets of others", "grep -c -e %host_mark% -e %other_mark% /proc/net/unix", "0", _OWN_NETWORK),
    Row(
        "new address",
        "import fcntl\nrequest = struct.pack('16sHH4s20x', b'lo', socket.AF_INET, 0, socket.inet_aton('198.18.0.9'))\n"
        "tell(lambda: fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8916, request))",
        "EPERM",
        "CAP_NET_ADMIN is not in the bounding set",
        python=True,
    ),
    Row(
        "new link",
        """
message = struct.pack('=IHHIIBxHiII', 32, 16, 0x605, 1, 0, 0, 0, 0, 1, 1)
line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
line.sendto(message, (0, 0))
print(errno.errorcode[-struct.unpack_from('i', line.recv(4096), 16)[0]])
""",
        "EPERM",
        "CAP_NET_ADMIN is not in the bounding set",
        python=True,
    ),
    Row(
        "shared memory of the host",
        "print(libc.shmget(%shm_key%, 0, 0), errno.errorcode[ctypes.get_errno()])",
        "-1 ENOENT",
        "an ipc namespace",
        python=True,
    ),
    Row("ipc of others", "tail -qn +2 /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg", "", "an ipc namespace"),
)
