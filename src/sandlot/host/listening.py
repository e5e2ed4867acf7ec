"""Addresses of the host that ports of sessions are reached by."""

import errno
import ipaddress
import socket

from sandlot.model import Conflict, LimitReached, Unavailable

_BACKLOG = 128
_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(advertised: str, port: int) -> socket.socket:
    """On the advertised address where that is one of this machine, else on all: it is a name, or another machine hands
    on what comes to it. 0: a port that is free. Raises Conflict when it is taken, LimitReached, Unavailable."""
    try:
        host = ipaddress.ip_address(advertised)
    except ValueError:
        return _listen("127.0.0.1" if advertised == "localhost" else "0.0.0.0", port)
    try:
        return _listen(str(host), port)
    except _NotOurs:
        return _listen("::" if host.version == 6 else "0.0.0.0", port)


def told(advertised: str, port: int) -> str:
    return f"[{advertised}]:{port}" if ":" in advertised else f"{advertised}:{port}"


class _NotOurs(Exception):
    pass


def _listen(host: str, port: int) -> socket.socket:
    try:
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise _failed(error, port) from None
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        if error.errno in _ELSEWHERE:
            raise _NotOurs from None
        raise _failed(error, port) from None
    return made


def _failed(error: OSError, port: int) -> Exception:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return Conflict(
            f"port {port} of the host cannot be had: {error.strerror}", next_step="choose another, or none", port=port
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return LimitReached("the engine has no descriptor left", limit="open_files")
    return Unavailable(f"no port of the host can be listened on: {error.strerror}")
