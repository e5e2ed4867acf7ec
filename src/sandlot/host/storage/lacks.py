"""What the volumes of a storage do not do that a plain filesystem does. Declared, and proven by tests that fail when
one of them is gone; a suite for storages reads them here."""

from collections.abc import Mapping

LOCAL_DISK: Mapping[str, str] = {
    "full-copies": "a snapshot, a rollback and a fork copy every file; no content, where the filesystem shares blocks",
    "living-processes": "processes that live stand still while a snapshot copies",
}

LAYERS: Mapping[str, str] = {
    "hard-links": "a hard link to a file of an earlier turn breaks when one of its names is written",
    "inode-numbers": "a file of an earlier turn that is written gets another inode number with the next turn",
    "mapped-readers": "who mapped a file of an earlier turn into memory does not see what is written to it afterwards",
    "first-write": "the first write to a file of an earlier turn copies the whole file",
    "living-processes": "a snapshot while processes live copies what was written since the last one without",
}

SHRINKING = "shrinking"

ZFS: Mapping[str, str] = {
    SHRINKING: "the limit of a volume can be raised, and not lowered",
}

COUNTS_HISTORY = "limit-counts-history"

BTRFS: Mapping[str, str] = {
    "template-links": "a hard link to a file of the template breaks when one of its names is written",
    COUNTS_HISTORY: "what a snapshot keeps counts towards the disk limit of its session",
}
