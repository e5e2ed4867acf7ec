"""The ids and names that session files carry on disk; `guest/src/root.h` has the same numbers."""

CANONICAL_ID = 1 << 28
RANGES_MAX = 28000
RANGE_IDS = 65536
WORKSPACE = "workspace"  # in what a session wrote


def first_id(id_range: int) -> int:
    """The host's number for user 0 of a session that has this range."""
    return CANONICAL_ID + RANGE_IDS * (id_range + 1)
