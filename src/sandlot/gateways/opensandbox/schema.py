"""What clients of OpenSandbox ask, read from JSON into our own values. What is wrong is refused with the words of their
server; what cannot be had is refused, never left out. Unknown keys are let pass, as theirs does.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast
from urllib.parse import parse_qsl

from sandlot.gateways.opensandbox.settings import EXPIRES_DIGITS_MAX
from sandlot.gateways.web import Request
from sandlot.model import NO_LIMITS, InvalidArgument, Mount, Resources

TIMEOUT_S_MIN: Final = 60
TIMEOUT_S_MAX: Final = 86_400
METADATA_MAX: Final = 48
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|[kKMGTPE]|[KMGTPE]i)?", re.ASCII)
_SUFFIXES: Final = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("KMGTPE", start=1)},
    "k": Decimal(1000),
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
RESERVED: Final = "opensandbox.io/"


class Refused(InvalidArgument):
    """With the code and the status that their server would give."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.server_code = code
        self.status = status


def parameter(message: str) -> Refused:
    return Refused("SANDBOX::INVALID_PARAMETER", message)


@dataclass(frozen=True, slots=True)
class Create:
    image: str = ""
    snapshot_id: str = ""
    template_id: str = ""
    entrypoint: tuple[str, ...] = ()
    timeout_s: float | None = None
    resources: Resources = NO_LIMITS
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: tuple[Mount, ...] = ()
    volumes: tuple[str, ...] = ()  # that are made if they are not there


class Reader:
    """One object of JSON. Says where something is wrong."""

    def __init__(self, found: object, where: str = "") -> None:
        if not isinstance(found, dict):
            raise parameter(f"{where or 'the body'} must be an object")
        self._found = cast("dict[str, Any]", found)
        self._where = where

    def _at(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def names(self) -> frozenset[str]:
        return frozenset(self._found)

    def get(self, *names: str) -> Any:
        """Under the first of its spellings; null is not there."""
        return next((self._found[name] for name in names if self._found.get(name) is not None), None)

    def text(self, *names: str, default: str = "") -> str:
        found = self.get(*names)
        if found is None:
            return default
        if not isinstance(found, str):
            raise parameter(f"{self._at(names[0])} must be a text")
        return found

    def integer(self, *names: str) -> int | None:
        found = self.get(*names)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise parameter(f"{self._at(names[0])} must be a whole number")
        return found

    def flag(self, *names: str, default: bool = False) -> bool:
        found = self.get(*names)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise parameter(f"{self._at(names[0])} must be true or false")
        return found

    def texts(self, *names: str) -> tuple[str, ...]:
        found = self.get(*names)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(item, str) for item in cast("list[object]", found)):
            raise parameter(f"{self._at(names[0])} must be a list of texts")
        return tuple(cast("list[str]", found))

    def table(self, *names: str) -> dict[str, str]:
        found = self.get(*names)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise parameter(f"{self._at(names[0])} must be an object")
        pairs = cast("dict[str, object]", found)
        if not all(isinstance(value, str) for value in pairs.values()):
            raise parameter(f"{self._at(names[0])} must have texts for values")
        return cast("dict[str, str]", pairs)

    def changes(self) -> dict[str, str | None]:
        """All of it, as a merge patch: texts, and null for what goes."""
        for name, value in self._found.items():
            if value is not None and not isinstance(value, str):
                raise parameter(f"{self._at(name[:80])} must be a text or null")
        return cast("dict[str, str | None]", dict(self._found))

    def inner(self, *names: str) -> "Reader | None":
        found = self.get(*names)
        return None if found is None else Reader(found, self._at(names[0]))

    def items(self, *names: str) -> "list[Reader]":
        found = self.get(*names)
        if found is None:
            return []
        if not isinstance(found, list):
            raise parameter(f"{self._at(names[0])} must be a list")
        where = self._at(names[0])
        return [Reader(item, f"{where}[{at}]") for at, item in enumerate(cast("list[object]", found))]


