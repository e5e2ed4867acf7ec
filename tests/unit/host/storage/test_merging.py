"""One merged layer shows what its layers showed: the kernel mounts both, and whole trees are compared."""

import os
import random
import shutil
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from sandlot.host.removal import remove_tree
from sandlot.host.storage.copying import copy_tree
from sandlot.host.storage.merging import Unmergeable, merge_layers
from tests.unit.host.storage.overlays import Session, Told, layer, session, view, walk

pytestmark = pytest.mark.root

SEEDS = int(os.environ.get("SANDLOT_MERGE_SEEDS", "12"))


def merged(layers: Sequence[Path], target: Path) -> Path:
    target.mkdir()
    for _step in merge_layers(layers, target):
        pass
    return target


def same(one: Told, other: Told) -> None:
    assert one.keys() == other.keys()
    assert {path: (one[path], other[path]) for path in one if one[path] != other[path]} == {}


@pytest.fixture
def place(tmp_path: Path) -> Generator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)


def base(place: Path) -> Path:
    """What a template is: it is never merged."""
    folder = place / "base"
    for path in ("keep/f", "keep/g", "dir/x", "dir/y/z", "dir/y/zz", "t/u/v/w/file", "a/b/c/g", "a/b/h", "lk1", "sole"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{path}\n" * 700)
    os.link(folder / "lk1", folder / "lk2")
    os.symlink("keep", folder / "link")
    return folder


def turn(place: Path, name: str, rows: list[Path], work: Callable[[str], None]) -> list[Path]:
    volume = layer(place / name)
    with session(volume, rows) as root:
        work(root)
    return [volume / "u", *rows]


def history(place: Path, rng: random.Random, turns: int) -> list[Path]:
    """Uppers, newest first, and the template last."""
    rows = [base(place)]
    for number in range(turns):
        times = rng.choice([1, 3, 8])
        rows = turn(place, f"l{number}", rows, lambda root, times=times: Session(root, rng).work(times))
    return rows


# Each line is a turn.
STORIES = {
    "removed, made, removed": (
        "rm keep/f",
        "write keep/f new",
        "rm keep/f",
        "write keep/f again; rm keep/g",
    ),
    "a folder removed and made": (
        "rm dir",
        "mkdir dir; write dir/n 1",
        "rm dir/n",
        "write dir/x new",
        "rm dir",
    ),
    "a folder that becomes a file": (
        "rm dir; write dir file",
        "rm dir; mkdir dir; write dir/k 1",
        "mkdir dir/y",
        "rm dir/k",
    ),
    "a folder moved": (
        "mv dir moved",
        "write moved/x 2",
        "mv moved keep/moved",
        "rm keep/moved/x",
        "mv keep/moved dir",
    ),
    "folders moved in folders": (
        "mv t/u t/u2",
        "mv t t2",
        "mv t2/u2 u3",
        "write u3/v/w/file 1",
        "mv u3/v vv",
        "mv vv/w t2/w",
    ),
    "a place taken again": (
        "mv dir d2",
        "mkdir dir; write dir/x mine",
        "mv dir d3; mv d2 dir",
        "rm dir/y/z",
        "mv d3/x dir/y/z",
    ),
    "modes of what is below": (
        "chmod sole 755",
        "mv sole sole2",
        "chmod sole2 700",
        "mv sole2 keep/sole3",
        "chmod keep 700",
    ),
    "modes of what is inside": (
        "write n long",
        "chmod n 755",
        "mv n keep/n",
        "chmod keep/n 700",
        "ln keep/n n2",
        "chmod n2 711",
    ),
    "links": (
        "chmod lk1 755",
        "ln lk1 lk3",
        "mv lk3 keep/lk3",
        "chmod lk2 711; ln lk2 dir/lk4",
        "mv dir dir2; chmod dir2/lk4 700",
    ),
    "links made inside": (
        "write n long; ln n n2; ln n dir/n3",
        "chmod n 755; ln n keep/n4",
        "mv keep kept",
        "write n2 x",
    ),
    "below a folder of its own": (
        "mkdir o; mkdir o/p; write o/p/f 1",
        "rm o/p/f",
        "mv dir o/p/dir",
        "write o/p/dir/x 1",
        "rm o/p/dir/y/z",
    ),
    "a file moved below a moved folder": (
        "mv a a2; chmod a2/b/h 700",
        "mv a2/b b2; mv b2/h b2/h2",
        "chmod b2/h2 755",
        "mv b2 a2/b3",
    ),
    "attributes": (
        "chmod dir 700",
        "attr dir user.a 1; chmod dir/y 711",
        "attr dir/y user.b 2; attr keep/f user.c 3",
        "chmod dir 755",
    ),
    "a folder replaced in one turn": (
        "write dir/n 1",
        "rm dir; mkdir dir; write dir/k 1",
        "rm dir/k; mkdir dir/y",
        "write dir/x 2",
    ),
    "moved into a new folder and out": (
        "mkdir o; mv dir o/dir",
        "mv o/dir away",
        "write away/x 1; rm away/y/z",
        "mv away keep/away",
    ),
    "one in the other's place": (
        "mkdir q; write q/f 1",
        "mv q dir/q; mv dir/y q",
        "write q/z 1; rm dir/q/f",
        "mv dir/q q/dir; mv q dir/q",
    ),
}


def tell(root: str, line: str) -> None:
    for words in (step.split() for step in line.split("; ")):
        paths = [f"{root}/{word}" for word in words[1:]]
        match words:
            case ["rm", _]:
                Session(root, random.Random()).clear(paths[0])
            case ["write", _, text]:
                Path(paths[0]).write_text(text * (2000 if text == "long" else 1))
            case ["mkdir", _]:
                os.mkdir(paths[0])
            case ["mv", _, _]:
                os.rename(*paths)
            case ["chmod", _, mode]:
                os.chmod(paths[0], int(mode, 8))
            case ["ln", _, _]:
                os.link(*paths)
            case ["attr", _, name, value]:
                os.setxattr(paths[0], name, value.encode())
            case _:
                raise AssertionError(words)


@pytest.mark.parametrize("story", STORIES)
def test_every_part_of_a_story(place: Path, story: str) -> None:
    rows = [base(place)]
    for number, line in enumerate(STORIES[story]):
        rows = turn(place, f"l{number}", rows, lambda root, line=line: tell(root, line))
    expected = view(rows)
    for first in range(len(rows) - 2):
        for last in range(first + 2, len(rows)):
            short = [*rows[:first], merged(rows[first:last], place / f"m{first}-{last}"), *rows[last:]]
            same(view(short), expected)


def raw(place: Path, name: str, *paths: str) -> Path:
    """A layer written by hand. What ends with a slash is a directory, what ends with `!` a whiteout."""
    root = place / name
    root.mkdir()
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (root / path).mkdir(exist_ok=True)
        elif path.endswith("!"):
            os.mknod(root / path[:-1], stat.S_IFCHR, 0)
        else:
            (root / path).write_text(path)
    return root


def test_a_whiteout_in_a_folder_that_nothing_else_has(place: Path) -> None:
    """It must not show, although the kernel has nothing to merge the folder with."""
    rows = [raw(place, "l1", "d/f!"), raw(place, "l0", "d/f", "d/g"), raw(place, "base", "other")]
    expected = view(rows)
    assert expected["/d"][7] == ["g"]
    same(view([merged(rows[:2], place / "m"), rows[2]]), expected)


def test_a_folder_over_a_file_over_a_folder(place: Path) -> None:
    rows = [raw(place, "l1", "n/k"), raw(place, "l0", "n"), raw(place, "base", "n/x")]
    expected = view(rows)
    assert expected["/n"][7] == ["k"]
    same(view([merged(rows[:2], place / "m"), rows[2]]), expected)


def test_whiteouts_that_are_attributes(place: Path) -> None:
    rows = [raw(place, "l1", "d/f", "d/k"), raw(place, "l0", "d/g"), raw(place, "base", "d/f", "d/h")]
    (rows[0] / "d" / "f").write_bytes(b"")
    os.setxattr(rows[0] / "d" / "f", "trusted.overlay.whiteout", b"")
    os.setxattr(rows[0] / "d", "trusted.overlay.opaque", b"x")
    expected = view(rows)
    assert expected["/d"][7] == ["g", "h", "k"]
    same(view([merged(rows[:2], place / "m"), rows[2]]), expected)


def test_a_file_whose_content_is_missing_is_not_merged(place: Path) -> None:
    rows = [raw(place, "l1", "f"), raw(place, "l0", "f!")]
    os.setxattr(rows[0] / "f", "trusted.overlay.metacopy", b"")
    with pytest.raises(Unmergeable):
        merged(rows, place / "m")


def test_a_file_with_as_many_names_as_it_can_have(place: Path) -> None:
    rows = [raw(place, "l1", "f"), raw(place, "l0", "g"), raw(place, "base", "h")]
    (place / "names").mkdir()
    os.link(rows[0] / "f", rows[0] / "f2")
    with suppress(OSError):
        for number in range(1 << 20):
            os.link(rows[0] / "f", place / "names" / str(number))
    with pytest.raises(OSError, match="Too many links"):
        os.link(rows[0] / "f", place / "one more")
    expected = view(rows)
    same(view([merged(rows[:2], place / "m"), rows[2]]), expected)


def test_a_tree_deeper_than_a_path_is_long(place: Path) -> None:
    rows = [raw(place, "l1", "top"), raw(place, "l0", "other")]
    name, depth = "n" * 200, 40
    for row in rows:
        at = os.open(row, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir(name, dir_fd=at)
            inner = os.open(name, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.close(os.open(row.name, os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.close(at)
    at = os.open(merged(rows, place / "m"), os.O_RDONLY)
    for _ in range(depth):
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    assert sorted(os.listdir(at)) == ["l0", "l1"]
    os.close(at)
    for folder in (*rows, place / "m"):
        remove_tree(folder)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_it_shows_what_its_layers_showed(place: Path, seed: int) -> None:
    """Somewhere in a row, over what is below and under what is above; and merged again with its neighbours."""
    rng = random.Random(f"merge {seed}")
    row = history(place, rng, 9)
    expected = view(row)
    for number in range(4):
        first = rng.randrange(len(row) - 2)
        last = rng.randrange(first + 2, len(row))
        row = [*row[:first], merged(row[first:last], place / f"m{number}"), *row[last:]]
        same(view(row), expected)
        if len(row) < 4:
            break


@pytest.mark.parametrize("seed", [24, 36, 131, *range(SEEDS // 2)])
def test_a_session_goes_on_over_it_as_over_its_layers(place: Path, seed: int) -> None:
    """What a session wrote over the layers is whole over the merged one, and what it does then does the same."""
    rng = random.Random(f"go on {seed}")
    row = history(place, rng, 6)
    short = [merged(row[:-1], place / "m"), row[-1]] if rng.random() < 0.5 else [merged(row[:4], place / "m"), *row[4:]]
    volume = layer(place / "open")
    with session(volume, row) as root:
        Session(root, random.Random(seed)).work(20)
    twin = place / "twin"
    layer(twin)
    copy_tree(volume / "u", twin / "u")
    told: list[Told] = []
    for upper, lower in ((volume, row), (twin, short)):
        with session(upper, lower) as root:
            before = walk(root)
            Session(root, random.Random(seed + 1)).work(20)
            told += [before, walk(root)]
    same(_without_times(told[0]), _without_times(told[2]))
    same(_without_times(told[1]), _without_times(told[3]))


def _without_times(told: Told) -> Told:
    return {path: (*one[:4], *one[5:-1]) for path, one in told.items()}
