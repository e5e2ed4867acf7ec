"""Come back to a terminal, or follow a command that was left running, from its first byte to its end.

Without the id of one it is the newest terminal of the session. At a terminal every key goes to the session, and Ctrl-]
twice leaves; without a keyboard its output is followed."""

import argparse
import sys
from contextlib import suppress

from sandlot.cli.context import Context
from sandlot.cli.keyboard import LEAVE_WORDS, Keyboard
from sandlot.cli.screen import is_terminal
from sandlot.cli.stream import Collected, OwnStreams, follow, report
from sandlot.contracts import Host
from sandlot.model import CallState, InputMode, InvalidArgument, InvalidState, NotFound

USAGE = "attach [options] ID [CALL]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="read a terminal only: no key goes to it")
    parser.add_argument("--take", action="store_true", help="take its input over from whoever holds it")
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument(
        "call", metavar="CALL", nargs="?", help="the id of a terminal, or one that `exec --detach` printed (see `show`)"
    )


async def run(context: Context) -> int:
    args = context.args
    if args.watch and args.take:
        raise InvalidArgument("--watch takes no input, and --take does", next_step="leave one of them out")
    has_keyboard = is_terminal(sys.stdin) and not args.json
    sink = Collected() if args.json else OwnStreams()
    async with context.host() as host:
        call: str = args.call or await _newest(host, args.id)
        if has_keyboard and await _is_open(host, args.id, call):
            context.screen.note(f"terminal {call}; {LEAVE_WORDS} leaves")
            mode = InputMode.TAKE if args.take else InputMode.WATCH
            keyboard = Keyboard(host, args.id, call, context.screen)
            result = await keyboard.visit(mode, again=True, may_write=not args.watch)
            if result is None:
                context.screen.note(f"terminal {call} goes on")
                return 0
            return report(context.screen, args.id, result, OwnStreams())
        # Ctrl-C leaves; the command goes on.
        async with host.attach(args.id, call) as stream:
            result = await follow(stream, sink)
    return report(context.screen, args.id, result, sink)


async def _newest(host: Host, session_id: str) -> str:
    """Raises NotFound."""
    terminals = await host.terminals(session_id)
    if not terminals:
        step = f"`sandlot shell {session_id}` opens one; give the id of a command to follow that"
        raise NotFound(f"session {session_id} has no open terminal", next_step=step)
    return terminals[-1].terminal_id


async def _is_open(host: Host, session_id: str, call: str) -> bool:
    """False for a command, and for a terminal that has ended."""
    with suppress(InvalidState):
        return (await host.get_terminal(session_id, call)).state is CallState.RUNNING
    return False
