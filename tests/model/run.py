"""`python -m tests.model.run [--storage NAME] [--steps N]`: ask a real engine and its shadow the same, many times over.
An answer that was not foretold is told with the shortest way to it."""

import argparse
import sys
import time

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sandlot.host.templates.builtin import build, fingerprint
from tests import storages
from tests.model import machine

EXAMPLE_STEPS = 60
STEPS = {"zfs": 200}


def main() -> int:
    parser = argparse.ArgumentParser(prog="model", description=__doc__)
    parser.add_argument("--storage", choices=storages.NAMES, default="layers")
    parser.add_argument("--steps", type=int, help="(default: 2000; 200 on zfs, whose every step is a command)")
    parser.add_argument("--as-found", action="store_true", help="do not look for a shorter way to what went wrong")
    arguments = parser.parse_args()
    ready = storages.probe(arguments.storage)
    if not ready.ready:
        print(f"{arguments.storage} is not ready: {ready.reason}")
        return 1
    machine.HostAndShadow.storage = arguments.storage
    wanted = arguments.steps or STEPS.get(arguments.storage, 2000)
    machine.templates.mkdir(mode=0o700, parents=True, exist_ok=True)
    build(machine.templates / f"builtin-{fingerprint()}")
    began = time.monotonic()
    many = settings(
        max_examples=wanted // EXAMPLE_STEPS + 2,  # the first one is always dull
        stateful_step_count=EXAMPLE_STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,) if arguments.as_found else (Phase.generate, Phase.shrink),
        print_blob=False,
        suppress_health_check=machine.ANY_HEALTH,
    )
    while machine.steps.total() < wanted:
        run_state_machine_as_test(machine.HostAndShadow, settings=many)  # pyright: ignore[reportUnknownMemberType]
    print(f"{'operation':<20}steps")
    for name, count in sorted(machine.steps.items()):
        print(f"{name:<20}{count:>5}")
    print(f"\n{'foretold error':<20}times")
    for name, count in sorted(machine.errors.items()):
        print(f"{name:<20}{count:>5}")
    seconds = time.monotonic() - began
    print(f"\n{arguments.storage}: {machine.steps.total()} steps, {seconds:.0f} s; every answer and error was foretold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
