"""Keys for a server and tokens of sessions: make one, list them, revoke one, or bound what a tenant may have.

`sandlot key create ci --tenant team-a` shows the key once; only its hash is kept. From the first key on nobody is
served without one, except through the socket in the data directory. A key of a tenant sees its sessions alone.
`sandlot key token SESSION` makes a token that reaches nothing but this session: of the key in `SANDLOT_API_KEY`, and
then nobody is asked, or on the machine of the server of the key that `--key` names. It ends with its key."""

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING

from sandlot import registry
from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import ago
from sandlot.config.remote import environment_key
from sandlot.model import (
    InvalidArgument,
    KeyInfo,
    NewKey,
    Scope,
    TenantLimits,
    check_token_lifetime,
    limits,
    token_of_key,
)

if TYPE_CHECKING:
    from sandlot.wiring.identity import KeyStore

USAGE = (
    "key create NAME [--tenant TENANT] [--scope SCOPE] [--lifetime TIME] | key ls | key revoke NAME | "
    "key token SESSION [--key KEY] [--scope SCOPE] [--lifetime TIME] | "
    "key limit TENANT [--sessions N] [--cpus N] [--memory SIZE] [--disk SIZE] [--rate N]"
)
_ACTIONS = ("create", "ls", "revoke", "token", "limit")
_HEADS = ("ID", "NAME", "TENANT", "SCOPE", "AGE", "STATE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="WHAT", choices=_ACTIONS, help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of the key, or its id; of a session; of a tenant")
    parser.add_argument("--tenant", metavar="TENANT", default="", help="whose sessions it is for; none: the operator's")
    scopes = tuple(str(scope) for scope in Scope)
    parser.add_argument("--scope", choices=scopes, help="look only, use, or operate the host (default: by the tenant)")
    parser.add_argument(
        "--lifetime", metavar="TIME", help="when it ends by itself: 30d (default: never; of a token: 1h)"
    )
    parser.add_argument("--key", metavar="KEY", help="name or id of the key that a token is of")
    parser.add_argument("--cpus", metavar="CPUS", help="processors of all sessions of a tenant together, such as 8")
    parser.add_argument("--memory", metavar="SIZE", help="of all sessions of a tenant together, such as 16G")
    parser.add_argument("--disk", metavar="SIZE", help="of all sessions of a tenant together, such as 100G")
    parser.add_argument("--sessions", metavar="N", type=int, help="how many sessions a tenant may have at once")
    parser.add_argument("--rate", metavar="N", type=float, help="how many requests a second a tenant may send")


async def run(context: Context) -> int:
    args = context.args
    if (args.name is None) != (args.action == "ls"):
        raise InvalidArgument(
            "create, revoke, token and limit take a name, ls takes none", next_step=f"usage: sandlot {USAGE}"
        )
    keys: KeyStore = registry.load("server", "keys")(context.settings.data)
    if args.action == "ls":
        return _list(context, keys.list())
    if args.action == "limit":
        bounds = TenantLimits(
            sessions=_count(args.sessions),
            requests_per_s=_positive("--rate", args.rate),
            cpus=None if args.cpus is None else values.number("--cpus", args.cpus),
            memory_bytes=None if args.memory is None else values.size("--memory", args.memory),
            disk_bytes=None if args.disk is None else values.size("--disk", args.disk),
        )
        keys.set_limits(args.name, bounds)
        if context.screen.as_json:
            context.screen.json({"tenant": args.name, **dataclasses.asdict(bounds)})
        return 0
    if args.action == "token":
        return _token(context, keys)
    if args.action == "revoke":
        info = keys.revoke(args.name)
        if context.screen.as_json:
            context.screen.json(_document(info))
        return 0
    scope = Scope(args.scope) if args.scope else (Scope.USE if args.tenant else Scope.OPERATE)
    lifetime_s = None if args.lifetime is None else values.duration("--lifetime", args.lifetime)
    _told(context, keys.create(args.name, args.tenant, scope, lifetime_s))
    return 0


def _token(context: Context, keys: "KeyStore") -> int:
    args = context.args
    asked = limits.TOKEN_LIFETIME_S if args.lifetime is None else values.duration("--lifetime", args.lifetime)
    expires = time.time() + check_token_lifetime(asked)
    scope = Scope(args.scope or Scope.USE)
    if args.key is not None:
        token = keys.token(args.key, args.name, expires, scope)
    elif key := environment_key():
        token = token_of_key(key, args.name, expires, scope)
    else:
        raise InvalidArgument(
            "a token is of a key, and none is given", next_step="name one with --key, or give it in SANDLOT_API_KEY"
        )
    if context.screen.as_json:
        told = {"token": token, "session_id": args.name, "scope": str(scope), "expires": int(expires)}
        context.screen.json(told)
    else:
        context.screen.line(token)
    return 0


def _count(value: int | None) -> int | None:
    return None if _positive("--sessions", value) is None else value


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise InvalidArgument(f"{name} must be more than 0, not {value:g}")
    return value


def _told(context: Context, made: NewKey) -> None:
    if context.screen.as_json:
        context.screen.json({**_document(made.info), "key": made.secret})
    else:
        context.screen.line(made.secret)


def _document(info: KeyInfo) -> dict[str, object]:
    told = {**dataclasses.asdict(info), "scope": str(info.scope)}
    return {name: value for name, value in told.items() if name != "session"}


def _list(context: Context, keys: list[KeyInfo]) -> int:
    if context.screen.as_json:
        context.screen.json({"keys": [_document(info) for info in keys]})
        return 0
    now = time.time()
    context.screen.table(_HEADS, [_row(info, now) for info in keys])
    return 0


def _row(info: KeyInfo, now: float) -> tuple[str, ...]:
    age = f"{ago(now - info.created)} ago"
    return info.key_id, info.name, info.tenant or "-", str(info.scope), age, _state(info, now)


def _state(info: KeyInfo, now: float) -> str:
    if info.revoked is not None:
        return "revoked"
    if not info.is_good(now):
        return "expired"
    return "good" if info.expires is None else f"good for {ago(info.expires - now)}"
