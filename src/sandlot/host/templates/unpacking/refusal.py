"""Why an archive is not taken."""

from dataclasses import dataclass


class Refused(Exception):
    """The archive is broken, hostile or too large. The words are for whoever wanted it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one template may be made of."""

    bytes_max: int  # on disk
    entries_max: int
    ratio_max: int  # bytes out of a decompressor, for one that goes in
    depth_max: int
    free_min: int  # bytes that stay free on the disk


def shown(path: str) -> str:
    """A name of someone else, in a message."""
    text = path.encode("utf-8", "backslashreplace").decode()
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"
