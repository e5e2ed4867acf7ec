"""Everything that a host promises, on one storage and one runtime: the suites of hosts, runtimes, files, tools and
storages, one after another."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from sandlot.conformance.checks import Check, Outcome, Stage, conform
from sandlot.conformance.files import FILE_CHECKS, conform_files
from sandlot.conformance.host import HOST_CHECKS, conform_host
from sandlot.conformance.runtime import RUNTIME_CHECKS, RUNTIME_DEVIATIONS
from sandlot.conformance.storage import conform_storage
from sandlot.conformance.tools import TOOL_CHECKS, conform_tools
from sandlot.contracts import Host, Storage
from sandlot.model import Capability


async def conform_whole(
    host: Host, runtime: str, storage: Storage, have: frozenset[Capability], only: frozenset[str] | None = None
) -> AsyncIterator[Outcome]:
    """`have`: what such sessions can do; `only`: the checks of these names. Each tells its suite."""

    def some(checks: tuple[Check[Stage], ...]) -> tuple[Check[Stage], ...]:
        return tuple(check for check in checks if only is None or check.name in only)

    deviations: Mapping[str, str] = RUNTIME_DEVIATIONS.get(runtime, {})
    if only is not None:
        deviations = {name: reason for name, reason in deviations.items() if name in only}
    files = tuple(check for check in FILE_CHECKS if only is None or check.name in only)
    suites = {
        "host": conform_host(host, runtime, storage.name, have, some(HOST_CHECKS)),
        "runtime": conform(host, runtime, some(RUNTIME_CHECKS), deviations, storage.name),
        "files": conform_files(host, runtime, storage.name, files),
        "tools": conform_tools(host, runtime, storage.name, have, some(TOOL_CHECKS)),
        "storage": conform_storage(host, runtime, storage, have, only),
    }
    for suite, outcomes in suites.items():
        async for outcome in outcomes:
            yield replace(outcome, check=f"{suite}: {outcome.check}")
