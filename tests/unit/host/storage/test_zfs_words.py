"""What both programs called `zfs` tell, read from texts of the forms that they document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.host.storage import zfs_words as words
from sandlot.host.storage.zfs_words import PoolState
from sandlot.model import (
    Conflict,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    Unavailable,
)

FUSE = """\
  pool: tank
 state: {state}
 scrub: none requested
config:

\tNAME                  STATE     READ WRITE CKSUM
\ttank                  {state}       0     0     0
\t  /var/lib/p.img      {state}       0     0     0

errors: No known data errors
"""
OPEN = """\
  pool: tank
 state: {state}
status: One or more devices has been removed by the administrator.
\tSufficient replicas exist for the pool to continue functioning in a
\tdegraded state.
action: Online the device using zpool online' or replace the device with
\t'zpool replace'.
  scan: resilvered 1.02M in 00:00:01 with 0 errors on Sun Nov 15 22:30:00 2026
config:

\tNAME        STATE     READ WRITE CKSUM
\ttank        {state}     0     0     0
\t  mirror-0  {state}     0     0     0
\t    sda     ONLINE       0     0     0
\t    sdb     REMOVED      0     0     0

errors: 3 data errors, use '-v' for a list
"""


@pytest.mark.parametrize("state", list(PoolState))
@pytest.mark.parametrize("text", [FUSE, OPEN])
def test_all_six_states_are_read(text: str, state: PoolState) -> None:
    told = words.read_status("tank", text.format(state=state.value))
    assert told.name == "tank"
    assert told.state is state


def test_scans_and_errors_are_read() -> None:
    assert words.read_status("tank", FUSE.format(state="ONLINE")).scan == "none requested"
    told = words.read_status("tank", OPEN.format(state="DEGRADED"))
    assert told.scan.startswith("resilvered 1.02M")
    assert told.errors == "3 data errors, use '-v' for a list"


@pytest.mark.parametrize("text", ["", "  pool: tank\n", " state: WELL\n"])
def test_a_state_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(Unavailable):
        words.read_status("tank", text)


def test_space_is_read_from_both() -> None:
    new = words.read_space("tank\t1000\t250\t750\t25\tONLINE\t7")
    assert (new.size, new.allocated, new.free, new.capacity, new.fragmentation) == (1000, 250, 750, 0.25, 0.07)
    old = words.read_space("tank\t7.94G\t556K\t7.94G\t0%\tDEGRADED")
    assert old.size == int(7.94 * (1 << 30))
    assert old.allocated == 556 << 10
    assert old.fragmentation == 0.0
    assert old.state is PoolState.DEGRADED
    gone = words.read_space("tank\t-\t-\t-\t-\tFAULTED")
    assert (gone.size, gone.capacity, gone.state) == (0, 0.0, PoolState.FAULTED)


@pytest.mark.parametrize("line", ["", "tank", "tank\tx\ty\tz\t0%\tONLINE", "tank\t1\t1\t0\t100%\tFINE"])
def test_space_that_is_none_is_an_error(line: str) -> None:
    with pytest.raises(Unavailable):
        words.read_space(line)


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        ("cannot open 'tank/a': dataset does not exist", NotFound),
        ("cannot open 'tank': no such pool", NotFound),
        ("cannot import 'tank': no such pool available", NotFound),
        ("cannot create 'tank/a': dataset already exists", Conflict),
        ("cannot destroy 'tank/a@s': dataset is busy", Conflict),
        ("cannot unmount '/x': Device busy", Conflict),
        ("cannot destroy 'tank/a': filesystem has dependent clones\nuse '-R' to destroy", Conflict),
        ("cannot create 'tank/a': permission denied", PermissionDenied),
        ("cannot create 'tank/a': out of space", LimitReached),
        ("cannot receive new filesystem stream: No space left on device", LimitReached),
        ("cannot open 'tank': I/O error", Unavailable),
        ("", Unavailable),
    ],
)
def test_complaints_become_typed_errors(complaint: str, kind: type[SandlotError]) -> None:
    error = words.classify("zfs create", 1, complaint)
    assert type(error) is kind
    assert error.message.startswith("zfs create: ")


GOOD = st.from_regex(r"\A[a-zA-Z0-9][a-zA-Z0-9_.\-:]{0,20}(/[a-zA-Z0-9][a-zA-Z0-9_\-:]{0,20}){0,4}\Z")


@given(GOOD)
def test_good_names_are_taken(name: str) -> None:
    if ".." not in name:
        assert words.check_dataset(name) == name


@given(st.text(max_size=40))
def test_a_name_that_is_taken_is_one_word_and_no_option(name: str) -> None:
    """Whatever else it is: it cannot become a flag, a second argument, a way up, a snapshot or a property."""
    try:
        words.check_dataset(name)
    except InvalidArgument:
        return
    assert name
    assert not name.startswith(("-", "/"))
    assert not name.endswith("/")
    assert ".." not in name
    assert "//" not in name
    assert not set(name) & set("@=%# \t\r\n\0'\"")
    assert name.isascii()


@given(st.text(max_size=40))
def test_the_same_holds_for_short_names(name: str) -> None:
    try:
        words.check_short("snapshot", name)
    except InvalidArgument:
        return
    assert "/" not in words.check_dataset(name)


@pytest.mark.parametrize("name", ["tank", "tank@", "@a", "tank@a@b", "tank@a/b", "tank@-r", "ta nk@a"])
def test_what_names_no_snapshot_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        words.check_snapshot(name)


@pytest.mark.parametrize(("key", "value"), [("exec", "on"), ("setuid", "on"), ("-o", "x"), ("a:b", "x\ny"), ("A", "")])
def test_properties_that_must_not_be_set_are_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidArgument):
        words.check_property(key, value)


@pytest.mark.parametrize("path", ["", "tmp", "/tmp/../etc", "/tmp/a\nb"])
def test_paths_that_are_not_plain_are_refused(path: str) -> None:
    with pytest.raises(InvalidArgument):
        words.check_path(path)
