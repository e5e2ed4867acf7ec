"""What is held to which suites: a thing says by its verbs what it is."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandlot.conformance.checks import Check, Outcome
from sandlot.conformance.control import CONTROL_CHECKS, conform_control
from sandlot.conformance.environment import ENVIRONMENT_CHECKS, conform_environment
from sandlot.conformance.environment_tools import TOOLS_OF_ENVIRONMENTS, conform_environment_tools
from sandlot.conformance.host import HOST_CHECKS, conform_host
from sandlot.conformance.provisioner import PROVISIONER_CHECKS, conform_provisioner
from sandlot.model import InstanceConfig, InvalidArgument

_EVERY_TOOL = frozenset({"read_file", "edit_file", "list_dir", "glob", "grep", "bash"})


class Kind(StrEnum):
    HOST = "host"
    ENVIRONMENT = "environment"
    CONTROL = "control"
    PROVISIONER = "provisioner"


# Verbs that tell what a thing is; nothing else has all of them.
VERBS: Mapping[Kind, frozenset[str]] = {
    Kind.HOST: frozenset({"create", "call", "turn_complete", "list_files"}),
    Kind.ENVIRONMENT: frozenset({"create", "attach_session", "execute_tool"}),
    Kind.CONTROL: frozenset({"create_sandbox", "destroy_sandbox", "launch_process"}),
    Kind.PROVISIONER: frozenset({"launch", "terminate", "describe"}),
}
SUITES: Mapping[Kind, Sequence[Check[Any]]] = {
    Kind.HOST: HOST_CHECKS,
    Kind.ENVIRONMENT: (*ENVIRONMENT_CHECKS, *TOOLS_OF_ENVIRONMENTS),
    Kind.CONTROL: CONTROL_CHECKS,
    Kind.PROVISIONER: PROVISIONER_CHECKS,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Something that is held to its promises. `make` gives another object on one and the same provider each time; of a
    host, the host."""

    make: Callable[[], Any]
    deviations: Mapping[str, str] = field(default_factory=dict[str, str])  # by check, with their reasons
    config: InstanceConfig | None = None  # of a provisioner: what works there


def kind_of(found: object) -> Kind:
    """Raises InvalidArgument for what has the verbs of nothing."""
    for kind, verbs in VERBS.items():
        if all(callable(getattr(found, verb, None)) for verb in verbs):
            return kind
    wanted = "; ".join(f"{kind}: {', '.join(sorted(verbs))}" for kind, verbs in VERBS.items())
    raise InvalidArgument(
        f"{type(found).__name__} has the verbs of nothing that can be held to its promises",
        next_step=f"give what has these, among others: {wanted}",
    )


async def conform_target(target: Target, only: frozenset[str] = frozenset()) -> AsyncIterator[Outcome]:
    """Every check that there is for such a thing, or those of these names. Raises InvalidArgument for what has the
    verbs of nothing, and for a name or a deviation that no check has."""
    first = target.make()
    kind = kind_of(first)
    names = {check.name for check in SUITES[kind]}
    for name in (*only, *target.deviations):
        if name not in names:
            raise InvalidArgument(f"no check of a thing of the kind {kind} is called {name!r}", next_step="list them")

    def some(checks: Sequence[Check[Any]]) -> tuple[Sequence[Check[Any]], Mapping[str, str]]:
        chosen = [check for check in checks if not only or check.name in only]
        mine = {check.name for check in chosen}
        return chosen, {name: why for name, why in target.deviations.items() if name in mine}

    suites: list[AsyncIterator[Outcome]] = []
    match kind:
        case Kind.HOST:
            checks, deviations = some(HOST_CHECKS)
            suites.append(conform_host(first, checks=checks, deviations=deviations))
        case Kind.CONTROL:
            checks, deviations = some(CONTROL_CHECKS)
            suites.append(conform_control(target.make, checks, deviations))
        case Kind.PROVISIONER:
            if target.config is None:
                raise InvalidArgument(
                    "a provisioner is tried with a config that works there", next_step="name one CONFIG in your module"
                )
            checks, deviations = some(PROVISIONER_CHECKS)
            suites.append(conform_provisioner(target.make, target.config, checks, deviations))
        case Kind.ENVIRONMENT:
            checks, deviations = some(ENVIRONMENT_CHECKS)
            if checks:
                suites.append(conform_environment(target.make, checks, deviations))
            checks, deviations = some(TOOLS_OF_ENVIRONMENTS)
            if checks and {tool.name for tool in await first.tools()} >= _EVERY_TOOL:
                suites.append(conform_environment_tools(target.make, checks, deviations))
    for suite in suites:
        async for outcome in suite:
            yield outcome