def read_create(document: object) -> Create:
    """Raises Refused."""
    body = Reader(document)
    image, snapshot, template = body.inner("image"), body.text("snapshotId", "snapshot_id"), body.text("templateId")
    refuse_what_is_not_there(body)
    if sum(map(bool, (image, snapshot, template))) != 1:
        raise parameter("give exactly one of image, snapshotId and templateId")
    uri = image.text("uri") if image else ""
    if image and not uri:
        raise parameter("image.uri is empty")
    entrypoint = body.texts("entrypoint")
    if image and (not entrypoint or not entrypoint[0]):
        raise parameter("entrypoint is required with an image")
    timeout_s = body.integer("timeout")
    if timeout_s is not None and not TIMEOUT_S_MIN <= timeout_s <= TIMEOUT_S_MAX:
        raise parameter(f"timeout must be {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX} seconds, or null")
    envs = body.table("env")
    for name in envs:
        if not name or "=" in name or name == "OPENSANDBOX_LIFECYCLE":
            raise parameter(f"env: {name[:64]!r} cannot be the name of a variable")
    refuse_policy(body)
    mounts, volumes = read_volumes(body)
    metadata = body.table("metadata")
    check_metadata(metadata)
    return Create(
        image=uri,
        snapshot_id=snapshot,
        template_id=template,
        entrypoint=entrypoint,
        timeout_s=timeout_s,
        resources=read_resources(body.table("resourceLimits", "resource_limits")),
        envs=envs,
        metadata=metadata,
        mounts=mounts,
        volumes=volumes,
    )


def refuse_what_is_not_there(body: Reader) -> None:
    """What somebody asked for and would miss."""
    extensions = body.get("extensions")
    if isinstance(extensions, dict) and extensions:
        raise parameter(f"extensions are not supported here: {', '.join(map(str, cast('dict[str, Any]', extensions)))}")
    if (lifecycle := body.get("lifecycle")) not in (None, {}):
        raise parameter(f"lifecycle hooks are not supported here: {str(lifecycle)[:60]}")
    proxy = body.inner("credentialProxy", "credential_proxy")
    if proxy and proxy.flag("enabled"):
        raise parameter("credentialProxy is not supported here")
    platform = body.inner("platform")
    if platform and platform.text("os", default="linux") != "linux":
        raise parameter("platform.os must be linux")


def refuse_policy(body: Reader) -> None:
    """A sandbox reaches nothing outside. A policy that says so is held; one that opens something cannot be yet."""
    policy = body.inner("networkPolicy", "network_policy")
    if policy is None:
        return
    action, allowed = read_policy(policy)
    if action == "allow" or allowed:
        raise Refused(
            "SANDBOX::NETWORK_POLICY_NOT_SUPPORTED",
            "this server gives sandboxes no way out yet: a networkPolicy can only deny everything",
        )


def read_policy(policy: Reader) -> tuple[str, list[str]]:
    """The default, and what is allowed beside it."""
    action = policy.text("defaultAction", "default_action", default="deny")
    rules = [(rule.text("action"), rule.text("target")) for rule in policy.items("egress")]
    for verb, target in [(action, "x"), *rules]:
        if verb not in ("allow", "deny") or not target:
            raise parameter("networkPolicy: an action is allow or deny, and every rule has a target")
    return action, [target for verb, target in rules if verb == "allow"]


def read_resources(limits: Mapping[str, str]) -> Resources:
    """Raises Refused, also for what no session can be limited in."""
    known = {"cpu", "memory", "ephemeral-storage", "disk"}
    if unknown := {name for name in set(limits) - known if quantity(name, limits[name])}:
        raise parameter(f"resourceLimits: {', '.join(sorted(unknown))} cannot be limited here")
    cpu, memory = limits.get("cpu"), limits.get("memory")
    disk = limits.get("disk") or limits.get("ephemeral-storage")
    try:
        return Resources(
            cpus=None if cpu is None else float(quantity("cpu", cpu)),
            memory_bytes=None if memory is None else int(quantity("memory", memory)),
            disk_bytes=None if disk is None else int(quantity("disk", disk)),
        )
    except InvalidArgument as error:
        raise parameter(f"resourceLimits: {error.message}") from error


