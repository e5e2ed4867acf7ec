"""Open a terminal in a session, or in a new one that is destroyed when you leave.

Without a command it is a login shell, bash where the session has it. Every key goes to the session, Ctrl-C too; Ctrl-]
twice leaves. In a session that is there it goes on then: the same words, or `attach`, come back to it, also when your
own terminal has gone."""

import argparse
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from secrets import token_hex

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.filling import fill_workspace
from sandlot.cli.keyboard import LEAVE_WORDS, Keyboard
from sandlot.cli.options import add_session_options, refuse_session_options, session_spec, workspace
from sandlot.cli.screen import is_terminal
from sandlot.cli.stream import OwnStreams, report
from sandlot.cli.terminal import terminal_size
from sandlot.contracts import Host
from sandlot.model import InvalidArgument, SessionSpec, TerminalRequest

USAGE = "shell [options] [ID] [-- CMD...]"
_PREFIX = "shell-"  # of the ids of terminals that this opens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="ID", nargs="?", help="the session's id (default: a new session)")
    parser.add_argument("--cwd", metavar="PATH", help="where it starts (default: the workspace)")
    parser.add_argument("--new", action="store_true", help="open another terminal, whatever was left open")
    parser.add_argument("--timeout", metavar="TIME", help="how long a new session lives: 30m, 2h (default: 24h)")
    add_session_options(parser)
    parser.set_defaults(command=None)


async def run(context: Context) -> int:
    args = context.args
    if args.json:
        raise InvalidArgument(
            "shell talks to a terminal, and that is no document", next_step="use `sandlot exec --json ID -- CMD`"
        )
    if not is_terminal(sys.stdin):
        other = f"exec {args.session}" if args.session else "run"
        raise InvalidArgument(
            "shell needs a terminal, and stdin is none", next_step=f"without one, use `sandlot {other} -- CMD`"
        )
    spec = _spec(args)
    request = _request(args)
    async with context.host() as host, _session(context, host, spec) as session_id:
        left = await _find_left(host, args)
        if left is not None:
            context.screen.note(f"back in terminal {left}; {LEAVE_WORDS} leaves")
        terminal_id = left or (await host.open_terminal(replace(request, session_id=session_id))).terminal_id
        result = await Keyboard(host, session_id, terminal_id, context.screen).visit(again=left is not None)
        if result is None and args.session is not None:
            words = f"`sandlot attach {session_id} {terminal_id}`"
            context.screen.note(f"terminal {terminal_id} goes on; {words} comes back to it")
    return 0 if result is None else report(context.screen, session_id, result, OwnStreams())


async def _find_left(host: Host, args: argparse.Namespace) -> str | None:
    """The newest that was left open, where nothing says what another one should be like."""
    if args.session is None or args.new or args.command or args.env or args.user is not None or args.cwd is not None:
        return None
    terminals = await host.terminals(args.session)
    return next((one.terminal_id for one in reversed(terminals) if one.terminal_id.startswith(_PREFIX)), None)


def _spec(args: argparse.Namespace) -> SessionSpec | None:
    """Of the new session, if there is to be one. Raises InvalidArgument."""
    if args.session is None:
        return session_spec(args)
    refuse_session_options(args)
    if args.timeout is not None:
        raise InvalidArgument(
            f"--timeout is for a new session, and {args.session} is there already",
            next_step="leave out --timeout, or the id",
        )
    return None


def _request(args: argparse.Namespace) -> TerminalRequest:
    """Raises InvalidArgument, LimitReached."""
    if args.command == []:
        raise InvalidArgument("there is no command behind `--`", next_step="leave out `--` for a login shell")
    envs = values.pairs("--env", args.env)
    if "TERM" in os.environ:
        envs.setdefault("TERM", os.environ["TERM"])
    return TerminalRequest(
        args.session or "checked-first",
        tuple(args.command or ()),
        cwd=args.cwd,
        envs=envs,
        user=args.user,
        size=terminal_size(),
        terminal_id=f"{_PREFIX}{token_hex(4)}",
    )


@asynccontextmanager
async def _session(context: Context, host: Host, spec: SessionSpec | None) -> AsyncGenerator[str]:
    if spec is None:
        yield context.args.session
        return
    async with AsyncExitStack() as stack:
        start = workspace(context.args)
        session = await stack.enter_async_context(context.passing_session(host, spec))
        await fill_workspace(context, host, session, start)
        context.screen.note(f"session {session.session_id} is new; it is destroyed when you leave")
        try:
            yield session.session_id
        finally:
            await stack.aclose()
            context.screen.note(f"session {session.session_id} is destroyed")
