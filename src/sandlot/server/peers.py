"""Who is at the other end of a socket in the file system."""

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Process and user, as they were when it was connected, or began to listen."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(told)
    return pid, uid
