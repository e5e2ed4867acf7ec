"""What a sandbox is asked to be, from the words of callers."""

from collections.abc import Mapping

from sandlot.model import InvalidArgument, Mount, OnExpiry


def mounts_of(volumes: Mapping[str, str] | None) -> tuple[Mount, ...]:
    """A directory of the machine can only be read, unless `:rw` is asked for."""
    mounts: list[Mount] = []
    for target, source in (volumes or {}).items():
        name, _, mode = source.rpartition(":") if source.endswith((":ro", ":rw")) else (source, "", "")
        mounts.append(Mount(name, target, mode == "ro" or (mode == "" and name.startswith("/"))))
    return tuple(mounts)


def on_expiry_of(text: str) -> OnExpiry:
    try:
        return OnExpiry(text)
    except ValueError:
        raise InvalidArgument(f"on_expiry must be one of {', '.join(OnExpiry)}, not {text!r}") from None
