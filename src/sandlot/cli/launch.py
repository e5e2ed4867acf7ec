"""Begin a process: a program with a name that goes on by itself, and is told by `ps`, `logs` and `stop`.

With --port it has an address that reaches it from outside, as long as an engine runs: see `sandlot serve`."""

import argparse

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.ps import ALONE, is_alone, tell
from sandlot.model import InvalidArgument, ProcessSpec, ProcessState, Ready, ReadyKind, Restart, limits

USAGE = "launch [options] ID -- CMD..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="instead of its id, for other verbs")
    parser.add_argument("--cwd", metavar="DIR", help="where it starts (default: the workspace)")
    parser.add_argument("--user", metavar="USER", help="a name, a uid or uid:gid (default: the session's user)")
    parser.add_argument("--env", metavar="KEY=VALUE", action="append", default=[], help="can be repeated")
    parser.add_argument("--port", metavar="N", help="where it listens inside: it gets an address on the host")
    parser.add_argument(
        "--ready",
        metavar="WHEN",
        help="running, 'port N', 'http N /path' or 'log TEXT' (default: its port answers)",
    )
    parser.add_argument("--ready-timeout", metavar="TIME", help=f"for that (default: {limits.READY_TIMEOUT_S:g}s)")
    parser.add_argument("--restart", metavar="WHEN", default=Restart.NONE, help="none, or on-failure")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it is ready")
    parser.add_argument("id", metavar="ID", help="the session's id")


async def run(context: Context) -> int:
    spec = _spec(context.args)
    async with context.host() as host:
        process, alone = await host.launch_process(spec), is_alone(host)
        if not context.args.no_wait:
            process = await host.wait_process(spec.session_id, process.process_id, until=ProcessState.RUNNING)
    if context.screen.as_json:
        tell(context, process)
    else:
        context.screen.line(process.process_id)
        if process.address:
            context.screen.note(f"port {process.port} is reached at {process.address}")
            if alone:
                context.screen.note(ALONE)
    return 0


def _spec(args: argparse.Namespace) -> ProcessSpec:
    """Raises InvalidArgument."""
    if args.restart not in set(Restart):
        raise InvalidArgument(f"--restart: {args.restart!r}", next_step=f"give one of: {', '.join(Restart)}")
    port = None if args.port is None else values.count("--port", args.port)
    if args.ready is not None:
        ready = Ready.parse(args.ready)
    else:
        ready = Ready() if port is None else Ready(ReadyKind.PORT, port)
    timeout_s = args.ready_timeout and values.duration("--ready-timeout", args.ready_timeout)
    return ProcessSpec(
        args.id,
        tuple(args.command),
        name=args.name,
        envs=values.pairs("--env", args.env),
        cwd=args.cwd,
        user=args.user,
        port=port,
        ready=ready,
        ready_timeout_s=timeout_s or limits.READY_TIMEOUT_S,
        restart=Restart(args.restart),
    )
