"""One verb on an event loop of its own, until it ends or a signal ends it."""

import argparse
import asyncio
import logging
from collections.abc import Awaitable, Callable

import uvloop

from sandlot.cli.context import Context
from sandlot.cli.interruption import Interruption
from sandlot.config.settings import Settings

EXIT_SIGNAL = 128


class _WordsOnly(logging.Formatter):
    """What the engine logs in one line; where it came from is for --debug."""

    def formatException(self, ei: object) -> str:  # noqa: N802 - the library's name
        del ei
        return ""


def _log_to_stderr(*, debug: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter((logging.Formatter if debug else _WordsOnly)("sandlot: %(message)s"))
    # What the event loop notices are defects of ours, which nobody can do anything about without --debug.
    for name, to in (("sandlot", handler), ("asyncio", handler if debug else logging.NullHandler())):
        logger = logging.getLogger(name)
        logger.handlers = [to]
        logger.propagate = False


def run(
    verb: Callable[[Context], Awaitable[int]],
    args: argparse.Namespace,
    settings: Callable[[argparse.Namespace], Settings] | None = None,
) -> int:
    """`settings`: of a verb that has others than those of the environment."""
    _log_to_stderr(debug=args.debug)
    interruption: Interruption | None = None

    async def work() -> int:
        nonlocal interruption
        interruption = Interruption()
        return await verb(Context.of(args, interruption, settings(args) if settings else None))

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work())
    except asyncio.CancelledError:
        if interruption is None or not interruption.number:
            raise
        return EXIT_SIGNAL + interruption.number
