"""Hold the runtimes and storages of this machine to what they promise, and tell what was not kept.

With TARGET it is that one thing, which may be your own. Every check has a session of its own, which is destroyed behind
it. Known deviations are told with their reason. The exit code is 0 when there is no other."""

import argparse
import dataclasses
from collections.abc import AsyncIterator, Sequence

from sandlot.cli.conform_target import conform_one, is_of_the_engine, list_checks
from sandlot.cli.context import Context, Engine
from sandlot.cli.screen import Screen
from sandlot.conformance import (
    RUNTIME_CHECKS,
    RUNTIME_DEVIATIONS,
    Outcome,
    Verdict,
    conform,
    conform_files,
    conform_host,
    conform_storage,
    conform_tools,
    conform_whole,
    is_conforming,
)
from sandlot.model import AUTO, CapabilityNotSupported, InvalidArgument, Probe

USAGE = "conform [options] [TARGET]"
_ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="one thing alone, with all that such a thing promises: host, a runtime or a storage of this machine; "
        "native, node, opensandbox, opensandbox-control, local, local-provisioner, fake-host, fake-environment, "
        "fake-control, fake-provisioner; or "
        "MODULE:FACTORY of your own",
    )
    parser.add_argument("--only", metavar="CHECK", action="append", help="of a target, this check alone; repeatable")
    parser.add_argument(
        "--deviation",
        metavar="CHECK=REASON",
        action="append",
        help="of a target, a check that is known to fail, and why; one that passes all the same is told; repeatable",
    )
    parser.add_argument("--list", action="store_true", help="tell the checks of targets, and run none")
    parser.add_argument("--runtime", metavar="NAME", help="this one alone (default: all that work here)")
    parser.add_argument(
        "--storage",
        metavar="NAME",
        help="the storage suite instead: of this one, or of `all` that work here, with each runtime",
    )
    parser.add_argument("--files", action="store_true", help="the suite of files instead, with each runtime")
    parser.add_argument(
        "--host", action="store_true", help="the suite of everything that can run sessions instead, with each runtime"
    )
    parser.add_argument("--tools", action="store_true", help="the suite of tools instead, with each runtime")
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="every suite, on each storage with each runtime, and a table of what came of each pair",
    )


async def run(context: Context) -> int:
    if context.args.list:
        return list_checks(context)
    if context.args.target is not None and not is_of_the_engine(context.args):
        return await conform_one(context)
    if context.args.only or context.args.deviation:
        raise InvalidArgument("--only and --deviation are of a target", next_step="name one")
    if context.args.matrix:
        return await _matrix(context)
    asked: str | None = context.args.storage
    one_storage = context.args.files or context.args.tools or context.args.host
    if one_storage and asked == _ALL:
        raise InvalidArgument("this suite takes one storage", next_step="name it, or leave --storage out")
    async with context.engine() as host:
        storages, runtimes = await host.probes()
        chosen = _choose("runtime", runtimes, context.args.runtime)
        if context.args.files:
            found = {name: await _told(context, name, conform_files(host, name, asked or AUTO)) for name in chosen}
        elif context.args.host:
            found = {name: await _told(context, name, await _host_suite(host, name, asked or AUTO)) for name in chosen}
        elif context.args.tools:
            found = {name: await _told(context, name, await _tool_suite(host, name, asked or AUTO)) for name in chosen}
        elif asked is None:
            found = {runtime: await _told(context, runtime, _runtime_suite(host, runtime)) for runtime in chosen}
        else:
            names = _choose("storage", storages, None if asked == _ALL else asked)
            found = {
                f"{name} on {runtime}": await _told(
                    context, f"{name} on {runtime}", await _storage_suite(host, name, runtime)
                )
                for name in names
                for runtime in chosen
            }
    is_good = bool(found) and all(map(is_conforming, found.values()))
    away = {} if asked is None else {probe.name: probe.reason for probe in storages if not probe.ready}
    if context.screen.as_json:
        documents = {name: [dataclasses.asdict(one) for one in outcomes] for name, outcomes in found.items()}
        axis = "runtimes" if asked is None else "storages"
        context.screen.json({"conforming": is_good, axis: documents, "not_ready": away})
    else:
        _show(context.screen, found, "RUNTIME" if asked is None else "STORAGE")
        for name, reason in away.items():
            context.screen.line(f"{name}: not ready: {reason}")
    return 0 if is_good else 1


