"""Templates that were made here, on disk. A template is a directory that is called by its digest and never changes;
names point to them. What is half made, or half removed, is swept away by the next engine. Blocking."""

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sandlot.host import failpoints
from sandlot.host.kernel import sync_entry, sync_filesystem
from sandlot.host.removal import remove_tree
from sandlot.host.templates.metadata import Metadata
from sandlot.model import BUILTIN, TemplateNotFound, is_digest, split_name

ROOT = "root"
_RECORD = "template.json"
_NAMES = "names.json"
_PARTIAL, _REMOVED = ".partial-", ".removed-"
_TOUCH_EVERY_S = 1.0
_DIRECTORY = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kept:
    metadata: Metadata
    folder: Path

    @property
    def root(self) -> str:
        return str(self.folder / ROOT)

    @property
    def used(self) -> float:
        try:
            return (self.folder / _RECORD).stat().st_mtime
        except OSError:
            return self.metadata.created


class Library:
    """Used by one engine; its methods are called one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[str, Kept] = {}
        self._names: dict[str, str] = {}  # NAME:TAG to digest
        self._is_open = False

    def open(self) -> None:
        """Find what is there; remove what nobody finished. Raises OSError."""
        if self._is_open or not self.folder.is_dir():
            self._is_open = True
            return
        for entry in tuple(self.folder.iterdir()):
            if entry.name.startswith((_PARTIAL, _REMOVED)):
                remove_tree(entry)
            elif _DIRECTORY.fullmatch(entry.name):
                # One that cannot be read is left alone: sessions may stand on it.
                with suppress(OSError, ValueError, TypeError, KeyError):
                    told = Metadata.from_text((entry / _RECORD).read_text())
                    self._kept[told.digest] = Kept(told, entry)
        with suppress(OSError, ValueError):
            names = cast("dict[str, str]", json.loads((self.folder / _NAMES).read_text()))
            self._names = {name: digest for name, digest in names.items() if digest in self._kept}
        self._is_open = True

    # ---- finding -----------------------------------------------------------------------------------------------

    def all(self) -> list[Kept]:
        return sorted(self._kept.values(), key=lambda kept: kept.metadata.created)

    def names_of(self, digest: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, known in self._names.items() if known == digest))

    def find(self, text: str) -> Kept:
        """By name, or by the beginning of a digest. Raises TemplateNotFound."""
        if is_digest(text):
            found = [kept for digest, kept in self._kept.items() if digest.startswith(text)]
            if len(found) == 1:
                return found[0]
        elif (digest := self._names.get(":".join(split_name(text)))) is not None and digest in self._kept:
            return self._kept[digest]
        raise TemplateNotFound(
            f"there is no template {text}",
            next_step=f"`sandlot template ls` lists those that are there; {BUILTIN} always is",
            template=text,
        )

    def at(self, root: str) -> Kept | None:
        return next((kept for kept in self._kept.values() if kept.root == root), None)

    def touch(self, kept: Kept) -> None:
        """It is being used. A hint for whoever makes room, and not more: it is not synced."""
        with suppress(OSError):
            if time.time() - kept.used > _TOUCH_EVERY_S:
                os.utime(kept.folder / _RECORD)

    # ---- making ------------------------------------------------------------------------------------------------

    def begin(self) -> Path:
        """A new directory, with an empty root in it. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self.folder / f"{_PARTIAL}{secrets.token_hex(8)}"
        partial.mkdir(mode=0o700)
        (partial / ROOT).mkdir(mode=0o755)
        return partial

    def publish(self, partial: Path, told: Metadata, name: str) -> Kept:
        """Durable when it returns. What is there already under the same digest stays. Raises OSError."""
        kept = self._kept.get(told.digest)
        if kept is None:
            (partial / _RECORD).write_text(told.to_text())
            sync_filesystem(partial)
            failpoints.reach("template: synced")
            kept = Kept(told, self.folder / told.digest.removeprefix("sha256:"))
            partial.rename(kept.folder)
            sync_entry(self.folder)
            failpoints.reach("template: in place")
            self._kept[told.digest] = kept
        else:
            self.give_up(partial)
        if name:
            self.name(kept, name)
            failpoints.reach("template: named")
        return kept

    def give_up(self, partial: Path) -> None:
        with suppress(FileNotFoundError):
            remove_tree(partial)

    def name(self, kept: Kept, name: str) -> None:
        """Durable when it returns. Raises OSError."""
        self._write_names(self._names | {":".join(split_name(name)): kept.metadata.digest})

    def unname(self, name: str) -> None:
        self._write_names(
            {known: digest for known, digest in self._names.items() if known != ":".join(split_name(name))}
        )

    def _write_names(self, names: Mapping[str, str]) -> None:
        fresh = self.folder / f"{_PARTIAL}{_NAMES}"
        with fresh.open("w") as file:
            file.write(json.dumps(dict(sorted(names.items())), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self.folder / _NAMES)
        sync_entry(self.folder)
        self._names = dict(names)

    def hide(self, kept: Kept) -> None:
        """Nobody finds it any more, until it is removed or shown again."""
        self._kept.pop(kept.metadata.digest, None)

    def show(self, kept: Kept) -> None:
        self._kept[kept.metadata.digest] = kept

    def remove(self, kept: Kept) -> None:
        """Its names too. One that is hidden, and that nobody uses. Raises OSError."""
        gone = self.folder / f"{_REMOVED}{kept.folder.name}"
        kept.folder.rename(gone)
        failpoints.reach("template: set aside")
        self._write_names({name: digest for name, digest in self._names.items() if digest != kept.metadata.digest})
        remove_tree(gone)
