"""The certificate authorities of a template: those of the machine's packages, without the ones added locally."""

import os
import re
import stat
from pathlib import Path
from typing import Final

from sandlot.host.templates.tree import Tree

_CERTS: Final = "etc/ssl/certs"
_BUNDLE: Final = "ca-certificates.crt"
_JAVA_STORE: Final = "java/cacerts"
_PACKAGED: Final = "/usr/share/ca-certificates/"
_LOCAL: Final = "usr/local/share/ca-certificates"
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def take_certificates(machine: Path, tree: Tree) -> int:
    """Write /etc/ssl/certs; returns how many entries of the machine's were left out.

    Kept are links to the authorities of the ca-certificates package and the hash links to those. The bundle is made
    anew from them, so that what was added to the machine's bundle by any way does not come along.
    """
    source = machine / _CERTS
    tree.directory(_CERTS)
    tree.directory("etc/ssl/private", 0o700)
    if not source.is_dir():
        return 0
    links = {name: os.readlink(source / name) for name in sorted(os.listdir(source)) if (source / name).is_symlink()}
    authorities = {name: target for name, target in links.items() if target.startswith(_PACKAGED)}
    kept = authorities | {name: target for name, target in links.items() if target in authorities}
    for name, target in kept.items():
        tree.symlink(f"{_CERTS}/{name}", target)
    bundle = _joined(machine, authorities) if authorities else _without_local(machine, source / _BUNDLE)
    if bundle:
        tree.file(f"{_CERTS}/{_BUNDLE}", bundle)
    _take_java_store(source / _JAVA_STORE, tree)
    return len(os.listdir(source)) - len(os.listdir(tree.root / _CERTS))


def _joined(machine: Path, authorities: dict[str, str]) -> bytes:
    blocks: list[bytes] = []
    for target in authorities.values():
        file = machine / target.lstrip("/")
        if file.is_file():
            blocks.extend(_CERTIFICATE.findall(file.read_bytes()))
    return b"".join(block + b"\n" for block in blocks)


def _without_local(machine: Path, bundle: Path) -> bytes:
    """For a machine that has the bundle alone."""
    if not bundle.is_file():
        return b""
    local: set[bytes] = set()
    for file in (machine / _LOCAL).rglob("*.crt"):
        local.update(_CERTIFICATE.findall(file.read_bytes()))
    return b"".join(block + b"\n" for block in _CERTIFICATE.findall(bundle.read_bytes()) if block not in local)


def _take_java_store(store: Path, tree: Tree) -> None:
    """Java trusts nobody without its own store. Authorities added locally cannot be told apart in it, and stay."""
    if store.is_file() and store.stat().st_mode & stat.S_IROTH:
        tree.file(f"{_CERTS}/{_JAVA_STORE}", store.read_bytes())
