"""Run code in a context of a session that remembers: a file, or what stdin has.

`echo 'x = 41' | sandlot code ID`, then `echo 'x + 1' | sandlot code ID` prints 42. Without --context each language has
a context of its own; --new makes another one, --list tells all of them. Pictures become files. Ctrl-C interrupts it.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.screen import printable
from sandlot.contracts import CodeStream, Host
from sandlot.model import (
    PYTHON,
    CodeContext,
    CodeError,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStatus,
    CodeValue,
    ContextRequest,
    InvalidArgument,
    Stream,
)
from sandlot.sdk.code_results import Shown

USAGE = "code [options] ID [FILE]"
_SUFFIXES = {".py": "python", ".sh": "bash", ".js": "javascript", ".mjs": "javascript"}
_EXIT = {CodeStatus.OK: 0, CodeStatus.TIMEOUT: 124, CodeStatus.INTERRUPTED: 130}
_EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", metavar="CTX", help="run it in this context")
    parser.add_argument("--language", metavar="NAME", help="python, bash or javascript (default: as FILE says; python)")
    parser.add_argument("--env", metavar="KEY=VALUE", action="append", default=[], help="can be repeated")
    parser.add_argument("--timeout", metavar="TIME", help="interrupt it after this: 90, 30s, 10m, 2h (default: none)")
    parser.add_argument("--detach", action="store_true", help="leave it running and print the id of the run")
    parser.add_argument("--attach", metavar="RUN", help="read a run from its beginning instead")
    parser.add_argument("--pictures", metavar="DIR", default=".", help="where pictures are put (default: here)")
    group = parser.add_argument_group("contexts, instead of running something")
    group.add_argument("--new", action="store_true", help="make one and print its id; --context names it")
    group.add_argument("--cwd", metavar="DIR", help="where a new one starts (default: the workspace)")
    group.add_argument("--user", metavar="USER", help="who a new one runs as (default: the session's user)")
    group.add_argument("--list", action="store_true", help="tell all of them")
    group.add_argument("--interrupt", metavar="CTX", help="end what runs in it, as Ctrl-C does")
    group.add_argument("--restart", metavar="CTX", help="let it forget everything")
    group.add_argument("--remove", metavar="CTX", help="end it")
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("file", metavar="FILE", nargs="?", help="what to run (default: what stdin has)")


async def run(context: Context) -> int:
    args = context.args
    wishes = [args.new, args.list, *(bool(one) for one in (args.interrupt, args.restart, args.remove, args.attach))]
    if sum(wishes) > 1:
        raise InvalidArgument(
            "--new, --list, --interrupt, --restart, --remove and --attach do not go together", next_step="take one"
        )
    if any(wishes) and args.file is not None:
        raise InvalidArgument("a file is given, and nothing is to be run", next_step="leave one of the two out")
    if args.new or args.list or args.interrupt or args.restart or args.remove:
        async with context.host() as host:
            return await _work_at_contexts(context, host)
    telling = _Telling(context, _pictures(args.pictures))
    if args.attach:
        async with context.host() as host, host.attach_code(args.id, args.attach) as stream:
            return await telling.follow(stream)
    request = _request(args)
    async with context.host() as host, host.run_code(request) as stream:
        if not args.detach:
            return await telling.follow(stream)
        if context.screen.as_json:
            context.screen.json({"session_id": args.id, "execution_id": stream.execution_id})
        else:
            context.screen.line(stream.execution_id)
    return 0


def _request(args: argparse.Namespace) -> CodeRequest:
    language: str | None = args.language
    if language is None and args.context is None and args.file is not None:
        language = _SUFFIXES.get(Path(args.file).suffix)
    try:
        code = sys.stdin.read() if args.file in (None, "-") else Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{args.file or 'stdin'} cannot be read: {error}") from None
    return CodeRequest(
        args.id,
        code,
        language=language,
        context_id=args.context,
        envs=values.pairs("--env", args.env),
        timeout_s=values.duration("--timeout", args.timeout) if args.timeout else None,
        detach=args.detach,
    )


def _pictures(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        raise InvalidArgument(f"{name} is no directory", next_step="make it, or give another with --pictures")
    return folder


class _Telling:
    """What a run tells, on this terminal; with --json as one document at its end."""

    def __init__(self, context: Context, folder: Path) -> None:
        self._screen = context.screen
        self._folder = folder
        self._text: dict[Stream, list[str]] = {stream: [] for stream in Stream}
        self._shown: list[dict[str, Any]] = []
        self._error: CodeError | None = None

    async def follow(self, stream: CodeStream) -> int:
        result: CodeResult | None = None
        async for event in stream:
            if isinstance(event, CodeOutput):
                self._say(event)
            elif isinstance(event, CodeValue):
                self._show(Shown(event.data, event.is_main))
            elif isinstance(event, CodeError):
                self._error = event
                if not self._screen.as_json:
                    print(_plain(event.traceback.rstrip() or f"{event.name}: {event.value}"), file=sys.stderr)
            elif isinstance(event, CodeResult):
                result = event
        assert result is not None, "a stream ends with its result"
        self._end(result)
        return _EXIT.get(result.status, _EXIT_FAILED)

    def _say(self, event: CodeOutput) -> None:
        if self._screen.as_json:
            self._text[event.stream].append(event.text)
        else:
            out = sys.stdout if event.stream is Stream.STDOUT else sys.stderr
            print(event.text, end="", file=out, flush=True)

    def _show(self, shown: Shown) -> None:
        files = [self._save(suffix, data) for suffix, data in shown.pictures()]
        if self._screen.as_json:
            self._shown.append({"is_main": shown.is_main, "data": dict(shown.data), "files": files})
        elif files:
            self._screen.note(f"a picture is in {', '.join(files)}")
        else:
            print(_plain(shown.markdown or shown.text or f"({', '.join(shown.formats())})"), flush=True)

    def _save(self, suffix: str, data: bytes) -> str:
        """Under a name that nothing has."""
        at = 1
        while True:
            path = self._folder / f"picture-{at}.{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                at += 1
                continue
            except OSError as error:
                raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None
            return str(path)

    def _end(self, result: CodeResult) -> None:
        if self._screen.as_json:
            text = {str(stream): "".join(parts) for stream, parts in self._text.items()}
            error = asdict(self._error) if self._error else None
            self._screen.json({**asdict(result), **text, "results": self._shown, "error": error})
        elif result.status in (CodeStatus.TIMEOUT, CodeStatus.LOST):
            why = result.reason or f"it was interrupted after {result.duration_s:.1f} s"
            self._screen.note(f"{result.status}: {why}")
        if result.truncated and not self._screen.as_json:
            self._screen.note("something that it printed or showed was too large, and is missing here")


async def _work_at_contexts(context: Context, host: Host) -> int:
    args, screen = context.args, context.screen
    if args.list:
        found = await host.contexts(args.id)
        if screen.as_json:
            screen.json({"contexts": [asdict(one) for one in found]})
        else:
            screen.table(_HEADS, [_row(one) for one in found])
        return 0
    if args.interrupt:
        was_busy = await host.interrupt_context(args.id, args.interrupt)
        _tell(context, {"interrupted": was_busy}, "interrupted" if was_busy else "nothing ran in it")
        return 0
    if args.remove:
        await host.delete_context(args.id, args.remove)
        _tell(context, {"removed": args.remove}, "")
        return 0
    if args.restart:
        told = await host.restart_context(args.id, args.restart)
    else:
        envs = values.pairs("--env", args.env)
        wanted = ContextRequest(args.id, args.language or PYTHON, args.cwd, envs, args.user, args.context)
        told = await host.create_context(wanted)
    _tell(context, asdict(told), told.context_id)
    return 0


def _tell(context: Context, document: dict[str, Any], line: str) -> None:
    if context.screen.as_json:
        context.screen.json(document)
    elif line:
        context.screen.line(line)


def _plain(text: str) -> str:
    """It comes from the session: nothing in it acts on this terminal."""
    return "\n".join(printable(line) for line in text.expandtabs().split("\n"))


_HEADS = ("CONTEXT", "LANGUAGE", "STATE", "RUNS", "DIRECTORY", "REASON")


def _row(one: CodeContext) -> Sequence[str]:
    return one.context_id, one.language, str(one.state), str(one.execution_count), one.cwd, one.reason
