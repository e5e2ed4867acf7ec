"""Notes of names that are not in their place yet."""

from pathlib import Path

import pytest

from sandlot.host.asides import Asides, Note, hidden_name


def test_notes_are_given_back(tmp_path: Path) -> None:
    asides = Asides(tmp_path / "asides")
    asides.open()
    for _round in range(3000):
        asides.take(Note("s", "", "/" + "\n" * 4000, hidden_name()))()
    kept = [asides.take(Note("s", "", "/", hidden_name())) for _each in range(1024)]
    with pytest.raises(OSError, match="1024 files"):
        asides.take(Note("s", "", "/", hidden_name()))
    asides.close()
    for over in kept:
        over()  # of an engine that has closed: nothing happens
    asides.open()
    assert len(asides.left("s")) == 1024
    asides.settle("s")
    asides.close()
    asides.open()
    assert asides.sessions() == ()
    asides.close()
