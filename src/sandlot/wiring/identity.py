"""The keys of a data directory, for those who make them."""

from pathlib import Path

from sandlot.tenants.keys import KeyStore


def keys_of(data: Path) -> KeyStore:
    """A data directory that is not there has none."""
    return KeyStore(data)


__all__ = ["KeyStore", "keys_of"]
