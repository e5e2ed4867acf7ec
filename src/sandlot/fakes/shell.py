"""A small part of a shell: words, quotes, variables, `;` `&&` `||` `|`, and `<` `>` `>>` `2>` `>&2`.

Anything else is told as a syntax error with the exit code 2, never guessed. The parts of a pipeline run one after
another: what the first one writes is all there when the next one begins.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sandlot.fakes.calls import Exits, Program, Running
from sandlot.model import FileConflict, FileKind, FileNotFound, Stream

_TOKEN = re.compile(
    r"""\s*(?:(?P<op>&&|\|\||;|\||\n|2>&1|1>&2|>&2|2>>|2>|>>|>|<)|(?P<word>(?:[^\s;&|<>'"\\$`()\#]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\$\{\w+\}|\$[\w?]|\$)+))""",
    re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|\$\{(\w+)\}|\$(\w+|\?)|(.)""", re.DOTALL)
_ENDS = frozenset({"&&", "||", ";", "\n"})
_UNKNOWN = frozenset({"if", "for", "while", "case", "until", "function", "{", "}", "!", "do", "done", "then", "fi"})


class Syntax(Exception):
    """What this shell does not know."""


@dataclass(slots=True)
class _Command:
    words: list[str] = field(default_factory=list[str])
    files: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # operator and word


@dataclass(slots=True)
class _Step:
    connector: str  # how it follows the one before
    pipeline: list[_Command]


def parse(script: str) -> list[_Step]:
    """Raises Syntax."""
    steps, connector = [_Step(";", [_Command()])], ""
    at, text = 0, script.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Syntax(f"this is not known here: {text[at : at + 20].strip()!r}")
        at = match.end()
        command = steps[-1].pipeline[-1]
        operator = match["op"]
        if operator is None:
            if not command.words and match["word"] in _UNKNOWN:
                raise Syntax(f"{match['word']} is not known here")
            if connector in ("2>", "2>>", ">", ">>", "<"):
                command.files.append((connector, match["word"]))
            else:
                command.words.append(match["word"])
            connector = ""
        elif operator in _ENDS:
            steps.append(_Step(operator, [_Command()]))
        elif operator == "|":
            steps[-1].pipeline.append(_Command())
        elif operator in ("2>&1", "1>&2", ">&2"):
            command.files.append((operator, ""))
        else:
            connector = operator
    return [step for step in steps if step.pipeline[0].words or step.pipeline[0].files]


def expand(word: str, envs: Mapping[str, str], code: int) -> Iterator[str]:
    """The words that one word becomes: variables outside of quotes are split at spaces."""
    made, is_quoted = "", False
    split: list[str] = []
    for single, double, escaped, braced, name, plain in _PIECE.findall(word):
        if single or (not (double or escaped or braced or name or plain)):
            made, is_quoted = made + single, True
        elif double:
            made, is_quoted = made + _in_quotes(double, envs, code), True
        elif braced or name:
            value = str(code) if name == "?" else envs.get(braced or name, "")
            *whole, last = re.split(r"[ \t\n]+", value) if value else [""]
            for part in whole:
                split.append(made + part)
                made = ""
            made += last
        else:
            made += escaped or plain
    split.append(made)
    yield from (part for part in split if part or is_quoted)


def _in_quotes(text: str, envs: Mapping[str, str], code: int) -> str:
    text = re.sub(r"\\([$\"\\`])", lambda match: f"\0{ord(match[1])}\0", text)
    text = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda match: envs.get(match[1] or match[2], ""), text)
    return re.sub(r"\0(\d+)\0", lambda match: chr(int(match[1])), text.replace("$?", str(code)))


class Shell:
    """One script, with variables and a directory of its own."""

    def __init__(self, running: Running, programs: Mapping[str, Program]) -> None:
        self._running = running
        self._programs = programs
        self._envs = dict(running.envs)
        self._cwd = running.cwd
        self._rest = b""  # of the input, behind the line that was read last
        self._code = 0

    async def run(self, script: str) -> int:
        try:
            steps = parse(script)
        except Syntax as error:
            await self._running.err(f"sh: {error}\n")
            return 2
        for step in steps:
            if (step.connector == "&&" and self._code) or (step.connector == "||" and not self._code):
                continue
            self._code = await self._pipeline(step.pipeline)
        return self._code

    async def line(self) -> str | None:
        """The next one of its input; None at the end."""
        while b"\n" not in self._rest:
            piece = await self._running.read()
            if not piece:
                return None
            self._rest += piece
        line, _newline, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="surrogateescape")

    async def _pipeline(self, commands: list[_Command]) -> int:
        code, given = 0, None
        for number, command in enumerate(commands):
            is_last = number == len(commands) - 1
            caught: bytearray | None = None if is_last else bytearray()
            code = await self._command(command, given, caught)
            given = bytes(caught) if caught is not None else None
        return code

    async def _command(self, command: _Command, given: bytes | None, caught: bytearray | None) -> int:
        words = [made for word in command.words for made in expand(word, self._envs, self._code)]
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
            name, _, value = words.pop(0).partition("=")
            self._envs[name] = value
        sinks: dict[Stream, str | Stream | None] = {}
        for operator, word in command.files:
            target = next(expand(word, self._envs, self._code), "")
            try:
                given = self._open(operator, target, sinks, given)
            except (FileNotFound, FileConflict) as error:
                await self._running.err(f"sh: {target}: {error.message}\n")
                return 1
        if not words:
            return 0

        async def write(stream: Stream, data: bytes) -> None:
            target = sinks.get(stream, stream)
            if target is None:
                return
            if not isinstance(target, Stream):
                self._running.tree.write(target, self._running.tree.read(target) + data)
            elif target is Stream.STDOUT and caught is not None:
                caught.extend(data)
            else:
                await self._running.write(target, data)

        pieces = [] if given is None else [given]

        async def read() -> bytes:
            if given is not None:
                return pieces.pop() if pieces else b""
            if self._rest:
                rest, self._rest = self._rest, b""
                return rest
            return await self._running.read()

        world = (self._running.tree, self._cwd, self._envs)
        return await self._start(Running(tuple(words), *world, read, write, self._running.size))

    def _open(
        self, operator: str, target: str, sinks: dict[Stream, str | Stream | None], given: bytes | None
    ) -> bytes | None:
        tree = self._running.tree
        if operator == "<":
            return tree.read(target, cwd=self._cwd)
        if operator == "2>&1":
            sinks[Stream.STDERR] = sinks.get(Stream.STDOUT, Stream.STDOUT)
        elif operator in ("1>&2", ">&2"):
            sinks[Stream.STDOUT] = sinks.get(Stream.STDERR, Stream.STDERR)
        elif target != "/dev/null":
            kept = b""
            if operator.endswith(">>"):
                try:
                    kept = tree.read(target, cwd=self._cwd)
                except FileNotFound:
                    kept = b""
            stream = Stream.STDERR if operator.startswith("2") else Stream.STDOUT
            sinks[stream] = tree.write(target, kept, parents=False, cwd=self._cwd)
        else:
            sinks[Stream.STDERR if operator.startswith("2") else Stream.STDOUT] = None
        return given

    async def _start(self, running: Running) -> int:
        name, *rest = running.argv
        match name:
            case "exit":
                raise Exits(int(rest[0]) & 0xFF if rest else self._code)
            case "exec" if rest:
                raise Exits(await self._start(replace(running, argv=tuple(rest))))
            case "cd":
                path, node = running.tree.find(rest[0] if rest else "/home/user", cwd=self._cwd)
                self._cwd = path if node.kind is FileKind.DIRECTORY else self._cwd
                return 0
            case "export":
                for name, _, value in (word.partition("=") for word in rest if "=" in word):
                    self._envs[name] = value
                return 0
            case "read":
                return await self._read_line(running, [word for word in rest if not word.startswith("-")])
            case _:
                program = self._programs.get(name.rpartition("/")[2])
                if program is None:
                    await running.err(f"sh: {name}: not found\n")
                    return 127
                try:
                    return await program(running)
                except (FileNotFound, FileConflict) as error:
                    await running.err(f"{name}: {error.message}\n")
                    return 1

    async def _read_line(self, running: Running, names: list[str]) -> int:
        got = b""
        while b"\n" not in got:
            piece = await running.read()
            if not piece:
                break
            got += piece
        line, newline, self._rest = got.partition(b"\n")
        words = line.decode(errors="surrogateescape").split(None, len(names) - 1) if names else []
        for number, name in enumerate(names):
            self._envs[name] = words[number].rstrip() if number < len(words) else ""
        return 0 if newline else 1
