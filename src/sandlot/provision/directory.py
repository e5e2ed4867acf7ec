"""The directory of one local instance. It is all that is known of it: whoever reads it knows as much as who made it.

record     what was asked for, and what is wanted of it now; replaced whole
user-data  as it was given
alive      locked by the instance's program as long as it lives, however it ends
lock       held by whoever is at work on the instance
log        what its program prints
data/      its disk
"""

import base64
import errno
import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sandlot.model import Instance, InstanceConfig, InstanceState, Market, NotFound, SandlotError, Unavailable

HOST = "127.0.0.1"
_LOG_TAIL_BYTES = 2000
_CONNECT_S = 1.0
_VERSION = 1


class Wish(StrEnum):
    """What is wanted of an instance; what it is, is looked at."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Record:
    instance_id: str
    config: InstanceConfig
    wish: Wish
    launched: float
    starts: int = 0  # how often its program was started
    endpoint: str = ""

    def to_data(self) -> bytes:
        config = asdict(replace(self.config, user_data=b"", tags=dict(self.config.tags)))
        config["user_data"] = base64.b64encode(self.config.user_data).decode()
        told = {"version": _VERSION, "config": config, "wish": self.wish, "launched": self.launched}
        return json.dumps(told | {"starts": self.starts, "endpoint": self.endpoint}).encode()

    @classmethod
    def from_data(cls, instance_id: str, data: bytes) -> "Record":
        """Raises KeyError, TypeError, ValueError and what a wrong config raises."""
        told: dict[str, Any] = json.loads(data)
        config: dict[str, Any] = told["config"]
        config |= {"user_data": base64.b64decode(config["user_data"]), "market": Market(config["market"])}
        wish, launched, starts = Wish(told["wish"]), float(told["launched"]), int(told["starts"])
        return cls(instance_id, InstanceConfig(**config), wish, launched, starts, str(told["endpoint"]))


class InstanceDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.alive = path / "alive"
        self.mark = path / "mark"
        self.user_data = path / "user-data"
        self.log = path / "log"

    @property
    def instance_id(self) -> str:
        return self.path.name

    # ---- what is wanted ----------------------------------------------------------------------------------------

    def make(self, record: Record, place: Path) -> None:
        """All of it, or nothing: it gets its name when it is whole."""
        self.path.mkdir(mode=0o700)
        self.data.mkdir(mode=0o700)
        for name in ("alive", "mark", "lock", "log"):
            (self.path / name).touch(mode=0o600)
        _write(self.user_data, record.config.user_data)
        self.write(record)
        self.path.rename(place)
        _sync(place.parent)

    def write(self, record: Record) -> None:
        _write(self.path / "record", record.to_data())

    def read(self) -> Record:
        """Raises NotFound, Unavailable for one that cannot be understood."""
        try:
            return Record.from_data(self.instance_id, (self.path / "record").read_bytes())
        except FileNotFoundError:
            raise no_instance(self.instance_id) from None
        except (KeyError, TypeError, ValueError, SandlotError, OSError) as error:
            raise Unavailable(
                f"the record of instance {self.instance_id} cannot be read: {error}",
                next_step=f"look at {self.path}",
                instance_id=self.instance_id,
            ) from error

    # ---- what is -----------------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Whether its program, or something that this left, still holds its lock."""
        return _is_locked(self.alive)

    def is_busy(self) -> bool:
        """Whether someone is at work on it."""
        return _is_locked(self.path / "lock")

    def try_lock(self) -> int | None:
        """A descriptor that holds the lock, None when someone else has it. Raises NotFound."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise no_instance(self.instance_id) from None
        return fd if _try_lock(fd, exclusive=True) else None

    def try_hold_alive(self) -> int | None:
        """A descriptor that makes it alive, None while someone looks."""
        fd = os.open(self.alive, os.O_RDWR | os.O_CLOEXEC)
        return fd if _try_lock(fd, exclusive=True) else None

    def look(self) -> Instance:
        """As it is now. Raises NotFound, Unavailable."""
        record = self.read()
        is_busy = self.is_busy()  # asked first: who is at work now may just have changed what comes next
        state, reason = self._state(record, is_busy)
        address = HOST if state in (InstanceState.RUNNING, InstanceState.PENDING) and record.endpoint else ""
        return Instance(
            instance_id=self.instance_id,
            state=state,
            image=record.config.image,
            reason=reason,
            launched=record.launched,
            tags=dict(record.config.tags),
            private_address=address,
            endpoint=record.endpoint if address else "",
        )

    def _state(self, record: Record, is_busy: bool) -> tuple[InstanceState, str]:
        if record.wish is Wish.GONE:
            return InstanceState.TERMINATING, ""
        is_alive = self.is_alive()
        if record.wish is Wish.STOPPED:
            return InstanceState.STOPPING if is_alive or is_busy else InstanceState.STOPPED, ""
        if is_alive:
            return InstanceState.RUNNING if _answers(record.endpoint) else InstanceState.PENDING, ""
        if is_busy:
            return InstanceState.PENDING, ""
        if record.starts == 0:
            return InstanceState.STOPPED, "it was not started, or ended at once: start it"
        return InstanceState.STOPPED, f"its program ended: {self.last_words() or 'it said nothing'}"

    def last_words(self) -> str:
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                lines = log.read(_LOG_TAIL_BYTES).decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return "".join(one for one in lines[-1][:500] if one.isprintable()) if lines else ""


def no_instance(instance_id: str) -> NotFound:
    return NotFound(f"there is no instance {instance_id}", next_step="list them", instance_id=instance_id)


def reserve_port() -> socket.socket:
    """A port that nobody else is given as long as this socket is open. It does not listen, so a program that was told
    of the port can, as long as it sets SO_REUSEADDR as servers do."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
    except OSError as error:
        reserved.close()
        raise Unavailable(f"no port is free: {error.strerror}", next_step="try again") from error
    return reserved


def mounts_below(path: Path) -> list[str]:
    told = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in told]
    return [point for point in points if point.startswith(f"{path}/")]


def _answers(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _try_lock(fd: int, *, exclusive: bool) -> bool:
    """Whether it is had now; if not, the descriptor is closed."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    if not _try_lock(fd, exclusive=False):
        return True
    os.close(fd)
    return False


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and on the disk when this returns."""
    other = path.with_name(path.name + ".new")
    fd = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    other.rename(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
