"""What a data directory knows of previews: the secret of their tokens, the ports that are public, and where a server
shows them. A server and an engine share it, also where these are two programs: each looks whether it is another by now.
"""

import asyncio
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandlot.model import (
    InvalidState,
    LimitReached,
    PermissionDenied,
    Preview,
    PreviewRequest,
    SessionInfo,
    Unavailable,
    limits,
)
from sandlot.previews import tokens
from sandlot.previews.addresses import PreviewAddress, label_of, path_of

FILE: Final = "previews.json"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server of a data directory is, for those who are outside."""

    api: str  # `http://127.0.0.1:8700`
    scheme: str = "http"
    domain: str = ""  # hosts of previews are below it; empty: there are none
    port: int | None = None  # of those hosts; None: that of the scheme
    may_be_public: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    secret: bytes = field(default=b"", repr=False)
    public: Mapping[PreviewAddress, int] = field(default_factory=dict[PreviewAddress, int])  # and which making
    place: Place | None = None


class PreviewBook:
    def __init__(self, folder: Path) -> None:
        """Nothing is made before a server serves, or a preview is asked for."""
        self._path = folder / FILE
        self._read_at: tuple[int, int, int] | None = None
        self._known = _Known()

    async def issue(self, session: SessionInfo, request: PreviewRequest) -> Preview:
        return await asyncio.to_thread(self._issue, session, request, time.time())

    def _issue(self, session: SessionInfo, request: PreviewRequest, now: float) -> Preview:
        known = self._look()
        place, address = known.place, PreviewAddress(request.session_id, request.port)
        made = tokens.made_us(session.created)
        if place is None:
            raise InvalidState(
                "no server has shown ports of this data directory yet", next_step="start one with `sandlot serve`"
            )
        if request.public and not place.may_be_public:
            raise PermissionDenied(
                "this server lets nobody in without a token",
                next_step="its operator allows it with SANDLOT_PREVIEW_PUBLIC=on",
            )
        is_public = known.public.get(address) == made
        if not known.secret or (request.public is not None and request.public is not is_public):
            known = self._change(lambda was: _changed(was, address, made, public=request.public))
        expires = int(now + request.expires_s) + 1
        label = label_of(address) if place.domain else ""
        port = "" if place.port is None else f":{place.port}"
        return Preview(
            session_id=request.session_id,
            port=request.port,
            url=f"{place.scheme}://{label}.{place.domain}{port}/" if label else "",
            path_url=place.api + path_of(address),
            token=tokens.sign(known.secret, address, session.created, expires, request.key),
            expires=expires,
            public=place.may_be_public and known.public.get(address) == made,
        )

    # ---- for the server ----------------------------------------------------------------------------------------

    def show(self, place: Place) -> None:
        """From now on previews are told to be there. Raises Unavailable."""
        if self._look().place != place:
            self._change(lambda was: _Known(was.secret, was.public, place))

    def hide(self, place: Place | None) -> None:
        """The server that showed them there has ended."""
        if place is not None and self._look().place == place:
            self._change(lambda was: _Known(was.secret, was.public, None if was.place == place else was.place))

    def read(self, address: PreviewAddress, token: str) -> tokens.Grant | None:
        """None for every token that is not good for this port now. Raises Unavailable."""
        secret = self._look().secret
        return tokens.read(secret, address, token, time.time()) if secret else None

    def public(self, address: PreviewAddress) -> int | None:
        """Which making of a session its port is public of. Raises Unavailable."""
        known = self._look()
        return known.public.get(address) if known.place is not None and known.place.may_be_public else None

    # ---- the file ----------------------------------------------------------------------------------------------

    def _look(self) -> _Known:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._read_at, self._known = None, _Known()
            return self._known
        read_at = (status.st_mtime_ns, status.st_ino, status.st_size)
        if read_at != self._read_at:
            self._known = _load(self._path)
            self._read_at = read_at
        return self._known

    def _change(self, change: Callable[[_Known], _Known]) -> _Known:
        """One at a time, on what is there by now; written whole, or not at all."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._read_at = None
                known = change(self._look())
                known = known if known.secret else _Known(secrets.token_bytes(_SECRET_BYTES), known.public, known.place)
                _write(self._path, known)
                self._read_at = None
                return known
            finally:
                os.close(lock)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}") from error


def _changed(was: _Known, address: PreviewAddress, made: int, *, public: bool | None) -> _Known:
    ports = dict(was.public)
    if public:
        if len(ports) >= limits.PREVIEWS_PUBLIC_MAX and address not in ports:
            raise LimitReached(f"{len(ports)} ports are public already", limit="previews_public")
        ports[address] = made
    elif public is not None:
        ports.pop(address, None)
    return _Known(was.secret, ports, was.place)


def _load(path: Path) -> _Known:
    """Raises Unavailable: what cannot be read lets nobody in."""
    try:
        told: Any = json.loads(path.read_bytes())
        place = None if told["place"] is None else Place(**told["place"])
        public = {PreviewAddress(str(id), int(port)): int(made) for id, port, made in told["public"]}
        return _Known(bytes.fromhex(told["secret"]), public, place)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"{path} cannot be read: {error}", next_step="remove it; tokens of previews are no longer good then"
        ) from error


def _write(path: Path, known: _Known) -> None:
    place = known.place and {name: getattr(known.place, name) for name in Place.__slots__}
    public = [(address.session_id, address.port, made) for address, made in known.public.items()]
    told = {"secret": known.secret.hex(), "public": public, "place": place}
    new = path.with_suffix(".new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps(told).encode())
        os.fsync(file)
    finally:
        os.close(file)
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
