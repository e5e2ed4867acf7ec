"""What `sandlot conform` prints."""

from sandlot.cli.conform import _matrix_table  # pyright: ignore[reportPrivateUsage] - the table alone
from sandlot.conformance import Outcome, Verdict


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
