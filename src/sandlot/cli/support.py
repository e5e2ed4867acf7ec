"""Write one file that tells how this machine and its host are, with nothing secret, for whoever helps.

It has versions, the doctor's report, health, settings, figures of the journal, ids and states of sessions, the last
events and the figures of the host. No files, commands, variables or labels of sessions are in it, and what looks like a
secret is taken out. It works beside a server and without one, and changes nothing."""

import argparse
import asyncio
import contextlib
import dataclasses
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sandlot import __version__, registry
from sandlot.cli.context import Context
from sandlot.cli.doctor import report_of
from sandlot.cli.screen import printable
from sandlot.cli.show import size_text
from sandlot.config.reading import Reader
from sandlot.config.remote import environment_key
from sandlot.config.settings import Settings, load, sources
from sandlot.config.variables import VARIABLES
from sandlot.config.webhooks import parse_url
from sandlot.model import Health, InvalidArgument, SandlotError, Unavailable, limits
from sandlot.sdk.whole_file import WholeFile

USAGE = "support [FILE]"
FORM = 1
_FOLDER = "sandlot-support"
_DOOR = "engine.sock"
_WEBHOOK_SECRET = "webhook.secret"
_ANSWER_S = 10.0
_EVENTS_MAX = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="what is written (default: sandlot-support-TIME.tar.gz here)"
    )
    parser.add_argument("--config", metavar="FILE", help="the file of settings that the server has, TOML")


def settings(args: argparse.Namespace) -> Settings:
    """Those that a server with this file would have. Raises InvalidArgument."""
    environment = {**os.environ, **({"SANDLOT_CONFIG": args.config} if args.config else {})}
    found = load(environment)
    return found if args.data_dir is None else dataclasses.replace(found, data=Path(args.data_dir).absolute())


async def run(context: Context) -> int:
    if context.args.url is not None:
        raise InvalidArgument("this is about this machine", next_step="run it where the server is, without --url")
    now = time.time()
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    file = context.args.file or f"{_FOLDER}-{moment}.tar.gz"
    bundle = await _gather(context, now)
    try:
        with WholeFile(file) as target:
            target.write(bundle.packed(now))
            target.commit()
    except OSError as error:
        raise Unavailable(f"{file} cannot be written: {error.strerror}") from error
    size = await asyncio.to_thread(os.path.getsize, file)
    if context.screen.as_json:
        parts = {name: len(content) for name, content in bundle.parts.items()}
        context.screen.json({"file": file, "size_bytes": size, "parts": parts, "lacking": bundle.lacking})
        return 0
    context.screen.line(f"{printable(file)}: {size_text(size)}, {', '.join(bundle.parts)}")
    for name, why in bundle.lacking.items():
        context.screen.note(f"without {name}: {printable(why)}")
    context.screen.note("secrets were taken out; look through it before you send it")
    return 0


