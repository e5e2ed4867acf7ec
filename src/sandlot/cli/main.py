"""The program `sandlot`: reads the command line, runs one verb, turns errors into words and exit codes."""

import argparse
import asyncio
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import NoReturn

import uvloop

from sandlot import __version__
from sandlot.cli import attach, create, demo, doctor, exec, kill, ls, run, show
from sandlot.cli.context import Context
from sandlot.cli.interruption import Interruption
from sandlot.cli.screen import printable, show_error
from sandlot.model import InvalidArgument, SandlotError

EXIT_USAGE = 2
EXIT_DEFECT = 70
EXIT_SANDBOX = 125  # the sandbox failed, not the command in it
EXIT_SIGNAL = 128
EXIT_BROKEN_PIPE = 141  # as if SIGPIPE had ended us: whoever read our output does not want more

VERBS: dict[str, ModuleType] = {
    "run": run,
    "create": create,
    "exec": exec,
    "attach": attach,
    "ls": ls,
    "show": show,
    "kill": kill,
    "doctor": doctor,
    "demo": demo,
}
TAKE_COMMAND = ("run", "exec")


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong with the command line as the same error that everything else raises."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(message, next_step=f"`{self.prog} --help` tells what can be given")


def make_parser(*, with_command: bool) -> argparse.ArgumentParser:
    """`with_command`: the first word that is not an option begins the command; else no command stands here."""
    parser = _Parser(
        prog="sandlot",
        description="Private computers for agents: started in milliseconds, and walled in.",
        epilog="Exit codes: the command's own; 2 for a wrong request, 125 when the sandbox itself failed.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sandlot {__version__}")
    _add_global_options(parser, json=False, debug=False, data_dir=None, wait="3")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", parser_class=_Parser)
    for name, module in VERBS.items():
        about = (module.__doc__ or "").strip()
        verb = verbs.add_parser(
            name,
            help=about.split(". ")[0].split("\n")[0].rstrip("."),
            description=about,
            usage=f"sandlot {module.USAGE}",
            allow_abbrev=False,
        )
        module.add_arguments(verb)
        if with_command and name in TAKE_COMMAND:
            verb.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the program and its arguments")
        # Given before the verb or after it; what is not given after it must not undo what was given before.
        suppress = argparse.SUPPRESS
        _add_global_options(verb, json=suppress, debug=suppress, data_dir=suppress, wait=suppress)
    return parser


def _add_global_options(parser: argparse.ArgumentParser, **defaults: object) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--data-dir", metavar="PATH", default=defaults["data_dir"], help="where sessions are kept (SANDLOT_DATA_DIR)"
    )
    group.add_argument(
        "--json", action="store_true", default=defaults["json"], help="print one JSON document, errors too"
    )
    group.add_argument(
        "--wait",
        metavar="TIME",
        default=defaults["wait"],
        help="how long to wait for another engine on the same data directory (default: 3s)",
    )
    group.add_argument("--debug", action="store_true", default=defaults["debug"], help="show where an error came from")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises InvalidArgument; prints help or the version and raises SystemExit when asked for them."""
    head, command = list(argv), None
    if "--" in argv:
        # What stands before it is ours, what stands behind it the command's, whatever it looks like.
        at = head.index("--")
        head, command = head[:at], head[at + 1 :]
    parser = make_parser(with_command=command is None)
    args = parser.parse_args(head)
    if args.verb is None:
        parser.print_help()
        raise SystemExit(EXIT_USAGE)
    if command is not None:
        if args.verb not in TAKE_COMMAND:
            raise InvalidArgument(f"{args.verb} takes no command", next_step="leave out `--` and what follows")
        args.command = command
    return args


def _open_standard_streams() -> None:
    """Whoever started us may have closed some of them. What is opened next must not take their place."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open as long as the program runs
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail


def main(argv: Sequence[str] | None = None) -> int:
    _open_standard_streams()
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    finally:
        _flush()


def _main(argv: Sequence[str]) -> int:
    own = argv[: argv.index("--")] if "--" in argv else argv
    as_json, debug = "--json" in own, "--debug" in own
    try:
        args = parse(argv)
        as_json, debug = args.json, args.debug
        return _run(args)
    except SandlotError as error:
        if debug:
            traceback.print_exc()
        show_error(error, as_json=as_json)
        return EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_SANDBOX
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the end of the program: there is nobody above to tell
        return _defect(error, as_json=as_json, debug=debug)


def _flush() -> None:
    """Python flushes once more at its end, and would complain then about a reader who left."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _WordsOnly(logging.Formatter):
    """What the engine logs in one line; where it came from is for --debug."""

    def formatException(self, ei: object) -> str:  # noqa: N802 - the library's name
        del ei
        return ""


def _log_to_stderr(*, debug: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter((logging.Formatter if debug else _WordsOnly)("sandlot: %(message)s"))
    logger = logging.getLogger("sandlot")
    logger.handlers = [handler]
    logger.propagate = False


def _run(args: argparse.Namespace) -> int:
    _log_to_stderr(debug=args.debug)
    verb: Callable[[Context], Awaitable[int]] = VERBS[args.verb].run
    interruption: Interruption | None = None

    async def work() -> int:
        nonlocal interruption
        interruption = Interruption()
        return await verb(Context.of(args, interruption))

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work())
    except asyncio.CancelledError:
        if interruption is None or not interruption.number:
            raise
        return EXIT_SIGNAL + interruption.number


def _defect(error: Exception, *, as_json: bool, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    show_error(
        SandlotError(
            f"something went wrong that should not: {printable(words)}",
            next_step="run it again with --debug, and report what it shows",
        ),
        as_json=as_json,
    )
    return EXIT_DEFECT
