"""The options that several verbs share, and the requests that they make."""

import argparse
import os
from dataclasses import replace

from sandlot.cli import values
from sandlot.cli.terminal import terminal_size
from sandlot.model import (
    AUTO,
    BUILTIN,
    CallRequest,
    InvalidArgument,
    NetworkMode,
    NetworkPolicy,
    OnExpiry,
    Resources,
    SessionSpec,
    limits,
)
from sandlot.sdk.workspace import Workspace

# A command of a person may run on and may say much; what it says is kept on disk until its session ends.
OUTPUT_BYTES_MAX = limits.GIB
_LIFETIME_MARGIN_S = 60.0
_FOR_COMMANDS = ("env", "user")  # a command in a session that is there takes them too


def add_session_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("session")
    group.add_argument("--id", metavar="ID", help="the session's id (default: a random one)")
    group.add_argument("--template", metavar="NAME", default=BUILTIN, help=f"what it starts from (default: {BUILTIN})")
    group.add_argument("--snapshot", metavar="ID", help="start from this point of another session")
    group.add_argument(
        "--storage", metavar="NAME", default=AUTO, help="how its files are kept (default: $SANDLOT_STORAGE, or auto)"
    )
    group.add_argument(
        "--runtime", metavar="NAME", default=AUTO, help="how it is contained (default: $SANDLOT_RUNTIME, or auto)"
    )
    group.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="can be repeated")
    group.add_argument("--env", metavar="KEY=VALUE", action="append", default=[], help="can be repeated")
    group.add_argument(
        "--secret",
        metavar="KEY[=VALUE]",
        action="append",
        default=[],
        help="can be repeated; KEY alone takes the value from your environment, where others do not see it",
    )
    group.add_argument("--user", metavar="USER", help="who commands run as (default: the template's user)")
    group.add_argument(
        "--allow", metavar="DOMAIN", action="append", default=[], help="may be reached from inside; can be repeated"
    )
    group.add_argument(
        "--port", metavar="N", action="append", default=[], help="can be reached from outside; can be repeated"
    )
    add_limit_options(group)
    group.add_argument("--swap", metavar="SIZE", help="beside the memory (default: none)")
    group.add_argument("--disk", metavar="SIZE", help="such as 10G")
    group.add_argument("--io-weight", metavar="WEIGHT", help="share of a busy disk, 1 to 1000; others have 100")
    group.add_argument("--call-snapshots", action="store_true", help="take a snapshot after every command")
    group.add_argument("--no-start", action="store_true", help="leave out what the template starts")
    group.add_argument("--idle", metavar="TIME", help="pause it after so long without a command, wake it with the next")
    group.add_argument(
        "--on-expiry",
        metavar="WHAT",
        default=OnExpiry.DESTROY.value,
        help=f"what becomes of it when its time is up: {', '.join(OnExpiry)} (default: {OnExpiry.DESTROY})",
    )
    group.add_argument(
        "--volume",
        metavar="NAME:PATH[:ro]",
        action="append",
        default=[],
        help="a volume at this path of it, or a directory of the machine that its operator allows; can be repeated",
    )
    group.add_argument("--upload", metavar="DIR", help="what its workspace begins with, without what git would ignore")
    group.add_argument("--no-ignore", action="store_true", help="upload what git would ignore, too")
    group.add_argument(
        "--git", metavar="PATH", help="a repository to clone into its workspace; PATH#REF checks REF out"
    )
    group.add_argument("--queue", metavar="TIME", help="wait so long for room, where there is none (default: 0)")
    group.add_argument("--request-id", metavar="ID", help="a repeated one gives the first answer")


