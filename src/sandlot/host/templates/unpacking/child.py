"""The process that unpacks. It says what it does in lines of JSON on its output: first that it left its namespaces,
then how far it is, and last what it has made or why it refuses. Its input is one line: what to read, and its bounds."""

import io
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, cast

from sandlot.host.templates.unpacking import jail
from sandlot.host.templates.unpacking.finish import make_ready
from sandlot.host.templates.unpacking.image import Image, LayerPart, Part, open_image
from sandlot.host.templates.unpacking.layer import LOOK_EVERY_BYTES, TreeWriter, parts_of
from sandlot.host.templates.unpacking.refusal import Bounds, Refused, shown
from sandlot.host.templates.unpacking.streams import PIECE_BYTES, FileBytes, Inflated, compression
from sandlot.host.templates.unpacking.tar import Kind, TarReader

_MEMORY_BYTES = 1 << 30
_TELL_EVERY_S = 0.2
_INDEXED_MAX = 100_000
_WORDS_MAX = 256 << 10
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
PLATFORM = ("linux", _MACHINES.get(platform.machine(), platform.machine()))
_OF_IMAGES = ("blobs", "index.json", "oci-layout", "manifest.json", "repositories")


class Work:
    """One unpacking, in the jail."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._files: dict[str, int] = request["files"]
        self._reference: str = request["reference"]
        self._bounds = Bounds(**request["bounds"])
        self._read = 0
        self._told_at = 0.0
        self._writer = TreeWriter(os.open("/", os.O_RDONLY | os.O_DIRECTORY), self._bounds, self._tell)
        self._index: dict[str, Part] = {}
        self._links: dict[str, str] = {}

    def do(self) -> dict[str, Any]:
        archive = self._files.get("archive")
        if archive is None:
            return self._from_image(open_image(self._find_file, PLATFORM, self._reference))
        how = compression(archive)
        if not self._is_image(archive, how):
            diff_id = self._unpack(LayerPart(Part(archive), "", ""), is_layer=False, is_first=True)
            return self._finish({}, [diff_id], ())
        if how:
            archive = self._spool(archive, how)
        self._make_index(archive)
        return self._from_image(open_image(self._find_member, PLATFORM, self._reference))

    def _from_image(self, image: Image) -> dict[str, Any]:
        for at, layer in enumerate(image.layers):
            self._unpack(layer, is_layer=True, is_first=at == 0)
        config = image.config.get("config")
        kept = cast("dict[str, Any]", config) if isinstance(config, dict) else {}
        return self._finish(kept, [layer.diff_id for layer in image.layers], image.names)

    # ---- what there is to be read ------------------------------------------------------------------------------

    def _is_image(self, fd: int, how: str) -> bool:
        """Told by the first names: a root has other ones, whoever packed it."""
        reader = TarReader(self._open(Part(fd), how)[0])
        for seen, entry in enumerate(reader):
            top = (parts_of(entry.path) or [""])[0]
            if top in _OF_IMAGES or (len(top.removesuffix(".json")) == 64 and top[:64].isalnum()):
                return True
            if top or seen > 2:
                break
        return False

    def _open(self, part: Part, how: str) -> tuple[io.BufferedReader, FileBytes, Inflated | FileBytes]:
        stored = FileBytes(part.fd, part.offset, part.size, self._on_read)
        plain = Inflated(stored, how, self._bounds.ratio_max) if how else stored
        return io.BufferedReader(plain, PIECE_BYTES), stored, plain

    def _spool(self, fd: int, how: str) -> int:
        """An image is not read from front to back: one that is compressed as a whole is unpacked first."""
        out = os.open("/.spool", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink("/.spool")
        _buffered, _stored, plain = self._open(Part(fd), how)
        buffer, size = bytearray(PIECE_BYTES), 0
        while got := plain.readinto(buffer):
            if size % LOOK_EVERY_BYTES + got >= LOOK_EVERY_BYTES:
                self._writer.look_at_disk()
            size += got
            if size > self._bounds.bytes_max:
                raise Refused(f"it is larger than {self._bounds.bytes_max} bytes when it is unpacked")
            view = memoryview(buffer)[:got]
            while view:
                view = view[os.write(out, view) :]
        return out

    def _make_index(self, fd: int) -> None:
        """Where the members of an archive are, without reading them."""
        at, end = 0, os.fstat(fd).st_size
        while at < end:
            stored = FileBytes(fd, at, end - at)
            reader = TarReader(io.BufferedReader(stored, 4096))
            entry = next(iter(reader), None)
            if entry is None:
                return
            begins = at + reader.offset
            name = "/".join(parts_of(entry.path))
            if entry.kind is Kind.FILE:
                if begins + entry.size > end or entry.holes is not None:
                    raise Refused(f"{shown(entry.path)} is cut off")
                self._index[name] = Part(fd, begins, entry.size)
                at = begins + entry.size + -entry.size % 512
            else:
                if entry.kind is Kind.SYMLINK:  # older archives tell so that two layers are one
                    self._links[name] = os.path.normpath(os.path.join(os.path.dirname(name), entry.target))
                at = begins
            if len(self._index) + len(self._links) > _INDEXED_MAX:
                raise Refused(f"it has more than {_INDEXED_MAX} members")

    def _find_member(self, name: str) -> Part | None:
        name = os.path.normpath(name)
        return self._index.get(self._links.get(name, name))

    def _find_file(self, name: str) -> Part | None:
        fd = self._files.get(name)
        return None if fd is None else Part(fd)

    # ---- what is written ---------------------------------------------------------------------------------------

    def _unpack(self, layer: LayerPart, *, is_layer: bool, is_first: bool) -> str:
        how = compression(layer.part.fd, layer.part.offset)
        buffered, stored, plain = self._open(layer.part, how)
        reader = TarReader(buffered)
        self._writer.apply(reader, reader.pieces, is_layer=is_layer, is_first=is_first)
        diff_id = plain.digest()
        if layer.diff_id and layer.diff_id != diff_id:
            raise Refused(f"a layer is not what its digest says: {layer.diff_id} is {diff_id}")
        if layer.digest and layer.digest != stored.digest():
            raise Refused(f"a layer is not what its digest says: {layer.digest}")
        return diff_id

    def _finish(self, config: Mapping[str, Any], diff_ids: list[str], names: tuple[str, ...] | Any) -> dict[str, Any]:
        if not self._writer.entries:
            raise Refused("there is nothing in it")
        told = {key: config.get(key) for key in ("User", "WorkingDir", "Env", "Entrypoint", "Cmd", "Labels")}
        if len(json.dumps(told)) > _WORDS_MAX:
            raise Refused("it brings too many variables, labels and words")
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        cwd = told["WorkingDir"] if isinstance(told["WorkingDir"], str) else ""
        if ".." in cwd.split("/"):
            raise Refused(f"commands are to start in {shown(cwd)}, which leads out of the template")
        user = told["User"] if isinstance(told["User"], str) else ""
        told["User"] = make_ready(root, user, cwd)
        return {
            "config": told,
            "diff_ids": diff_ids,
            "names": list(names),
            "entries": self._writer.entries,
            "bytes": self._writer.bytes,
            "left_out": dict(self._writer.left_out),
        }

    def _on_read(self, count: int) -> None:
        self._read += count
        if self._told_at:
            self._tell(self._writer.entries, self._writer.bytes)

    def _tell(self, entries: int, size: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            say({"progress": {"entries": entries, "bytes": size, "read": self._read}})


def say(document: Mapping[str, Any]) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


def _work(request: Mapping[str, Any]) -> int:
    os.umask(0)  # files are made with their modes
    jail.stand_on(request["tree"])
    os.close(request["tree"])
    jail.limit(_MEMORY_BYTES, request["bounds"]["bytes_max"])
    jail.drop_rights()
    jail.install_filter()
    try:
        say({"done": Work(request).do()})
    except Refused as refused:
        say({"refused": str(refused)})
    except MemoryError:
        say({"refused": "it needs more memory than unpacking may use"})
    except OSError as error:
        say({"refused": f"it cannot be unpacked: {error.strerror or error}"})
    return 0


def main() -> int:
    parent = int(sys.argv[1])
    jail.leave_namespaces()
    say({"state": "unshared"})
    request = json.loads(sys.stdin.buffer.readline())
    jail.become_root_inside()
    jail.die_with_parent()
    if os.getppid() != parent:
        return 1  # it is gone already
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    first = os.fork()  # the first process of its namespace
    if first == 0:
        try:
            jail.die_with_parent()
            code = _work(request)
        except BaseException:  # noqa: BLE001 - the end of the process: whoever started it reads this
            traceback.print_exc()
            code = 1
        os._exit(code)
    _pid, status = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(status) & 0x7F


if __name__ == "__main__":
    sys.exit(main())
