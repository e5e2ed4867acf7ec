"""Builds a template from a build file: a small part of what a Dockerfile can say. Every command runs in a session that
is confined like any other, and what each step leaves is a template of its own, so that a step that was done before is
not done again. It asks for nothing but the verbs of a host.
"""

import hashlib
import json
import os
import posixpath
import re
import shlex
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

from sandlot.contracts import Host
from sandlot.model import (
    BUILTIN,
    CallOutput,
    CallRequest,
    DirectoryMake,
    FileWrite,
    InvalidArgument,
    Ready,
    SessionSpec,
    SnapshotRequest,
    Start,
    TemplateConfig,
    TemplateInfo,
    TemplateSnapshot,
    TemplateStep,
    check_new_name,
    limits,
)
from sandlot.sdk.dockerignore import NAME, DockerIgnore

STEP_LABEL = "sandlot.step"
_WORDS = ("FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "CMD", "ENTRYPOINT", "START", "READY", "LABEL", "ARG")
_VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_PIECE_BYTES = 1 << 20
_SNAPSHOT = "built"
_OUTPUT_CHARS = 2000
_OWNED_AT_ONCE = 500
OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.word} {self.text}"


def parse(text: str) -> list[Instruction]:
    """Raises InvalidArgument, which names the line."""
    found: list[Instruction] = []
    pending, began = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and not pending):
            continue
        began = began or number
        if stripped.endswith("\\"):
            pending += f"{stripped[:-1].rstrip()} "
            continue
        word, _, rest = f"{pending}{stripped}".strip().partition(" ")
        if word.upper() not in _WORDS or not rest.strip():
            raise InvalidArgument(
                f"line {began}: {word[:40]!r} cannot be done", next_step=f"use one of: {', '.join(_WORDS)}"
            )
        found.append(Instruction(began, word.upper(), rest.strip()))
        pending, began = "", 0
    if pending:
        raise InvalidArgument("the build file ends in the middle of a line")
    first = next((one.word for one in found if one.word != "ARG"), "")
    if first != "FROM" or sum(one.word == "FROM" for one in found) != 1:
        raise InvalidArgument("a build file begins with FROM, and has one of it")
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a build stands."""

    base: str = ""  # the template that the next step starts from
    config: TemplateConfig = field(default_factory=TemplateConfig)
    args: Mapping[str, str] = field(default_factory=dict[str, str])
    key: str = ""  # of all that was done so far
    start: tuple[str, ...] | None = None
    ready: tuple[str, float | None] | None = None  # and how long that may take

    def put(self, text: str) -> str:
        """With variables in place of their names."""
        known = {**self.args, **self.config.envs}

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return "$" if name is None else known.get(name) or match[3] or ""

        return _VARIABLE.sub(value, text)


Act = Callable[[Plan, str, Instruction], Awaitable[None]]


class Builder:
    def __init__(self, host: Host, context: Path, args: Mapping[str, str], say: OnLine) -> None:
        self._host, self._context, self._given, self._say = host, context, args, say

    async def build(self, text: str, name: str) -> TemplateInfo:
        """Raises InvalidArgument when a line cannot be done or a command fails, and what making a session raises."""
        instructions = parse(text)
        plan = Plan()
        for at, one in enumerate(instructions, start=1):
            self._say(f"[{at}/{len(instructions)}] {one}")
            try:
                plan = await self._do(plan, one)
            except InvalidArgument as error:
                raise InvalidArgument(f"line {one.line}: {error.message}", next_step=error.next_step) from error
        told = Start.of(plan.start, *(plan.ready or (None, None)))
        config = replace(plan.config, start=told or plan.config.start)
        return await self._keep(replace(plan, config=config), None, name)

    async def _do(self, plan: Plan, one: Instruction) -> Plan:
        config = plan.config
        match one.word:
            case "FROM":
                return await self._from(plan, plan.put(one.text))
            case "RUN":
                return await self._step(plan, one, "", self._run)
            case "COPY":
                words = _copy_words(plan.put(one.text))
                seen = "".join(f"{path} {_digest(path)}\n" for path, _name in self._files(words.sources, words.target))
                return await self._step(plan, one, seen, self._copy)
            case "ARG":
                name, equals, default = one.text.partition("=")
                value = self._given.get(name, plan.put(default) if equals else "")
                return replace(plan, args={**plan.args, name: value})
            case "ENV" | "LABEL":
                pairs = _pairs(plan, one.text)
                changed = (
                    replace(config, envs={**config.envs, **pairs})
                    if one.word == "ENV"
                    else replace(config, labels={**config.labels, **pairs})
                )
                return replace(plan, config=changed)
            case "WORKDIR":
                return replace(plan, config=replace(config, cwd=posixpath.join(config.cwd or "/", plan.put(one.text))))
            case "USER":
                return replace(plan, config=replace(config, user=plan.put(one.text)))
            case "START":
                return replace(plan, start=_command(one.text))
            case "READY":
                return replace(plan, ready=_readiness(plan.put(one.text)))
            case "ENTRYPOINT":
                return replace(plan, config=replace(config, entrypoint=_command(one.text), command=()))
            case _:
                return replace(plan, config=replace(config, command=_command(one.text)))

    async def _from(self, plan: Plan, name: str) -> Plan:
        base = await self._host.get_template(name.split()[0])
        is_builtin = BUILTIN in base.names
        start, user = (BUILTIN, "") if is_builtin else (base.digest, base.user)  # steps are root's, until USER is said
        labels = {key: value for key, value in base.labels.items() if key != STEP_LABEL}
        config = TemplateConfig(user, base.cwd, base.envs, base.entrypoint, base.command, labels, base.start)
        return replace(plan, base=start, config=config, key=base.digest)

    # ---- steps that change files -------------------------------------------------------------------------------

    async def _step(self, plan: Plan, one: Instruction, seen: str, act: Act) -> Plan:
        """Done before with the same files, variables and commands: then what it left is there."""
        known = json.dumps([plan.key, str(one), seen, asdict(plan.config), dict(plan.args)], sort_keys=True)
        key = hashlib.sha256(known.encode("utf-8", "surrogateescape")).hexdigest()
        for template in await self._host.list_templates():
            if template.labels.get(STEP_LABEL) == key:
                self._say("  as before")
                return replace(plan, base=template.digest, key=key)
        labelled = replace(plan.config, labels={**plan.config.labels, STEP_LABEL: key})
        made = await self._keep(replace(plan, config=labelled), (act, one), "")
        return replace(plan, base=made.digest, key=key)

    async def _keep(self, plan: Plan, work: tuple[Act, Instruction] | None, name: str) -> TemplateInfo:
        envs, labels = {**plan.args, **plan.config.envs}, {"build": name}
        spec = SessionSpec(template=plan.base, envs=envs, user="0", labels=labels, starts=False)
        session = await self._host.create(spec)
        try:
            if plan.config.cwd:
                await self._host.make_directory(DirectoryMake(session.session_id, plan.config.cwd))
            if work is not None:
                await work[0](plan, session.session_id, work[1])
            await self._host.create_snapshot(SnapshotRequest(session.session_id, _SNAPSHOT))
            request = TemplateSnapshot(session.session_id, _SNAPSHOT, name, plan.config)
            async with self._host.make_template(request) as events:
                async for event in events:
                    if not isinstance(event, TemplateStep):
                        return event
            raise AssertionError("a template that was made is told of")
        finally:
            await self._host.destroy(session.session_id)

    async def _run(self, plan: Plan, session_id: str, one: Instruction) -> None:
        request = CallRequest(
            session_id=session_id,
            argv=_command(one.text),
            cwd=plan.config.cwd or None,
            user=plan.config.user or None,
            timeout_s=limits.CALL_TIMEOUT_S_MAX,
        )
        tail = ""
        async with self._host.call(request) as stream:
            async for event in stream:
                if isinstance(event, CallOutput):
                    text = event.data.decode(errors="replace")
                    tail = (tail + text)[-_OUTPUT_CHARS:]
                    for line in text.splitlines():
                        self._say(f"  {line}")
            result = await stream.result()
        if result.exit_code != 0:
            raise InvalidArgument(f"{one} failed with {result.exit_code}: {tail.strip()[-500:]}")

    async def _copy(self, plan: Plan, session_id: str, one: Instruction) -> None:
        words = _copy_words(plan.put(one.text))
        made: list[str] = []
        for path, name in self._files(words.sources, words.target):
            there = posixpath.normpath(posixpath.join(plan.config.cwd or "/", name))
            mode = (stat.S_IMODE(path.stat().st_mode) if words.mode is None else words.mode) & 0o777
            if not path.is_dir():
                await self._host.write_file(FileWrite(session_id, there, "0", mode), _pieces(path))
            elif not await self._host.make_directory(DirectoryMake(session_id, there, "0", mode)):
                continue  # it was there: whose it is stays as it is
            made.append(there)
        if words.owner:
            await self._own(session_id, words.owner, made)

    async def _own(self, session_id: str, owner: str, paths: Sequence[str]) -> None:
        """By the root's own program: it knows the names of its users."""
        for at in range(0, len(paths), _OWNED_AT_ONCE):
            argv = ("chown", "-h", "--", owner, *paths[at : at + _OWNED_AT_ONCE])
            async with self._host.call(CallRequest(session_id, argv, user="0")) as stream:
                result = await stream.result()
            if result.exit_code != 0:
                raise InvalidArgument(
                    f"what was copied cannot be given to {owner}: chown ended with {result.exit_code}",
                    next_step="look whether the template has that user, and a program chown",
                )

    def _files(self, sources: Sequence[str], target: str) -> list[tuple[Path, str]]:
        """What is to be copied, and where to. Nothing outside of the context is read. Raises InvalidArgument."""
        found: list[tuple[Path, str]] = []
        top = self._context.resolve()
        into = target.endswith("/") or len(sources) > 1 or target in (".", "./")
        for source in sources:
            first = (top / source.lstrip("/")).resolve()
            if not first.is_relative_to(top):
                raise InvalidArgument(f"{source} lies outside of what may be copied")
            if first.is_dir():
                found.append((first, target))
                for below, folders, files in os.walk(first):
                    folders.sort()
                    found += [
                        (Path(below, name), posixpath.join(target, Path(below, name).relative_to(first).as_posix()))
                        for name in (*folders, *sorted(files))
                    ]
            elif first.is_file():
                found.append((first, posixpath.join(target, first.name) if into else target))
            else:
                raise InvalidArgument(f"there is no {source} to be copied")
        ignoring = DockerIgnore.of(self._context)
        found = [(path, name) for path, name in found if not ignoring.ignores(path.relative_to(top).as_posix())]
        if not found:
            raise InvalidArgument(f"there is no {' '.join(sources)} to be copied: {NAME} leaves it out")
        for path, _name in found:
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise InvalidArgument(
                    f"{path.relative_to(top)} is neither a file nor a directory", next_step="make it with RUN"
                )
        return found


