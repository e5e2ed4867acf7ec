"""The program `sandlot`: runs one verb, turns errors into words and exit codes."""

import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from sandlot.cli.parser import EXIT_USAGE, make_parser, parse
from sandlot.cli.screen import printable, show_error
from sandlot.cli.verbs import load
from sandlot.model import InvalidArgument, SandlotError

__all__ = ["EXIT_DEFECT", "EXIT_SANDBOX", "EXIT_USAGE", "main", "make_parser", "parse"]

EXIT_DEFECT = 70
EXIT_SANDBOX = 125  # the sandbox failed, not the command in it
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 141  # as if SIGPIPE had ended us: whoever read our output does not want more


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
        verb = load(args.verb)
        return load("running").run(verb.run, args, getattr(verb, "settings", None))
    except SandlotError as error:
        if debug:
            traceback.print_exc()
        show_error(error, as_json=as_json)
        return EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_SANDBOX
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
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
