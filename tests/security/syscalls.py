"""Names and numbers of system calls on x86_64."""

import re
from pathlib import Path

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")

# What a header of Linux 6.1 does not know yet.
LATER = {
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
}


def numbers() -> dict[str, int]:
    """Every call by name; empty on a machine without the kernel's headers."""
    if not HEADER.exists():
        return {}
    found = re.findall(r"^#define __NR_(\w+) (\d+)$", HEADER.read_text(), re.MULTILINE)
    return LATER | {name: int(number) for name, number in found}
