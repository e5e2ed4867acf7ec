"""The ids that session files carry on disk; `guest/src/root.h` has the same numbers."""

CANONICAL_ID = 1 << 28
RANGES_MAX = 28000
