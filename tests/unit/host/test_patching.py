"""Patches are what git takes: applied to the one side they give the other."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot.host.patching import Side, write_patch

contents = st.one_of(
    st.binary(max_size=200),
    st.text(alphabet="ab\n\r\t é", max_size=60).map(str.encode),
    st.lists(st.sampled_from([b"one\n", b"two\n", b"three\n", b"\n", b"end"]), max_size=30).map(b"".join),
)
files = st.builds(Side, st.sampled_from([0o100644, 0o100755]), contents)
targets = st.text(alphabet="abc/. é", min_size=1, max_size=20).map(str.encode)
sides = st.one_of(st.none(), files, st.builds(Side, st.just(0o120000), targets))
names = st.sampled_from(["a", "with blank", 'quo"te', "tab\there", "line\nfeed", "é", "back\\slash", "d/e/f", "\udcff"])


def put(folder: Path, name: str, side: Side | None) -> None:
    path = folder / name
    if side is None or side.content is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if side.mode == 0o120000:
        os.symlink(side.content, path)  # noqa: PTH211 - pathlib would tidy the target
        return
    path.write_bytes(side.content)
    path.chmod(side.mode & 0o777)


def look(folder: Path, name: str) -> Side | None:
    path = folder / name
    if path.is_symlink():
        return Side(0o120000, os.fsencode(os.readlink(path)))  # noqa: PTH115
    if not path.exists():
        return None
    return Side(0o100755 if path.stat().st_mode & 0o100 else 0o100644, path.read_bytes())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=names, old=sides, new=sides)
def test_git_applies_it(
    tmp_path_factory: pytest.TempPathFactory, name: str, old: Side | None, new: Side | None
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    put(folder, name, old)
    patch = write_patch(name, old, new)
    assert bool(patch) == (old != new)
    if patch:
        raw = patch.encode("utf-8", "surrogateescape")
        done = subprocess.run(["git", "apply", "-p1", "-"], cwd=folder, input=raw, capture_output=True, check=False)
        assert done.returncode == 0, (done.stderr, raw)
    assert look(folder, name) == new


def test_a_long_text_is_replaced_whole(tmp_path: Path) -> None:
    """Comparing it line by line would take minutes."""
    old, new = (b"".join(b"%d\n" % (n * step) for n in range(9000)) for step in (1, 3))
    put(tmp_path, "long", Side(0o100644, old))
    patch = write_patch("long", Side(0o100644, old), Side(0o100644, new))
    subprocess.run(["git", "apply", "-p1", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    assert (tmp_path / "long").read_bytes() == new


def test_what_is_too_large_is_told_of() -> None:
    patch = write_patch("big", Side(0o100644, None), Side(0o100644, b"x"))
    assert "Binary files a/big and b/big differ" in patch