class _Facts(Protocol):
    """As `sandlot.host.journal_facts.JournalFacts`, which is loaded late."""

    @property
    def document(self) -> Mapping[str, Any]: ...

    @property
    def sessions(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def events(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def secrets(self) -> Collection[str]: ...


class _Bundle:
    """All that is added goes through one place, which takes secrets out. `known`: those that may stand anywhere;
    `given`: texts of callers, which are taken out where somebody's words may repeat them."""

    def __init__(self, known: Collection[str], given: Collection[str]) -> None:
        self._redact: Callable[[Any, Collection[str]], Any] = registry.load("server", "redaction")
        # The longest first: a short one may be a part of it.
        self._known = sorted(known, key=len, reverse=True)
        self._given = sorted({*known, *given}, key=len, reverse=True)
        self.parts: dict[str, bytes] = {}
        self.lacking: dict[str, str] = {}

    def add(self, name: str, content: object, *, has_words: bool = False) -> None:
        if isinstance(content, str):
            text = "".join(f"{self.clean(line, has_words=has_words)}\n" for line in content.splitlines())
        else:
            plain = json.loads(json.dumps(content, default=str))
            text = json.dumps(self.clean(plain, has_words=has_words), indent=1) + "\n"
        self.parts[name] = text.encode(errors="replace")

    def lack(self, name: str, why: str) -> None:
        self.lacking[name] = self.clean(why, has_words=True)

    def clean(self, value: Any, *, has_words: bool) -> Any:
        """`has_words`: of engines, programs or people."""
        return self._redact(value, self._given if has_words else self._known)

    def packed(self, now: float) -> bytes:
        whole = io.BytesIO()
        with tarfile.open(fileobj=whole, mode="w:gz") as archive:
            for name, content in self.parts.items():
                member = tarfile.TarInfo(f"{_FOLDER}/{name}")
                member.size, member.mtime, member.mode = len(content), int(now), 0o600
                archive.addfile(member, io.BytesIO(content))
        return whole.getvalue()


async def _gather(context: Context, now: float) -> _Bundle:
    """Whatever cannot be told is told to be lacking: a host in trouble is what this is for."""
    settings = context.settings
    facts, why = await asyncio.to_thread(_facts, settings.data / "journal.db")
    bundle = _Bundle(_own_secrets(settings.data), facts.secrets if facts else ())

    async def attempt(name: str, look: Callable[[], Awaitable[object]], *, has_words: bool = False) -> None:
        try:
            bundle.add(name, await look(), has_words=has_words)
        except Exception as error:  # noqa: BLE001 - what goes wrong here is what people ask for help with
            told = error.message if isinstance(error, SandlotError) else f"{type(error).__name__}: {error}"
            bundle.lack(name, told)

    async def doctor() -> object:
        return (await report_of(context, opens=False)).document

    async def versions() -> object:
        return _versions()

    async def told() -> object:
        return _settings(context.args.config or "")

    await attempt("versions.json", versions)
    await attempt("settings.json", told)
    await attempt("doctor.json", doctor)
    try:
        health = await _health(settings)
    except (SandlotError, OSError, TimeoutError) as error:
        why_not = error.message if isinstance(error, SandlotError) else f"{type(error).__name__}: {error}"
        bundle.lack("health.json", why_not)
        bundle.lack("metrics.txt", why_not)
    else:
        bundle.add("health.json", dataclasses.asdict(health), has_words=True)
        bundle.add("metrics.txt", registry.load("server", "host-figures")(health).decode())
    if facts is None:
        bundle.lack("journal.json", why)
    else:
        bundle.add("journal.json", facts.document)
        reasons = [bundle.clean(one["reason"], has_words=True) for one in facts.sessions]
        sessions = [{**one, "reason": why} for one, why in zip(facts.sessions, reasons, strict=True)]
        bundle.add("sessions.json", sessions)
        bundle.add("events.json", facts.events)
    made_at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    manifest = {"form": FORM, "made_at": made_at, "parts": list(bundle.parts), "lacking": bundle.lacking}
    bundle.add("manifest.json", manifest)
    return bundle


def _facts(journal: Path) -> tuple[_Facts | None, str]:
    try:
        return registry.load("server", "journal-facts")(journal, limits.SESSIONS_MAX, _EVENTS_MAX), ""
    except SandlotError as error:
        return None, error.message


def _own_secrets(data: Path) -> set[str]:
    """What stands in files beside the journal is not read into the bundle; it is read to be found there."""
    found = {environment_key()}
    if (data / _WEBHOOK_SECRET).exists():  # asked for, it would be made
        with contextlib.suppress(OSError, SandlotError):
            found.add(registry.load("server", "webhook-secret")(data).strip())
    return {text for text in found if text}


def _versions() -> dict[str, object]:
    return {
        "sandlot": __version__,
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _settings(file: str) -> dict[str, object]:
    """What was set, by the names of variables; the rest has its default."""
    read = Reader(*sources(os.environ, file))
    found = {variable.name: read.text(variable.name) for variable in VARIABLES}
    if addresses := found["SANDLOT_WEBHOOKS"]:
        # The path of one may be as good as a password.
        found["SANDLOT_WEBHOOKS"] = ",".join(_place(part) for part in addresses.replace("\n", ",").split(","))
    return {name: text for name, text in found.items() if text}


def _place(address: str) -> str:
    try:
        return str(parse_url(address.strip()))
    except InvalidArgument:
        return "no address"


# ---- of whoever has the data directory ---------------------------------------------------------------------------


async def _health(settings: Settings) -> Health:
    with _Door(settings.data) as door:
        client = registry.load("host", "client")(f"unix://{door.path}")
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await client.health()
        finally:
            await client.aclose()


class _Door:
    """By a descriptor: a path may be longer than the address of a socket."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._fd = -1

    def __enter__(self) -> "_Door":
        if not (self._data / _DOOR).exists():
            raise Unavailable("no engine runs on this data directory")
        self._fd = os.open(self._data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._fd}/{_DOOR}"
