"""What `sandlot conform` prints."""

from pathlib import Path

from sandlot.cli.conform import _matrix_table  # pyright: ignore[reportPrivateUsage] - the table alone
from sandlot.cli.conform_target import HOST, RUNTIMES, STORAGES, known
from sandlot.config.settings import load
from sandlot.conformance import Outcome, Verdict
from sandlot.wiring.embedded import build


def test_the_matrix_has_a_cell_for_each_pair() -> None:
    passed, failed = (Outcome("check", "It holds.", verdict, 0.1) for verdict in (Verdict.PASSED, Verdict.FAILED))
    found = {
        ("zfs", "gvisor"): [passed, passed],
        ("zfs", "none"): [passed],
        ("local-disk", "gvisor"): [passed, failed],
        ("local-disk", "none"): [failed],
    }
    assert _matrix_table(found) == (
        ("STORAGE", "gvisor", "none"),
        [("zfs", "2 passed", "1 passed"), ("local-disk", "1 passed, 1 failed", "1 failed")],
    )


async def test_the_parts_of_the_engine_are_known_by_their_names_and_no_two_things_share_one(tmp_path: Path) -> None:
    host = build(load({"SANDLOT_DATA_DIR": str(tmp_path)}))
    await host.start()
    try:
        storages, runtimes = await host.probes()
    finally:
        await host.close()
    assert {probe.name for probe in storages} == set(STORAGES)
    assert {probe.name for probe in runtimes} == set(RUNTIMES)
    names = (*known(), HOST, *RUNTIMES, *STORAGES)
    assert len(set(names)) == len(names)
