"""Make, list, name and remove templates: what sessions start from."""

import argparse
import dataclasses
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.screen import printable
from sandlot.cli.show import ago, size_text
from sandlot.cli.template_progress import shown
from sandlot.contracts import Host
from sandlot.model import (
    InvalidArgument,
    Start,
    TemplateImport,
    TemplateInfo,
    TemplatePull,
    TemplateRequest,
    TemplateSnapshot,
)
from sandlot.sdk.building import OnLine, build

USAGE = (
    "template ls | show NAME | import PATH NAME | pull IMAGE NAME | create NAME --from ID/SNAPSHOT | build DIR NAME | "
    "tag NAME NEW | rm NAME... | prune --budget SIZE"
)
_DIGEST_CHARS = 19


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=tuple(_ACTIONS), help=", ".join(_ACTIONS))
    parser.add_argument("words", metavar="WORD", nargs="*", help="what the action takes: a path, names")
    parser.add_argument("--image", metavar="NAME", default="", help="which image, where a file holds several")
    parser.add_argument("--from", dest="source", metavar="ID/SNAPSHOT", help="of create: a session, and a point of it")
    parser.add_argument("--auth-file", metavar="FILE", default="", help="of pull: credentials, as docker keeps them")
    parser.add_argument("--insecure", action="store_true", help="of pull: without TLS")
    parser.add_argument("--file", metavar="FILE", help="of build: the build file (default: Dockerfile in DIR)")
    parser.add_argument("--arg", metavar="KEY=VALUE", action="append", default=[], help="of build; can be repeated")
    parser.add_argument("--start", metavar="TEXT", help="of import, pull, create: run it in every session")
    parser.add_argument(
        "--ready",
        metavar="WHEN",
        help="it is ready when: running, port N, http N [PATH], log TEXT; alone: of the image's command",
    )
    parser.add_argument("--ready-timeout", metavar="TIME", help="how long that may take: 30s, 2m (default: 1m)")
    parser.add_argument("--budget", metavar="SIZE", help="of prune: how much templates may take, such as 20G")


async def run(context: Context) -> int:
    action, least, most = _ACTIONS[context.args.action]
    count = len(context.args.words)
    if not least <= count <= most:
        raise InvalidArgument(f"{context.args.action} takes other words", next_step=f"usage: sandlot {USAGE}")
    for option, actions in _OPTIONS.items():
        given = getattr(context.args, option)
        if given and context.args.action not in actions:
            name = "--from" if option == "source" else f"--{option.replace('_', '-')}"
            other = "; its build file says START and READY" if context.args.action == "build" else ""
            raise InvalidArgument(
                f"{context.args.action} takes no {name}", next_step=f"it is of {', '.join(actions)}{other}"
            )
    async with context.host() as host:
        return await action(context, host, context.args.words)


async def make(context: Context, host: Host, request: TemplateRequest) -> int:
    """With its progress on the terminal."""
    made: TemplateInfo | None = None
    async with host.make_template(request) as steps:
        made = await shown(steps, quiet=context.screen.as_json)
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(made))
    else:
        context.screen.line(made.digest)
        for what, count in made.left_out.items():
            context.screen.note(f"left out: {count:,} of the kind {what}")
    return 0


async def _import(context: Context, host: Host, words: Sequence[str]) -> int:
    return await make(context, host, TemplateImport(_absolute(words[0]), words[1], context.args.image, _start(context)))


async def _pull(context: Context, host: Host, words: Sequence[str]) -> int:
    args = context.args
    return await make(context, host, TemplatePull(words[0], words[1], args.auth_file, args.insecure, _start(context)))


async def _create(context: Context, host: Host, words: Sequence[str]) -> int:
    session_id, slash, snapshot = (context.args.source or "").partition("/")
    if not slash:
        raise InvalidArgument("create needs a point of a session", next_step="give --from ID/SNAPSHOT")
    return await make(context, host, TemplateSnapshot(session_id, snapshot, words[0], start=_start(context)))


async def _build(context: Context, host: Host, words: Sequence[str]) -> int:
    given = values.pairs("--arg", context.args.arg)
    made = await build(host, words[0], words[1], context.args.file, given, _sayer(context))
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(made))
    else:
        context.screen.line(made.digest)
    return 0