# A parser and a group of its options have no other type in common.
def add_limit_options(group: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """What a session and a single command can both be limited in."""
    group.add_argument("--cpus", metavar="CPUS", help="processors, such as 2 or 0.5")
    group.add_argument("--memory", metavar="SIZE", help="such as 512M or 2G")
    group.add_argument("--pids", metavar="COUNT", help="processes at once")
    group.add_argument("--open-files", metavar="COUNT", help="of each process")


def refuse_session_options(args: argparse.Namespace) -> None:
    """For a session that is there already: what only a new one takes is not ignored. Raises InvalidArgument."""
    fresh = argparse.ArgumentParser()
    add_session_options(fresh)
    for name, default in vars(fresh.parse_args([])).items():
        if name not in _FOR_COMMANDS and getattr(args, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise InvalidArgument(
                f"{option} is for a new session, and {args.session} is there already",
                next_step=f"leave out {option}, or the id",
            )


def add_command_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("command")
    group.add_argument("--cwd", metavar="PATH", help="where it starts (default: the workspace)")
    group.add_argument("-i", "--interactive", action="store_true", help="pass stdin on even from a terminal")
    group.add_argument("-t", "--tty", action="store_true", help="give it a terminal; implies -i")
    group.add_argument("--output-max", metavar="SIZE", help="keep no more than this of what it prints (default: 1G)")


def session_spec(args: argparse.Namespace) -> SessionSpec:
    """Raises InvalidArgument."""
    timeout = args.timeout
    return SessionSpec(
        session_id=args.id,
        template=args.template,
        snapshot=args.snapshot,
        storage=args.storage,
        runtime=args.runtime,
        labels=values.pairs("--label", args.label),
        envs=values.pairs("--env", args.env),
        user=args.user,
        resources=_resources(args),
        timeout_s=limits.SESSION_LIFETIME_S if timeout is None else values.duration("--timeout", timeout),
        on_expiry=_on_expiry(args.on_expiry),
        idle_timeout_s=None if args.idle is None else values.duration("--idle", args.idle),
        network=NetworkPolicy(NetworkMode.ALLOW_LIST, tuple(args.allow)) if args.allow else NetworkPolicy(),
        secrets=values.pairs_or_keys("--secret", args.secret, os.environ),
        ports=tuple(values.count("--port", port) for port in args.port),
        mounts=tuple(values.mount("--volume", text) for text in args.volume),
        call_snapshots=args.call_snapshots,
        starts=not args.no_start,
        request_id=args.request_id,
        queue_timeout_s=0.0 if args.queue is None else values.duration("--queue", args.queue),
    )


def workspace(args: argparse.Namespace) -> Workspace:
    """What a new session begins with. Raises SandlotError for what can be told before it is made."""
    start = Workspace(args.upload, not args.no_ignore, args.git)
    if not start.is_empty and args.request_id is not None:
        raise InvalidArgument(
            "a repeated request would fill the workspace again", next_step="create it first, then use `sandlot cp`"
        )
    start.check()
    return start


def call_resources(args: argparse.Namespace) -> Resources:
    return Resources(
        cpus=None if args.cpus is None else values.number("--cpus", args.cpus),
        memory_bytes=None if args.memory is None else values.size("--memory", args.memory),
        pids=None if args.pids is None else values.count("--pids", args.pids),
        open_files=None if args.open_files is None else values.count("--open-files", args.open_files),
    )


def _resources(args: argparse.Namespace) -> Resources:
    return replace(
        call_resources(args),
        disk_bytes=None if args.disk is None else values.size("--disk", args.disk),
        swap_bytes=None if args.swap is None else values.size("--swap", args.swap),
        io_weight=None if args.io_weight is None else values.count("--io-weight", args.io_weight),
    )


def _on_expiry(text: str) -> OnExpiry:
    try:
        return OnExpiry(text)
    except ValueError:
        raise InvalidArgument(
            f"--on-expiry: {text!r} cannot be done", next_step=f"use one of: {', '.join(OnExpiry)}"
        ) from None


def outliving(spec: SessionSpec, timeout_s: float | None) -> SessionSpec:
    """The session of one command: it ends by itself, a little later, should we be killed before we can end it."""
    return spec if timeout_s is None else replace(spec, timeout_s=timeout_s + _LIFETIME_MARGIN_S)


def call_timeout(args: argparse.Namespace) -> float | None:
    return None if args.timeout is None else values.duration("--timeout", args.timeout)


def call_request(args: argparse.Namespace, session_id: str, *, stdin: bool, detach: bool = False) -> CallRequest:
    """Raises InvalidArgument, LimitReached. The environment of `run` is its session's, so it is not given again."""
    if not args.command:
        raise InvalidArgument("there is no command to run", next_step="put it at the end: -- CMD ARGUMENT...")
    return CallRequest(
        session_id=session_id,
        argv=tuple(args.command),
        cwd=args.cwd,
        timeout_s=call_timeout(args),
        stdin=stdin,
        terminal=terminal_size() if args.tty else None,
        output_bytes_max=output_bytes_max(args),
        detach=detach,
    )


def output_bytes_max(args: argparse.Namespace) -> int:
    """Raises InvalidArgument."""
    if args.output_max is not None:
        return values.size("--output-max", args.output_max)
    return limits.CALL_OUTPUT_BYTES if args.json else OUTPUT_BYTES_MAX
