"""`python -m tests.performance.bench`: measure what the documents promise, and what others need for the same work."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import uvloop

from sandlot.config.settings import load
from sandlot.host.kernel import sync_filesystem
from tests.performance.auditing import measure_auditing
from tests.performance.btrfs import measure_btrfs
from tests.performance.commands import measure_command, measure_parallel, measure_throughput
from tests.performance.density import measure_density, measure_idle
from tests.performance.diffs import measure_diffs
from tests.performance.engine import Bench
from tests.performance.files import measure_files
from tests.performance.gvisor import measure_gvisor
from tests.performance.neighbours import measure_neighbours
from tests.performance.opensandbox import measure_opensandbox
from tests.performance.pausing import measure_pausing
from tests.performance.peers import measure_peers
from tests.performance.picture import draw_file
from tests.performance.ports import measure_ports
from tests.performance.previews import measure_previews
from tests.performance.report import Report
from tests.performance.sdk import measure_sdk
from tests.performance.sessions import measure_burst, measure_create, measure_rate
from tests.performance.small_files import measure_small_files
from tests.performance.templates import measure_templates
from tests.performance.terminals import measure_metrics, measure_terminals
from tests.performance.transfers import measure_transfers
from tests.performance.turns import measure_turns
from tests.performance.wire import measure_wire
from tests.performance.zfs import measure_zfs

FOLDER = Path(__file__).parents[2] / "build" / "bench"
PEERS = "peers"
SECTIONS: Mapping[str, Callable[[Bench], Awaitable[None]]] = {
    "command": measure_command,
    "sdk": measure_sdk,
    "terminals": measure_terminals,
    "metrics": measure_metrics,
    "audit": measure_auditing,
    "turns": measure_turns,
    "btrfs": measure_btrfs,
    "zfs": measure_zfs,
    "pausing": measure_pausing,
    "diffs": measure_diffs,
    "files": measure_files,
    "small-files": measure_small_files,
    "create": measure_create,
    "parallel": measure_parallel,
    "throughput": measure_throughput,
    "burst": measure_burst,
    "rate": measure_rate,
    "density": measure_density,
    "idle": measure_idle,
    "neighbours": measure_neighbours,
    "gvisor": measure_gvisor,
    "templates": measure_templates,
    "transfers": measure_transfers,
    "wire": measure_wire,
    "opensandbox": measure_opensandbox,
    "previews": measure_previews,
    "ports": measure_ports,
}


def main() -> int:
    arguments = parse_arguments()
    if os.geteuid() != 0:
        print("bench: the isolating runtime needs root; run `sudo make bench`", file=sys.stderr)
        return 2
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A copy of our own: a rebuild meanwhile must not change what is measured.
    program = FOLDER / "sandlot-keeper"
    program.unlink(missing_ok=True)
    shutil.copy(load({"SANDLOT_DATA_DIR": str(FOLDER)}).keeper, program)
    report = Report(arguments.quick)
    bench = Bench(FOLDER, program, arguments.quick, report)
    chosen = [arguments.only] if arguments.only else [*SECTIONS, *([] if arguments.no_peers else [PEERS])]
    interrupted = False
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure_engine(bench, [name for name in chosen if name != PEERS]))
        if PEERS in chosen:
            measure_peers(bench)
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
        report.say("interrupted; what was measured so far:")
    finally:
        program.unlink(missing_ok=True)
    results = FOLDER / "results.json"
    picture = results.with_suffix(".svg")
    report.finish(results)
    draw_file(results, picture)
    report.say(f"drawn to {picture}")
    return 130 if interrupted else 1 if report.failures else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: minutes become seconds, numbers get rough")
    parser.add_argument("--only", choices=[*SECTIONS, PEERS], help="one section alone")
    parser.add_argument("--no-peers", action="store_true", help="leave out the programs of others")
    return parser.parse_args()


async def measure_engine(bench: Bench, names: list[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    # As Ctrl-C: every session is destroyed on the way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await bench.clear()
    try:
        for number, name in enumerate(names, 1):
            bench.report.say(f"[{number}/{len(names)}] {name}")
            # What the section before left to be written would be paid for by this one's first flush.
            await asyncio.to_thread(sync_filesystem, bench.folder)
            try:
                await SECTIONS[name](bench)
            except Exception as error:  # noqa: BLE001 - one broken section must not hide the others; it is reported
                bench.report.fail(name, error)
    finally:
        await bench.clear()


if __name__ == "__main__":
    sys.exit(main())
