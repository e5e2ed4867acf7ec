"""Run one command in a session that is there already."""

import argparse
from dataclasses import replace

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.options import add_command_options, add_limit_options, call_request, call_resources
from sandlot.cli.stream import Collected, OwnStreams, converse, report, wants_stdin
from sandlot.contracts import Host
from sandlot.model import CallRequest, CallResult, InvalidArgument

USAGE = "exec [options] ID -- CMD..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_command_options(parser)
    parser.add_argument("--user", metavar="USER", help="a name, a uid or uid:gid (default: the session's user)")
    parser.add_argument("--env", metavar="KEY=VALUE", action="append", default=[], help="can be repeated")
    parser.add_argument(
        "--timeout", metavar="TIME", help="end the command after this: 90, 30s, 10m, 2h (default: none)"
    )
    add_limit_options(parser.add_argument_group("limits of the command, below those of the session"))
    parser.add_argument("--detach", action="store_true", help="leave it running and print its call id")
    parser.add_argument("id", metavar="ID", help="the session's id")


async def run(context: Context) -> int:
    args = context.args
    if args.detach and (args.interactive or args.tty):
        raise InvalidArgument("--detach does not go with -i or -t", next_step="leave one of them out")
    stdin = not args.detach and wants_stdin(interactive=args.interactive, tty=args.tty)
    request = replace(
        call_request(args, args.id, stdin=stdin, detach=args.detach),
        user=args.user,
        envs=values.pairs("--env", args.env),
        resources=call_resources(args),
    )
    if args.detach:
        return await _detach(context, request)
    sink = Collected() if args.json else OwnStreams()
    async with context.host() as host:
        result = await converse(host, request, sink, context.interruption)
    return report(context.screen, args.id, result, sink)


async def _detach(context: Context, request: CallRequest) -> int:
    async with context.host() as host:
        call_id, result = await _start(host, request)
    if context.screen.as_json:
        context.screen.json({"session_id": request.session_id, "call_id": call_id, "result": result})
    else:
        context.screen.line(call_id)
        if result and result.reason:
            context.screen.note(f"the command could not be run: {result.reason}")
    return 0 if result is None else result.exit_code


async def _start(host: Host, request: CallRequest) -> tuple[str, CallResult | None]:
    """Wait for the first sign of life; a program that cannot be run shows itself by then."""
    async with host.call(request) as stream:
        async for event in stream:
            return stream.call_id, event if isinstance(event, CallResult) else None
    raise AssertionError("a stream ends with its result")