async def _matrix(context: Context) -> int:
    asked: str | None = context.args.storage
    if context.args.files and asked == _ALL:
        raise InvalidArgument("the suite of files takes one storage", next_step="name it, or leave --storage out")
    found: dict[tuple[str, str], list[Outcome]] = {}
    async with context.engine() as host:
        storages, runtimes = await host.probes()
        for storage in _choose("storage", storages, None if asked in (None, _ALL) else asked):
            for runtime in _choose("runtime", runtimes, context.args.runtime):
                have, part = await host.capabilities_of(runtime, storage), await host.storage(storage)
                found[storage, runtime] = await _told(
                    context, f"{storage} on {runtime}", conform_whole(host, runtime, part, have)
                )
    is_good = bool(found) and all(map(is_conforming, found.values()))
    if context.screen.as_json:
        pairs = [
            {"storage": storage, "runtime": runtime, "outcomes": [dataclasses.asdict(one) for one in outcomes]}
            for (storage, runtime), outcomes in found.items()
        ]
        context.screen.json({"conforming": is_good, "pairs": pairs})
        return 0 if is_good else 1
    context.screen.table(*_matrix_table(found))
    for (storage, runtime), outcomes in found.items():
        for one in outcomes:
            if not one.is_good:
                context.screen.line(f"{storage} on {runtime}: {one.check}: {one.verdict}: {one.detail}")
    return 0 if is_good else 1


def _matrix_table(found: dict[tuple[str, str], list[Outcome]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Storages downwards, runtimes across."""
    runtimes = tuple(dict.fromkeys(runtime for _storage, runtime in found))
    rows = [
        (storage, *(_summary(found[storage, runtime]) for runtime in runtimes))
        for storage in dict.fromkeys(storage for storage, _runtime in found)
    ]
    return ("STORAGE", *runtimes), rows


async def _told(context: Context, where: str, outcomes: AsyncIterator[Outcome]) -> list[Outcome]:
    """Each is told when it is known: a suite takes minutes."""
    found: list[Outcome] = []
    async for outcome in outcomes:
        context.screen.note(f"{where}: {outcome.check}: {outcome.verdict}")
        found.append(outcome)
    return found


def _runtime_suite(host: Engine, runtime: str) -> AsyncIterator[Outcome]:
    return conform(host, runtime, RUNTIME_CHECKS, RUNTIME_DEVIATIONS.get(runtime, {}))


async def _host_suite(host: Engine, runtime: str, storage: str) -> AsyncIterator[Outcome]:
    return conform_host(host, runtime, storage, await host.capabilities_of(runtime, storage))


async def _tool_suite(host: Engine, runtime: str, storage: str) -> AsyncIterator[Outcome]:
    return conform_tools(host, runtime, storage, await host.capabilities_of(runtime, storage))


async def _storage_suite(host: Engine, storage: str, runtime: str) -> AsyncIterator[Outcome]:
    have = await host.capabilities_of(runtime, storage)
    return conform_storage(host, runtime, await host.storage(storage), have)


def _show(screen: Screen, found: dict[str, list[Outcome]], head: str) -> None:
    heads = (head, "CHECK", "RESULT", "SECONDS", "")
    rows = [
        (name, one.check.replace("_", " "), one.verdict, f"{one.seconds:.2f}", one.detail)
        for name, outcomes in found.items()
        for one in outcomes
    ]
    screen.table(heads, rows, numbers=(3,))
    for name, outcomes in found.items():
        screen.line(f"{name}: {_summary(outcomes)}")


def _choose(axis: str, probes: Sequence[Probe], asked: str | None) -> list[str]:
    """Raises InvalidArgument for a name that is none, CapabilityNotSupported for one that does not work here."""
    if asked is None:
        return [probe.name for probe in probes if probe.ready]
    for probe in probes:
        if probe.name == asked:
            if not probe.ready:
                raise CapabilityNotSupported(f"{asked} does not work here: {probe.reason}", next_step=probe.next_step)
            return [asked]
    names = ", ".join(probe.name for probe in probes)
    raise InvalidArgument(f"--{axis}: {asked!r} is not a {axis}", next_step=f"use one of: {names}")


def _summary(outcomes: list[Outcome]) -> str:
    counts = {verdict: sum(one.verdict is verdict for one in outcomes) for verdict in Verdict}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