def quantity(name: str, text: str) -> Decimal:
    """`500m`, `1`, `2Gi`."""
    try:
        if (found := _QUANTITY.fullmatch(text)) and len(text) <= 24:
            return Decimal(found[1]) * _SUFFIXES[found[2] or ""]
    except InvalidOperation:
        pass
    raise parameter(f"resourceLimits.{name}: {text[:40]!r} is no quantity, such as 500m, 1 or 2Gi")


def read_volumes(body: Reader) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    mounts: list[Mount] = []
    made: list[str] = []
    names = set[str]()
    for volume in body.items("volumes"):
        name = volume.text("name")
        if not _LABEL.fullmatch(name) or name in names:
            raise parameter(f"volumes: {name[:64]!r} is no name of a volume, or stands there twice")
        names.add(name)
        host, claim = volume.inner("host"), volume.inner("pvc")
        if (host is None) == (claim is None) or volume.get("ossfs") is not None:
            raise parameter(f"volumes.{name}: exactly one of host and pvc can be had here")
        if volume.text("subPath", "sub_path"):
            raise parameter(f"volumes.{name}: subPath is not supported here")
        source = host.text("path") if host else ""
        if claim:
            source = claim.text("claimName", "claim_name")
            if claim.flag("deleteOnSandboxTermination", "delete_on_sandbox_termination"):
                raise parameter(f"volumes.{name}: deleteOnSandboxTermination is not supported here")
            if claim.flag("createIfNotExists", "create_if_not_exists", default=True):
                made.append(source)
        try:
            target = volume.text("mountPath", "mount_path")
            mounts.append(Mount(source, target, read_only=volume.flag("readOnly", "read_only")))
        except InvalidArgument as error:
            raise parameter(f"volumes.{name}: {error.message}") from error
    return tuple(mounts), tuple(made)


def check_keys(names: Iterable[str]) -> None:
    for name in names:
        if name.startswith(RESERVED):
            raise Refused("SANDBOX::INVALID_METADATA_LABEL", f"metadata: keys under {RESERVED} are reserved")


def check_metadata(metadata: Mapping[str, str | None]) -> None:
    """Names and values as labels of Kubernetes have them."""
    if len(metadata) > METADATA_MAX:
        raise Refused("SANDBOX::INVALID_METADATA_LABEL", f"metadata has more than {METADATA_MAX} keys")
    check_keys(metadata)
    for key, value in metadata.items():
        prefix, slash, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)) or len(key) > 128:
            raise Refused("SANDBOX::INVALID_METADATA_LABEL", f"metadata: {key[:80]!r} cannot be a key")
        if value and not _NAME.fullmatch(value):
            raise Refused("SANDBOX::INVALID_METADATA_LABEL", f"metadata: {value[:80]!r} cannot be a value")


def read_filter(texts: list[str]) -> dict[str, str]:
    """`k=v&k2=v2`, and as older clients send it, one parameter for each."""
    found: dict[str, str] = {}
    for text in texts:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text))
        except ValueError:
            raise Refused("INVALID_METADATA_FORMAT", "metadata must be k=v&k2=v2") from None
        found |= dict(pairs)
    return found


def read_page(number: str, size: str) -> tuple[int, int]:
    for name, text, most in (("page", number, 10**6), ("pageSize", size, 200)):
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= most or len(text) > 9:
            raise Refused("SANDBOX::INVALID_PARAMETER", f"{name} must be 1 to {most}", status=422)
    return int(number), int(size)


def read_expires(request: Request) -> int | None:
    """Of a signed address: seconds since 1970."""
    text = request.one("expires")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > EXPIRES_DIGITS_MAX:
        raise parameter("expires must be a time in seconds since 1970")
    if request.one("use_server_proxy") == "true":
        raise parameter("an endpoint has an end of its own, or is the proxy's; not both")
    return int(text)


def read_port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise parameter("the port must be 1 to 65535")
    return int(text)


def read_moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise parameter("expiresAt must be a time as RFC 3339 has it") from None
    if moment.tzinfo is None:
        raise parameter("expiresAt needs a zone")
    return moment.timestamp()