@dataclass(frozen=True, slots=True)
class CopyWords:
    sources: Sequence[str]
    target: str
    owner: str = ""
    mode: int | None = None  # None: as they are here


def _copy_words(text: str) -> CopyWords:
    words = shlex.split(text)
    owner, mode = "", None
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option == "--chown" and re.fullmatch(r"[\w.][\w.\-]*(:[\w.\-]+)?", value, re.ASCII):
            owner = value
        elif option == "--chmod" and re.fullmatch(r"0?[0-7]{3}", value, re.ASCII):
            mode = int(value, 8)
        else:
            raise InvalidArgument(
                f"COPY does not take {option}={value[:40]} here", next_step="use --chown=USER[:GROUP] and --chmod=755"
            )
    if len(words) < 2:
        raise InvalidArgument("COPY needs something to copy, and where to")
    return CopyWords(words[:-1], words[-1], owner, mode)


def _readiness(text: str) -> tuple[str, float | None]:
    timeout_s: float | None = None
    if match := re.match(r"--timeout=(\d+(?:\.\d+)?)s?\s+", text, re.ASCII):
        timeout_s, text = float(match[1]), text[match.end() :]
    Ready.parse(text)
    return text, timeout_s


def _pairs(plan: Plan, text: str) -> dict[str, str]:
    words = shlex.split(text)
    if words and "=" not in words[0]:  # the old form: one name, and the rest of the line
        name, _, value = text.partition(" ")
        return {name: plan.put(value.strip())}
    if not all("=" in word for word in words):
        raise InvalidArgument("it is NAME=VALUE, as often as needed")
    return {name: plan.put(value) for name, _, value in (word.partition("=") for word in words)}


def _command(text: str) -> tuple[str, ...]:
    words: object = None
    if text.startswith("["):
        with suppress(ValueError):
            words = json.loads(text)
    listed = cast("list[object]", words) if isinstance(words, list) else []
    strings = tuple(word for word in listed if isinstance(word, str))
    return strings if strings and len(strings) == len(listed) else ("/bin/sh", "-c", text)


def _digest(path: Path) -> str:
    if path.is_dir():
        return f"{stat.S_IMODE(path.stat().st_mode):o}"
    with path.open("rb") as file:
        return f"{stat.S_IMODE(path.stat().st_mode):o} {hashlib.file_digest(file, 'sha256').hexdigest()}"


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            yield data


async def build(
    host: Host,
    context: str | os.PathLike[str],
    name: str,
    file: str | os.PathLike[str] | None,
    args: Mapping[str, str],
    on_line: OnLine | None,
) -> TemplateInfo:
    """Raises InvalidArgument, and what making a session raises."""
    check_new_name(name)
    top = Path(context)
    text = _read(top / "Dockerfile" if file is None else Path(file))
    return await Builder(host, top, args, on_line or (lambda _line: None)).build(text, name)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the build file {path} cannot be read: {error}") from error