def _start(context: Context) -> Start | None:
    args = context.args
    timeout_s = None if args.ready_timeout is None else values.duration("--ready-timeout", args.ready_timeout)
    return Start.of(args.start, args.ready, timeout_s)


def _sayer(context: Context) -> OnLine | None:
    return None if context.screen.as_json else lambda line: context.screen.note(printable(line))


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


async def _list(context: Context, host: Host, _words: Sequence[str]) -> int:
    return _table(context, await host.list_templates(), "templates")


def _table(context: Context, templates: Sequence[TemplateInfo], word: str) -> int:
    if context.screen.as_json:
        context.screen.json({word: [dataclasses.asdict(template) for template in templates]})
        return 0
    now = time.time()
    rows = [
        (
            ", ".join(template.names) or "-",
            template.digest[:_DIGEST_CHARS],
            size_text(template.size_bytes),
            f"{template.entries:,}",
            f"{ago(now - template.created)} ago",
            f"{ago(now - template.used)} ago",
            str(template.sessions),
        )
        for template in templates
    ]
    context.screen.table(("NAME", "DIGEST", "SIZE", "FILES", "MADE", "USED", "SESSIONS"), rows, numbers=(2, 3, 6))
    return 0


async def _show(context: Context, host: Host, words: Sequence[str]) -> int:
    template = await host.get_template(words[0])
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(template))
        return 0
    facts = [
        ("names", ", ".join(template.names) or "none"),
        ("digest", template.digest),
        ("source", template.source),
        ("size", f"{size_text(template.size_bytes)} in {template.entries:,} files"),
        ("made", f"{ago(time.time() - template.created)} ago"),
        ("used", f"{ago(time.time() - template.used)} ago, by {template.sessions} sessions now"),
        ("user", template.user),
        ("directory", template.cwd or "the workspace"),
        ("command", " ".join((*template.entrypoint, *template.command)) or "none"),
        ("starts", _started(template.start)),
        *(("variable", f"{name}={value}") for name, value in template.envs.items()),
        *(("label", f"{name}={value}") for name, value in template.labels.items()),
        *(("left out", f"{count:,} of the kind {what}") for what, count in template.left_out.items()),
    ]
    for name, value in facts:
        context.screen.line(f"{name:<10} {printable(value)}")
    return 0


def _started(start: Start | None) -> str:
    if start is None:
        return "nothing"
    return f"{shlex.join(start.argv)}; ready: {start.ready}, within {start.timeout_s:g} s"


async def _tag(context: Context, host: Host, words: Sequence[str]) -> int:
    template = await host.tag_template(words[0], words[1])
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(template))
    return 0


async def _remove(context: Context, host: Host, words: Sequence[str]) -> int:
    removed = [await host.remove_template(name) for name in words]
    if context.screen.as_json:
        context.screen.json({"removed": [dataclasses.asdict(template) for template in removed]})
    return 0


async def _prune(context: Context, host: Host, _words: Sequence[str]) -> int:
    if context.args.budget is None:
        raise InvalidArgument(
            "prune needs to know how much may stay", next_step="give --budget SIZE, such as --budget 20G"
        )
    return _table(context, await host.prune_templates(values.size("--budget", context.args.budget)), "removed")


_OPTIONS: dict[str, tuple[str, ...]] = {
    "image": ("import",),
    "source": ("create",),
    "auth_file": ("pull",),
    "insecure": ("pull",),
    "file": ("build",),
    "arg": ("build",),
    "start": ("import", "pull", "create"),
    "ready": ("import", "pull", "create"),
    "ready_timeout": ("import", "pull", "create"),
    "budget": ("prune",),
}
_Action = Callable[[Context, Host, Sequence[str]], Awaitable[int]]
_ACTIONS: dict[str, tuple[_Action, int, int]] = {
    "ls": (_list, 0, 0),
    "show": (_show, 1, 1),
    "import": (_import, 2, 2),
    "pull": (_pull, 2, 2),
    "create": (_create, 1, 1),
    "build": (_build, 2, 2),
    "tag": (_tag, 2, 2),
    "rm": (_remove, 1, 1000),
    "prune": (_prune, 0, 0),
}
