"""How states and points of btrfs are written down: `v-…:group`, the name of a subvolume and, of a state that counts in
one, the number of its quota group."""

import os

from sandlot.model import check_id


def subvolume_of(text: str) -> str:
    """Checked: the text comes from the journal, and becomes a path."""
    return check_id("volume", text.partition(":")[0])


def state_text(subvolume: str, group: int) -> str:
    return f"{subvolume}:{group:x}" if group else subvolume


def group_of(text: str) -> int:
    return int(text.partition(":")[2] or "0", 16)


def new_id(prefix: str) -> str:
    return prefix + os.urandom(8).hex()
