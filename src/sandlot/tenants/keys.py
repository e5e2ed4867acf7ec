"""Keys, in a file of the data directory. It holds hashes, so whoever reads it has no key; it is written whole, so
whoever reads it has all of it. A server and the command line share it: each looks whether it is another one by now.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sandlot.model import (
    KEYS_FILE,
    InvalidArgument,
    KeyInfo,
    NewKey,
    NotFound,
    Scope,
    SessionToken,
    TenantLimits,
    Unavailable,
    check_tenant,
    make_token,
    read_token,
    signing_key_of,
)
from sandlot.tenants import changes
from sandlot.tenants.secret_files import read_secret

PREFIX = "sl"
NAME_CHARS_MAX = 64
_SECRET_FILE = "keys.secret"
_UNKNOWN = hashlib.sha256(b"no key at all").hexdigest()
_NOTHING = bytes(hashlib.sha256().digest_size)


class KeyStore:
    def __init__(self, folder: Path, changed: Callable[[], None] = lambda: None) -> None:
        """Nothing is made before a key is. `changed` hears of a file that is another one by now, before a key in it is
        good for anything."""
        self._path = folder / KEYS_FILE
        self._changed = changed
        self._read_at: tuple[int, int, int] | None = None
        self._keys: dict[str, tuple[KeyInfo, str]] = {}
        self._sealed: dict[str, bytes] = {}  # what tokens are signed with; without the secret it is nothing
        self._secret = b""
        self._limits: dict[str, TenantLimits] = {}

    def has_keys(self) -> bool:
        """Whether any key was ever made: from then on nobody gets in without one."""
        self._refresh()
        return bool(self._keys)

    def check(self, key: str) -> KeyInfo | None:
        """Whose it is, if it is a good one, or a good token of one. Takes as long for one that is unknown."""
        self._refresh()
        token = read_token(key)
        if token is not None:
            return self._check_token(token)
        parts = key.split("_")
        key_id = parts[1] if len(parts) == 3 and parts[0] == PREFIX else ""
        info, known = self._keys.get(key_id, (None, _UNKNOWN))
        is_it = hmac.compare_digest(_hashed(key), known)
        return info if is_it and info is not None and info.is_good(time.time()) else None

    def _check_token(self, token: SessionToken) -> KeyInfo | None:
        info, _ = self._keys.get(token.key_id, (None, ""))
        is_it = token.is_signed_with(self._signing_key(token.key_id))
        return self._narrowed(info, token.scope, token.expires, token.session_id) if is_it else None

    def _narrowed(self, info: KeyInfo | None, scope: Scope, expires: float, session_id: str) -> KeyInfo | None:
        now = time.time()
        if info is None or not info.is_good(now) or scope is Scope.OPERATE or now >= expires:
            return None
        scope = scope if info.scope.holds(scope) else info.scope
        return replace(info, scope=scope, expires=min(expires, info.expires or expires), session=session_id)

    def token(self, key_id: str, session_id: str, expires: float, scope: Scope) -> str:
        """Of a key that is known by its id or its name, without the key. Raises NotFound, InvalidArgument."""
        info = self._one(key_id)
        if info.key_id not in self._sealed:
            raise InvalidArgument(f"the key {key_id!r} was made before there were tokens", next_step="make another key")
        return make_token(info.key_id, self._signing_key(info.key_id), session_id, expires, scope)

    def _signing_key(self, key_id: str) -> bytes:
        sealed = self._sealed.get(key_id, _NOTHING)
        return bytes(one ^ other for one, other in zip(sealed, self._seal(key_id), strict=True))

    def _seal(self, key_id: str) -> bytes:
        """Raises Unavailable."""
        if not self._secret:
            self._secret = read_secret(self._path.with_name(_SECRET_FILE))
        return hmac.new(self._secret, f"signs tokens of\0{key_id}".encode(), hashlib.sha256).digest()

    def is_good(self, info: KeyInfo) -> bool:
        """Still: for what is under way."""
        return self.find(info.key_id) is not None and info.is_good(time.time())

    def of_whom(self, who: str) -> KeyInfo | None:
        """The other way round of `KeyInfo.who`, for what was signed by us with this word in it."""
        key_id, mark, rest = who.partition("~")
        info = self.find(key_id)
        if not mark:
            return info
        try:
            scope, expires, session_id = rest.split("~")
            return self._narrowed(info, Scope(scope), float(expires), session_id)
        except ValueError:
            return None

    def find(self, key_id: str) -> KeyInfo | None:
        """One that is still good."""
        self._refresh()
        info, _ = self._keys.get(key_id, (None, ""))
        return info if info is not None and info.is_good(time.time()) else None

    def limits(self, tenant: str) -> TenantLimits:
        self._refresh()
        return self._limits.get(tenant, TenantLimits())

    def list(self) -> "list[KeyInfo]":
        self._refresh()
        return sorted((info for info, _ in self._keys.values()), key=lambda info: info.created)

    def create(self, name: str, tenant: str, scope: Scope, lifetime_s: float | None = None) -> NewKey:
        """Durable when it returns. Raises InvalidArgument."""
        if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
            raise InvalidArgument(f"a key has a name of 1 to {NAME_CHARS_MAX} characters")
        if tenant:
            check_tenant(tenant)
        if bool(tenant) == (scope is Scope.OPERATE):
            raise InvalidArgument(
                "a key is either of a tenant, or may operate the host", next_step="give a tenant, or the scope operate"
            )
        if lifetime_s is not None and not 0 < lifetime_s <= 10 * 366 * 24 * 3600:
            raise InvalidArgument("a key lives for some time, and at most ten years")
        now = time.time()
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32).replace("_", "-")
        key = f"{PREFIX}_{key_id}_{secret}"
        info = KeyInfo(key_id, name, tenant, scope, now, None if lifetime_s is None else now + lifetime_s)
        signing = zip(signing_key_of(key), self._seal(key_id), strict=True)
        with self._changing() as note:
            self._keys[key_id] = (info, _hashed(key))
            self._sealed[key_id] = bytes(one ^ other for one, other in signing)
            note("key_create", changes.told_of(info))
        return NewKey(info, key)

    def revoke(self, key_id: str) -> KeyInfo:
        """By its id or its name. Raises NotFound, InvalidArgument when several have the name."""
        with self._changing() as note:
            info, hashed = self._keys[self._one(key_id).key_id]
            if info.revoked is None:
                info = replace(info, revoked=time.time())
                note("key_revoke", changes.told_of(info))
            self._keys[info.key_id] = (info, hashed)
        return info

    def _one(self, key_id: str) -> KeyInfo:
        self._refresh()
        named = [info for info, _ in self._keys.values() if key_id in (info.key_id, info.name)]
        found = [info for info in named if info.key_id == key_id] or [i for i in named if i.revoked is None] or named
        if not found:
            raise NotFound(f"there is no key {key_id[:NAME_CHARS_MAX]!r}", next_step="`sandlot key ls` has them")
        if len(found) > 1:
            raise InvalidArgument(f"{len(found)} keys are called {key_id!r}", next_step="give the id of one")
        return found[0]

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        check_tenant(tenant)
        with self._changing() as note:
            self._limits[tenant] = limits
            note("key_limit", {"tenant": tenant, **{name: most for name, most in asdict(limits).items() if most}})

    # ---- the file ----------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._read_at, self._keys, self._sealed, self._limits = None, {}, {}, {}
            return
        read_at = (status.st_mtime_ns, status.st_ino, status.st_size)
        if read_at != self._read_at:
            self._load()
            self._read_at = read_at
            self._changed()

    def _load(self) -> None:
        """Raises Unavailable: a file that cannot be read lets nobody in."""
        try:
            told: Any = json.loads(self._path.read_bytes())
            keys = {row["key_id"]: (_key(row), str(row["hash"])) for row in told["keys"]}
            sealed = {row["key_id"]: _sealed(row["signs"]) for row in told["keys"] if "signs" in row}
            limits = {str(name): TenantLimits(**row) for name, row in told["limits"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(
                f"the keys in {self._path} cannot be read: {error}", next_step="put a copy that is whole in its place"
            ) from error
        self._keys, self._sealed, self._limits = keys, sealed, limits

    @contextmanager
    def _changing(self) -> Generator[Callable[[str, Mapping[str, Any]], None]]:
        """One at a time, on what is there by now; written whole, or not at all, and with it what is noted of it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read_at = None
            self._refresh()
            noted: list[tuple[str, Mapping[str, Any]]] = []
            yield lambda verb, detail: noted.append((verb, detail))
            self._write(noted)
        finally:
            os.close(lock)
            self._read_at = None

    def _row(self, info: KeyInfo, hashed: str) -> Mapping[str, Any]:
        row = {**asdict(info), "scope": str(info.scope), "hash": hashed}
        del row["session"]  # only tokens have one, and those are not kept
        return row | ({"signs": self._sealed[info.key_id].hex()} if info.key_id in self._sealed else {})

    def _write(self, noted: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        rows = [self._row(info, hashed) for info, hashed in self._keys.values()]
        told: dict[str, Any] = {"keys": rows, "limits": {name: asdict(limit) for name, limit in self._limits.items()}}
        told["changes"] = changes.with_those(self._path, noted, told)
        new = self._path.with_suffix(".new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, json.dumps(told, indent=1).encode())
            os.fsync(file)
        finally:
            os.close(file)
        new.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _sealed(text: str) -> bytes:
    sealed = bytes.fromhex(text)
    if len(sealed) != len(_NOTHING):
        raise ValueError("what signs tokens is cut")
    return sealed


def _key(row: Mapping[str, Any]) -> KeyInfo:
    told = {name: value for name, value in row.items() if name not in ("hash", "scope", "signs")}
    return KeyInfo(scope=Scope(row["scope"]), **told)


def _hashed(key: str) -> str:
    """Of 256 random bits: nobody tries them all, so it need not be slow."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
