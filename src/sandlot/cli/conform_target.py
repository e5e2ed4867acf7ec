"""`sandlot conform TARGET`: one thing that is held to all that such things promise."""

import argparse
import dataclasses
import importlib
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from sandlot import registry
from sandlot.cli.context import Context
from sandlot.conformance import SUITES, Kind, Target, Verdict, conform_target, is_conforming, kind_of
from sandlot.model import InstanceConfig, InvalidArgument

ON_AN_ENGINE = ("native", "node", "opensandbox", "opensandbox-control")
HOST = "host"
RUNTIMES = ("namespaces", "gvisor", "none")
STORAGES = ("layers", "btrfs", "zfs", "local-disk")
_FACTORY = "MODULE:FACTORY of your own"


def known() -> tuple[str, ...]:
    return tuple(row.name for row in registry.ROWS if row.axis == "target")


def is_of_the_engine(args: argparse.Namespace) -> bool:
    """Whether the target is the engine, or a part of it; then its options say so."""
    if args.target == HOST:
        args.host = True
    elif args.target in RUNTIMES:
        args.runtime = args.target
    elif args.target in STORAGES:
        args.storage = args.target
    else:
        return False
    return True


def list_checks(context: Context) -> int:
    checks = [(str(kind), check) for kind, suite in SUITES.items() for check in suite]
    if context.screen.as_json:
        context.screen.json(
            {"checks": [{"kind": kind, "check": check.name, "promise": check.promise} for kind, check in checks]}
        )
    else:
        context.screen.table(("KIND", "CHECK", "PROMISE"), [(kind, one.name, one.promise) for kind, one in checks])
    return 0


async def conform_one(context: Context) -> int:
    name: str = context.args.target
    only = frozenset[str](context.args.only or ())
    named = dict(map(_deviation, context.args.deviation or ()))
    async with _opened(context, name) as target:
        target = dataclasses.replace(target, deviations={**target.deviations, **named})
        kind = kind_of(target.make())
        outcomes = [outcome async for outcome in conform_target(target, only)]
    is_good = is_conforming(outcomes)
    if context.screen.as_json:
        deviations = [{"check": one.check, "reason": one.detail} for one in outcomes if one.verdict is Verdict.DEVIATES]
        told = [dataclasses.asdict(one) for one in outcomes]
        context.screen.json(
            {"target": name, "kind": kind, "conforming": is_good, "deviations": deviations, "outcomes": told}
        )
        return 0 if is_good else 1
    rows = [(one.check.replace("_", " "), one.verdict, f"{one.seconds:.2f}", one.detail) for one in outcomes]
    context.screen.table(("CHECK", "RESULT", "SECONDS", ""), rows, numbers=(2,))
    counts = {verdict: sum(one.verdict is verdict for one in outcomes) for verdict in Verdict}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    context.screen.line(f"{name} ({kind}): {told}")
    return 0 if is_good else 1


def _deviation(given: str) -> tuple[str, str]:
    check, equals, reason = given.partition("=")
    if not equals or not reason.strip():
        raise InvalidArgument(
            f"--deviation {given!r} has no reason", next_step="write CHECK=REASON; `--list` tells the checks"
        )
    return check.strip().replace(" ", "_"), reason.strip()


@asynccontextmanager
async def _opened(context: Context, name: str) -> AsyncGenerator[Target]:
    if ":" in name:
        async with _own(name) as target:
            yield target
    elif name in known():
        make = cast("Callable[..., AbstractAsyncContextManager[Target]]", registry.load("target", name))
        if name in ON_AN_ENGINE:
            async with context.engine() as host, make(host) as target:
                yield target
        else:
            async with make() as target:
                yield target
    else:
        raise InvalidArgument(
            f"there is no target {name!r}",
            next_step=f"use one of: {', '.join((*known(), HOST, *RUNTIMES, *STORAGES))}; or {_FACTORY}",
        )


@asynccontextmanager
async def _own(name: str) -> AsyncGenerator[Target]:
    """What a factory of the user gives: an object of a kind; a callable that gives them; or a context manager around
    one of the two."""
    module, factory = _loaded(name)
    deviations = cast("Mapping[str, str]", getattr(module, "DEVIATIONS", {}))
    config: InstanceConfig | None = getattr(module, "CONFIG", None)
    first = factory()
    first = await first if inspect.isawaitable(first) else first
    if _is_something(first):
        # Of a host there is one; of the others each check takes another.
        is_one = kind_of(first) is Kind.HOST or inspect.iscoroutinefunction(factory)
        yield Target((lambda: first) if is_one else factory, deviations, config)
    elif isinstance(first, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[Any]", first) as given:
            yield Target((lambda: given) if _is_something(given) else given, deviations, config)
    elif callable(first):
        yield Target(cast("Callable[[], Any]", first), deviations, config)
    else:
        kind_of(first)  # which tells what it lacks


def _is_something(found: object) -> bool:
    try:
        kind_of(found)
    except InvalidArgument:
        return False
    return True


def _loaded(name: str) -> tuple[object, Callable[[], Any]]:
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` has it
    try:
        module = importlib.import_module(module_name)
        found: object = module
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"{name!r} cannot be loaded: {error}", next_step="give MODULE:FACTORY, as Python finds it from here"
        ) from error
    if not callable(found):
        raise InvalidArgument(f"{name!r} is no callable", next_step="give a factory: a function without parameters")
    return module, found
