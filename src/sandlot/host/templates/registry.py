"""Fetches images by the OCI distribution protocol. Blocking. What a registry sends is believed for its digest alone.

A transfer that was cut goes on where it ended, also in the next engine. Credentials go to the registry that they are
for, and to the place that it names for tokens, and nowhere else.
"""

import base64
import hashlib
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from sandlot.host.templates.unpacking.image import choose, is_digest
from sandlot.host.templates.unpacking.refusal import Refused
from sandlot.model import InvalidArgument, NotFound, PermissionDenied, Unavailable, limits

_DOCUMENT_BYTES_MAX = 4 << 20
_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_ATTEMPTS_MAX = 5  # without a byte of progress
_REDIRECTS_MAX = 5
_NESTED_MAX = 3
_LAYERS_MAX = 512
_ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)
_REFERENCE = re.compile(
    r"(?P<host>[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?P<port>:[0-9]{1,5})?/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_CHALLENGE = re.compile(r'([a-zA-Z]+)="([^"]*)"')
OnBytes = Callable[[int], None]


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Reference:
    host: str
    port: int | None
    repository: str
    wanted: str  # a tag or a digest

    @property
    def origin(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


def parse_reference(text: str) -> Reference:
    """HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]. Raises InvalidArgument."""
    found = _REFERENCE.fullmatch(text)
    host = found["host"] if found else ""
    if found is None or not ("." in host or host == "localhost" or found["port"] or host.startswith("[")):
        raise InvalidArgument(
            f"{text[:200]!r} does not say where an image is",
            next_step="give HOST/REPOSITORY:TAG, with the name of the registry",
        )
    port = int(found["port"][1:]) if found["port"] else None
    return Reference(host, port, found["repository"], found["digest"] or found["tag"] or "latest")


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ...)"


def read_credentials(path: str, origin: str) -> Credentials | None:
    """From a file as `docker login` writes it. Raises InvalidArgument."""
    try:
        document = json.loads(Path(path).read_bytes()[:_DOCUMENT_BYTES_MAX])
        entry = document["auths"].get(origin) or document["auths"].get(f"https://{origin}")
        if entry is None:
            return None
        user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{path} holds no credentials in the form of `docker login`") from error
    return Credentials(user, password)


class Registry:
    """One registry, for one image."""

    def __init__(self, reference: Reference, credentials: Credentials | None, *, insecure: bool) -> None:
        self._reference = reference
        self._credentials = credentials
        self._is_local = _is_loopback(reference.host)
        self._scheme = "http" if self._is_local or insecure else "https"
        self._insecure = insecure
        self._is_public = all(one.is_global for one in _addresses(reference.host))
        self._authorization = ""
        self.cancelled = False

    # ---- documents ---------------------------------------------------------------------------------------------

    def manifest(self, platform: tuple[str, str]) -> tuple[dict[str, Any], bytes]:
        """The manifest for this machine, and its bytes. Raises InvalidArgument, NotFound, PermissionDenied,
        Unavailable."""
        wanted = self._reference.wanted
        for _level in range(_NESTED_MAX):
            data = self._document(f"manifests/{wanted}", wanted if is_digest(wanted) else "")
            try:
                document = json.loads(data)
                if not isinstance(document, dict):
                    raise Refused("the manifest is not of the form that was expected")
                told = cast("dict[str, Any]", document)
                if "manifests" not in told:
                    return told, data
                wanted = str(choose(told["manifests"], platform).get("digest"))
            except (ValueError, RecursionError, TypeError) as error:
                raise InvalidArgument("the registry gave a manifest that is not JSON") from error
            except Refused as refused:
                raise InvalidArgument(f"{self._reference.repository}: {refused}") from refused
            if not is_digest(wanted):
                raise InvalidArgument("the registry names a manifest by a digest that cannot be checked")
        raise InvalidArgument("indexes lie in each other too deep")

    def _document(self, path: str, digest: str) -> bytes:
        last: Exception | None = None
        for attempt in range(_ATTEMPTS_MAX):
            try:
                with _Exchange(self._open(path, {"Accept": _ACCEPT})) as answer:
                    data = answer.read(_DOCUMENT_BYTES_MAX + 1)
                    if len(data) > _DOCUMENT_BYTES_MAX:
                        raise InvalidArgument("the registry gave a manifest that is too large")
                    told = digest or answer.getheader("Docker-Content-Digest", "")
                    if is_digest(told) and f"sha256:{hashlib.sha256(data).hexdigest()}" != told:
                        raise InvalidArgument(f"the manifest is not what its digest says: {told}")
                    return data
            except (http.client.HTTPException, OSError) as error:
                if isinstance(error, Unavailable | PermissionDenied | NotFound):
                    raise
                last = error
                self._pause(attempt)
        raise Unavailable(f"{self._reference.origin} cannot be reached: {last}", next_step="try again") from last

    # ---- blobs -------------------------------------------------------------------------------------------------

    def fetch(self, digest: str, size: int, into: Path, on_bytes: OnBytes) -> None:
        """A blob as a file, which is what its digest says. What an earlier attempt got is not asked for again. Raises
        as `manifest`."""
        if into.exists() and into.stat().st_size == size:
            on_bytes(size)
            return
        part = into.with_name(f"{into.name}.part")
        hasher, have = _hash_file(part, on_bytes)
        attempt = 0
        while have < size:
            try:
                before = have
                have = self._fetch_more(digest, size, part, have, hasher, on_bytes)
                if have == before:
                    raise http.client.IncompleteRead(b"")
                attempt = 0
            except (http.client.HTTPException, OSError) as error:
                if isinstance(error, Unavailable | PermissionDenied | NotFound):
                    raise
                attempt += 1
                if attempt >= _ATTEMPTS_MAX:
                    raise Unavailable(
                        f"{self._reference.origin} broke off again and again: {error}",
                        next_step="try again; what has come is kept",
                    ) from error
                hasher, have = _hash_file(part, lambda _count: None)
                self._pause(attempt)
        if f"sha256:{hasher.hexdigest()}" != digest or have != size:
            part.unlink(missing_ok=True)
            raise InvalidArgument(f"a part of the image is not what its digest says: {digest}")
        part.rename(into)

    def _fetch_more(self, digest: str, size: int, part: Path, have: int, hasher: _Hasher, on_bytes: OnBytes) -> int:
        headers = {"Range": f"bytes={have}-"} if have else {}
        with _Exchange(self._open(f"blobs/{digest}", headers)) as answer, part.open("r+b" if have else "wb") as file:
            if have and answer.status != 206:
                # It does not know ranges: from the beginning.
                raise _StartAgain(part)
            file.seek(have)
            while have < size and (data := answer.read(min(_PIECE_BYTES, size - have))):
                if self.cancelled:
                    raise Unavailable("the transfer was given up")
                file.write(data)
                hasher.update(data)
                have += len(data)
                on_bytes(len(data))
        return have

    def _pause(self, attempt: int) -> None:
        if self.cancelled:
            raise Unavailable("the transfer was given up")
        time.sleep(min(0.1 * 2**attempt, 3.0))

    # ---- http --------------------------------------------------------------------------------------------------

    def _open(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        url = f"{self._scheme}://{self._reference.origin}/v2/{self._reference.repository}/{path}"
        for attempt in range(2):
            given = {**headers, **({"Authorization": self._authorization} if self._authorization else {})}
            answer = self._follow(url, given)
            if answer.status != 401 or attempt:
                return self._checked(answer)
            challenge = answer.getheader("WWW-Authenticate", "")
            answer.close()
            self._authorization = self._authorize(challenge)
        raise AssertionError("the second answer is final")

    def _checked(self, answer: http.client.HTTPResponse) -> http.client.HTTPResponse:
        if answer.status in (200, 206):
            return answer
        status = answer.status
        answer.close()
        name = f"{self._reference.origin}/{self._reference.repository}"
        if status in (401, 403):
            raise PermissionDenied(f"{name} is not for us", next_step="give credentials with --auth-file")
        if status == 404:
            raise NotFound(f"the registry has no {name}:{self._reference.wanted}")
        if status == 429 or status >= 500:
            raise http.client.HTTPException(f"the registry answers {status}")
        raise Unavailable(f"the registry answers {status} for {name}")

    def _follow(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        for _redirect in range(_REDIRECTS_MAX):
            answer = self._get(url, headers)
            to = answer.getheader("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not to:
                return answer
            answer.close()
            there = urllib.parse.urljoin(url, to)
            if urllib.parse.urlsplit(there).netloc != urllib.parse.urlsplit(url).netloc:
                headers = {key: value for key, value in headers.items() if key != "Authorization"}
            url = there
        raise Unavailable("the registry sends us from place to place")

    def _get(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        plain = parts.scheme == "http"
        if parts.scheme not in ("http", "https") or (plain and not (self._insecure or _is_loopback(host))):
            raise Unavailable(f"the registry leads to {parts.scheme}://{host}, which is not safe")
        found = _addresses(host)
        if self._is_public and not all(one.is_global for one in found):
            raise PermissionDenied(f"the registry leads to {host}, which is an address of this network")
        port = parts.port or (80 if plain else 443)
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        # To the address that was looked at, and to no other that the name may mean by now.
        stream = socket.create_connection((str(found[0]), port), _TIMEOUT_S)
        try:
            connection.sock = stream if plain else _context().wrap_socket(stream, server_hostname=host)
            target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            default = port == (80 if plain else 443)
            name = f"[{host}]" if ":" in host else host
            given = {"Host": name if default else f"{name}:{port}", "User-Agent": "sandlot", **headers}
            connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
            for key, value in given.items():
                connection.putheader(key, value)
            connection.endheaders()
            answer = connection.getresponse()
            if connection.sock is not None:
                connection.sock.close()  # the answer holds it open until it is closed itself
            return answer
        except BaseException:  # nobody else closes it, then raised again
            stream.close()
            raise

    def _authorize(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        basic = ""
        if self._credentials:
            pair = f"{self._credentials.user}:{self._credentials.password}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
        if scheme.lower() == "basic":
            return basic
        if scheme.lower() != "bearer":
            raise PermissionDenied("the registry wants a kind of credentials that is not known")
        told = dict(_CHALLENGE.findall(rest))
        query = {"scope": told.get("scope") or f"repository:{self._reference.repository}:pull"}
        if told.get("service"):
            query["service"] = told["service"]
        realm = told.get("realm", "")
        url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        with _Exchange(self._checked(self._follow(url, {"Authorization": basic} if basic else {}))) as answer:
            try:
                token = cast("dict[str, object]", json.loads(answer.read(_DOCUMENT_BYTES_MAX)))
                found = token.get("token") or token.get("access_token")
            except (ValueError, AttributeError) as error:
                raise Unavailable("the registry gave a token that cannot be read") from error
        if not isinstance(found, str) or not found.isprintable():
            raise Unavailable("the registry gave no token")
        return f"Bearer {found}"


class _StartAgain(http.client.HTTPException):
    def __init__(self, part: Path) -> None:
        super().__init__("the registry sends all of it again")
        part.unlink(missing_ok=True)


class _Exchange:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def __enter__(self) -> http.client.HTTPResponse:
        return self._answer

    def __exit__(self, *_exception: object) -> None:
        self._answer.close()


def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Raises Unavailable."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            f"{host} cannot be found: {error.strerror}", next_step="look at the name and the network"
        ) from error
    return [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _hash_file(path: Path, on_bytes: OnBytes) -> tuple[_Hasher, int]:
    hasher, have = hashlib.sha256(), 0
    with suppress(FileNotFoundError), path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            hasher.update(data)
            have += len(data)
            on_bytes(len(data))
    return hasher, have


def parts_of(manifest: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Digest and size of all that a manifest names. Raises InvalidArgument."""
    config, layers = manifest.get("config"), manifest.get("layers")
    listed: list[object] = [config, *cast("list[object]", layers)] if isinstance(layers, list) else [None]
    found: list[tuple[str, int]] = []
    for one in listed[: _LAYERS_MAX + 1]:
        match one:
            case {"digest": str(digest), "size": int(size)} if (
                is_digest(digest) and 0 <= size <= limits.TEMPLATE_BYTES_MAX
            ):
                found.append((digest, size))
            case _:
                raise InvalidArgument("the registry gave a manifest of another form")
    if len(listed) > _LAYERS_MAX + 1 or sum(size for _digest, size in found) > limits.TEMPLATE_BYTES_MAX:
        raise InvalidArgument("the image is too large", limit="template_bytes")
    return list(dict.fromkeys(found))


def as_layout(manifest: bytes, blobs: Mapping[str, int]) -> dict[str, int]:
    """The files of an image layout, as descriptors; those that are made here are to be closed by whoever asked."""
    name = hashlib.sha256(manifest).hexdigest()
    index = json.dumps({"schemaVersion": 2, "manifests": [{"digest": f"sha256:{name}", "size": len(manifest)}]})
    files = {"index.json": index.encode(), f"blobs/sha256/{name}": manifest}
    made: dict[str, int] = {}
    for path, data in files.items():
        made[path] = os.memfd_create("sandlot-image", os.MFD_CLOEXEC)
        os.write(made[path], data)
    return made | {f"blobs/sha256/{digest[7:]}": fd for digest, fd in blobs.items()}
