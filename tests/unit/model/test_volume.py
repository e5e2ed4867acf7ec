"""Where a session may have a volume."""

import pytest

from sandlot.model import AllowedMount, InvalidArgument, LimitReached, Mount, SessionSpec, VolumeSpec


@pytest.mark.parametrize(
    "place",
    ["/", "//", "/proc", "/proc/sys", "/dev", "/dev/shm/x", "/sys/fs", "data", "", ".", "/a/../b", "/a/./b", "/a/",
     "/a//b", "/..", "../x", "/a\nb", "/a\0b", "/" + "x" * 5000],
)  # fmt: skip
def test_places_that_are_refused(place: str) -> None:
    with pytest.raises(InvalidArgument):
        Mount("cache", place)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a..b", "x" * 200, "a\n"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        VolumeSpec(name)
    with pytest.raises(InvalidArgument):
        Mount(name, "/data")


def test_places_in_each_other_are_refused() -> None:
    for first, second in (("/a", "/a"), ("/a", "/a/b"), ("/a/b/c", "/a/b")):
        with pytest.raises(InvalidArgument, match="lies in"):
            SessionSpec(mounts=(Mount("x", first), Mount("between", "/a-b"), Mount("y", second)))
    SessionSpec(mounts=(Mount("x", "/a"), Mount("y", "/a-b"), Mount("z", "/ab")))
    with pytest.raises(LimitReached):
        SessionSpec(mounts=tuple(Mount("x", f"/m{n}") for n in range(17)))


def test_what_an_operator_allows_is_absolute() -> None:
    with pytest.raises(InvalidArgument):
        AllowedMount("srv")
