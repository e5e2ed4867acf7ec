"""The file verbs of a fake host. Rights are not looked at: everyone may do everything."""

import io
import posixpath
import re
import tarfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sandlot.fakes.patterns import fits, fits_name
from sandlot.fakes.session import FakeSession
from sandlot.fakes.tree import Node, Tree, directory
from sandlot.model import (
    AttributesGet,
    AttributesSet,
    CapabilityNotSupported,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileConflict,
    FileCopy,
    FileEvent,
    FileFind,
    FileInfo,
    FileKind,
    FileLines,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileRequest,
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    InvalidArgument,
    Line,
    LinkMake,
    Match,
    SearchTally,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Usage,
)

_PIECE = 1 << 16
_BATCH = 256
_T = TypeVar("_T")


@dataclass(slots=True)
class _Content:
    info: FileInfo
    data: bytes

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for start in range(0, len(self.data), _PIECE):
            yield self.data[start : start + _PIECE]


@dataclass(slots=True)
class _Lines:
    info: FileInfo
    found: list[Line]
    total: int | None

    async def __aiter__(self) -> AsyncGenerator[Sequence[Line]]:
        async for batch in _batches(self.found):
            yield batch


@dataclass(slots=True)
class _Found(Generic[_T]):
    found: list[_T]
    tally: SearchTally

    async def __aiter__(self) -> AsyncGenerator[Sequence[_T]]:
        async for batch in _batches(self.found):
            yield batch


@dataclass(slots=True)
class _Archive:
    data: bytes
    tally: TreeTally = field(default_factory=TreeTally)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for start in range(0, len(self.data), _PIECE):
            yield self.data[start : start + _PIECE]


async def _batches(found: Sequence[_T]) -> AsyncGenerator[Sequence[_T]]:
    for start in range(0, len(found), _BATCH):
        yield found[start : start + _BATCH]


class FakeFiles:
    """All in one piece, before anything is told: what changes meanwhile is not seen."""

    def __init__(self, find: Callable[[str], FakeSession]) -> None:
        self._find = find

    def _tree(self, request: FileRequest) -> Tree:
        session = self._find(request.session_id)
        session.check_use()
        if request.user is not None:
            raise CapabilityNotSupported("the fake has no users", next_step="leave the user out, or use a real host")
        return session.tree

    def _at(self, request: FileRequest, *, follow: bool = True) -> tuple[Tree, str, Node]:
        tree = self._tree(request)
        return tree, *tree.find(request.path, follow=follow)

    def _file(self, request: FileRequest) -> tuple[Tree, str, Node]:
        tree, path, node = self._at(request)
        if node.kind is not FileKind.FILE:
            raise FileConflict(f"{path} is a {node.kind}", next_step="name a file", path=request.path)
        return tree, path, node

    def _info(self, request: FileRequest, path: str = "") -> FileInfo:
        tree = self._tree(request)
        return tree.info(*tree.find(path or request.path, follow=False))

    # ---- content -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read_file(self, request: FileRead) -> AsyncGenerator[_Content]:
        tree, path, node = self._file(request)
        end = None if request.length is None else request.offset + request.length
        yield _Content(tree.info(path, node), node.data[request.offset : end])

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        tree = self._tree(request)
        tree.behind(request.path, parents=request.parents)
        data = b"".join([piece async for piece in content])
        return self._info(request, tree.write(request.path, data, request.mode, parents=request.parents))

    async def append_file(self, request: FileAppend, content: AsyncIterable[bytes]) -> FileInfo:
        tree = self._tree(request)
        try:
            tree.read(request.path)
        except FileNotFound:
            tree.write(request.path, b"", request.mode, parents=request.parents)
        async for piece in content:
            tree.write(request.path, tree.read(request.path) + piece)
        return tree.info(*tree.find(request.path))

    @asynccontextmanager
    async def read_lines(self, request: FileLines) -> AsyncGenerator[_Lines]:
        tree, path, node = self._file(request)
        whole = node.data.split(b"\n")
        if not whole[-1]:
            whole.pop()  # behind the last newline there is no line
        last = None if request.count is None else request.first - 1 + request.count
        told = [
            Line(number, _text(line[: request.line_bytes]), is_cut=len(line) > request.line_bytes)
            for number, line in enumerate(whole[request.first - 1 : last], request.first)
        ]
        is_all = last is None or last >= len(whole)
        yield _Lines(tree.info(path, node), told, len(whole) if request.total or is_all else None)

    async def replace_in_file(self, request: FileReplace) -> int:
        tree, path, node = self._file(request)
        old, new = (text.encode(errors="surrogateescape") for text in (request.old, request.new))
        count = node.data.count(old)
        if count != 1 and not request.all:
            raise FileConflict(
                f"the text is there {count} times, and must be there once",
                next_step="give more of what stands around it, or ask for all",
                count=count,
            )
        if count:
            tree.write(path, node.data.replace(old, new))
        return count

    # ---- what is there -----------------------------------------------------------------------------------------

    async def stat_file(self, request: FileStat) -> FileInfo:
        tree, path, node = self._at(request, follow=request.follow)
        return tree.info(path, node)

    @asynccontextmanager
    async def list_files(self, request: FileList) -> AsyncGenerator[AsyncIterator[Sequence[FileInfo]]]:
        tree, path, node = self._at(request)
        if node.kind is not FileKind.DIRECTORY:
            raise FileConflict(f"{path} is no directory", path=request.path)
        found = [tree.info(*one) for one in tree.walk(path, request.depth)]
        key = request.after.split("/")
        found = [info for info in found if not request.after or info.path.split("/") > key]
        yield _batches(found[: request.limit])

    @asynccontextmanager
    async def find_files(self, request: FileFind) -> AsyncGenerator[_Found[FileInfo]]:
        tree, path, _node = self._at(request)
        seen = list(_seen(tree, path, request.hidden))
        all_of_it = [
            tree.info(whole, node)
            for whole, node in seen
            if (not request.kinds or node.kind in request.kinds)
            and fits(request.pattern, posixpath.relpath(whole, path), ignore_case=request.ignore_case)
        ]
        found = all_of_it[: request.limit]
        yield _Found(found, SearchTally(len(seen), len(found), is_cut=len(all_of_it) > len(found)))

    @asynccontextmanager
    async def search_files(self, request: FileSearch) -> AsyncGenerator[_Found[Match]]:
        tree, path, node = self._at(request)
        flags = re.IGNORECASE if request.ignore_case else 0
        try:
            wanted = re.compile(re.escape(request.pattern) if request.literal else request.pattern, flags)
        except re.error as error:
            raise InvalidArgument(f"{request.pattern!r} is no pattern: {error}") from error
        seen = [(path, node)] if node.kind is FileKind.FILE else list(_seen(tree, path, request.hidden))
        found: list[Match] = []
        for whole, one in seen:
            name = posixpath.relpath(whole, path) if whole != path else posixpath.basename(path)
            is_meant = not request.include or any(fits_name(pattern, name) for pattern in request.include)
            is_left_out = any(fits_name(pattern, name) for pattern in request.exclude)
            if one.kind is FileKind.FILE and b"\0" not in one.data[:8192] and is_meant and not is_left_out:
                found += _matches(wanted, whole, one, request.context)[: request.limit_per_file]
        told = found[: request.limit]
        yield _Found(told, SearchTally(len(seen), len(told), is_cut=len(found) > len(told)))

    @asynccontextmanager
    async def watch_files(self, request: FileWatch) -> AsyncGenerator[AsyncIterator[Sequence[FileEvent]]]:
        self._at(request)
        raise CapabilityNotSupported("the fake does not watch files", next_step="use a real host")
        yield  # unreachable: it makes this a generator

    async def measure_files(self, request: FileUsage) -> Usage:
        tree, path, node = self._at(request)
        nodes = [node, *(one for _path, one in tree.walk(path))] if node.kind is FileKind.DIRECTORY else [node]
        size = sum(len(one.data) for one in nodes)
        folders = sum(one.kind is FileKind.DIRECTORY for one in nodes)
        return Usage(size, size, len(nodes) - folders, folders)

    # ---- changing ----------------------------------------------------------------------------------------------

    async def make_directory(self, request: DirectoryMake) -> bool:
        tree = self._tree(request)
        whole, folder, name = tree.place(request.path, parents=request.parents)
        if name in folder.children:
            return tree.make_directories(whole)  # False, or a conflict
        folder.children[name] = directory(request.mode)
        return True

    async def make_link(self, request: LinkMake) -> FileInfo:
        whole, folder, name = self._tree(request).place(request.path, parents=request.parents)
        if name in folder.children:
            raise FileConflict(f"{whole} is there already", path=request.path)
        folder.children[name] = Node(FileKind.SYMLINK, 0o777, target=request.target)
        return self._info(request, whole)

    async def rename_file(self, request: FileRename) -> FileInfo:
        tree = self._tree(request)
        whole, folder, name = tree.place(request.path, parents=False)
        if name not in folder.children:
            raise FileNotFound(f"there is no {whole}", path=request.path)
        target, into, last = tree.place(request.to, parents=False)
        there = into.children.get(last)
        if f"{target}/".startswith(f"{whole}/") and target != whole:
            raise FileConflict(f"{target} is below {whole}", path=request.to)
        if there is not None and target != whole:
            is_full = there.kind is FileKind.DIRECTORY and (there.children or not folder.children[name].children)
            if not request.overwrite or is_full:
                raise FileConflict(f"{target} is there already", path=request.to)
        into.children[last] = folder.children.pop(name)
        return self._info(request, target)

    async def remove_file(self, request: FileRemove) -> None:
        self._tree(request).remove(request.path, recursive=request.recursive)

    async def copy_file(self, request: FileCopy) -> TreeTally:
        tree, path, node = self._at(request, follow=False)
        if node.kind is FileKind.DIRECTORY and not request.recursive:
            raise FileConflict(f"{path} is a directory", next_step="ask for all that is in it", path=request.path)
        target, into, last = tree.place(request.to)
        if f"{target}/".startswith(f"{path}/"):
            raise FileConflict(f"{target} is in {path}", path=request.to)
        tally = TreeTally()
        source = tree.copy().find(path, follow=False)[1]
        _put(source, into, last, tally, overwrite=request.overwrite)
        return tally

    async def change_file(self, request: FileChange) -> FileInfo:
        tree, path, node = self._at(request)
        for who in (request.owner, request.group):
            if who is not None and who not in ("root", "user") and not who.isdigit():
                raise InvalidArgument(f"the session has no {who}", next_step="name one that it has, or a number")
        below = [one for _path, one in tree.walk(path)] if request.recursive else []
        for one in (node, *below):
            one.mode = one.mode if request.mode is None or one.kind is FileKind.SYMLINK else request.mode
            one.owner, one.group = request.owner or one.owner, request.group or one.group
        return tree.info(path, node)

    async def get_attributes(self, request: AttributesGet) -> Mapping[str, bytes]:
        return dict(self._at(request)[2].attributes)

    async def set_attributes(self, request: AttributesSet) -> Mapping[str, bytes]:
        node = self._at(request)[2]
        kept = {} if request.replace else node.attributes
        merged = {**kept, **request.values}
        node.attributes = {name: value for name, value in merged.items() if value is not None}
        return dict(node.attributes)

    # ---- trees -------------------------------------------------------------------------------------------------

    async def upload_tree(self, request: TreeUpload, content: AsyncIterable[bytes]) -> TreeTally:
        tree = self._tree(request)
        data = b"".join([piece async for piece in content])
        tally = TreeTally()
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                members = archive.getmembers()
                for member in members:
                    _unpack(tree, request.path, archive, member, tally)
        except tarfile.TarError as error:
            raise InvalidArgument(f"this is no archive that can be unpacked: {error}") from error
        tree.make_directories(tree.place(f"{request.path}/.keep")[0].rpartition("/")[0])
        return tally

    @asynccontextmanager
    async def download_tree(self, request: TreeDownload) -> AsyncGenerator[_Archive]:
        tree, path, node = self._at(request)
        if node.kind is not FileKind.DIRECTORY:
            raise FileConflict(f"{path} is no directory", path=request.path)
        made, tally = io.BytesIO(), TreeTally()
        with tarfile.open(fileobj=made, mode="w") as archive:
            for whole, one in tree.walk(path):
                name = posixpath.relpath(whole, path)
                if not request.include or any(fits_name(pattern, name) for pattern in request.include):
                    _pack(archive, name, one, tally)
        yield _Archive(made.getvalue(), tally)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _seen(tree: Tree, path: str, hidden: bool) -> Iterable[tuple[str, Node]]:
    for whole, node in tree.walk(path):
        if hidden or not any(name.startswith(".") for name in posixpath.relpath(whole, path).split("/")):
            yield whole, node


def _matches(wanted: "re.Pattern[str]", path: str, node: Node, context: int) -> list[Match]:
    lines = _text(node.data).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [
        Match(path, at + 1, line, tuple(lines[max(0, at - context) : at]), tuple(lines[at + 1 : at + 1 + context]))
        for at, line in enumerate(lines)
        if wanted.search(line)
    ]


def _put(source: Node, into: Node, name: str, tally: TreeTally, *, overwrite: bool) -> None:
    there = into.children.get(name)
    if source.kind is FileKind.DIRECTORY:
        if there is None:
            there = into.children[name] = directory(source.mode)
        elif there.kind is not FileKind.DIRECTORY:
            raise FileConflict(f"{name} is there and is no directory")
        tally.directories += 1
        for child, node in source.children.items():
            _put(node, there, child, tally, overwrite=overwrite)
        return
    if there is not None and (not overwrite or there.kind is FileKind.DIRECTORY):
        raise FileConflict(f"{name} is there already")
    into.children[name] = source
    tally.links += source.kind is FileKind.SYMLINK
    tally.files += source.kind is FileKind.FILE
    tally.size_bytes += len(source.data)


def _pack(archive: tarfile.TarFile, name: str, node: Node, tally: TreeTally) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime, member.size = node.mode, node.modified, len(node.data)
    kinds = {FileKind.DIRECTORY: tarfile.DIRTYPE, FileKind.SYMLINK: tarfile.SYMTYPE}
    member.type = kinds.get(node.kind, tarfile.REGTYPE)
    member.linkname = node.target
    archive.addfile(member, io.BytesIO(node.data))
    tally.directories += node.kind is FileKind.DIRECTORY
    tally.links += node.kind is FileKind.SYMLINK
    tally.files += node.kind is FileKind.FILE
    tally.size_bytes += len(node.data)


def _unpack(tree: Tree, below: str, archive: tarfile.TarFile, member: tarfile.TarInfo, tally: TreeTally) -> None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise InvalidArgument(f"{member.name!r} leads out of the directory")
    path = f"{below}/{member.name}"
    if member.isdir():
        tree.make_directories(tree.place(f"{path}/.")[0])
        tally.directories += 1
    elif member.issym():
        _whole, folder, name = tree.place(path)
        folder.children[name] = Node(FileKind.SYMLINK, 0o777, target=member.linkname)
        tally.links += 1
    elif member.isreg():
        file = archive.extractfile(member)
        data = file.read() if file else b""
        whole, folder, name = tree.place(path)
        there = folder.children.get(name)
        if there is not None and there.kind is FileKind.SYMLINK:
            del folder.children[name]  # a link is replaced and not followed
        tree.write(whole, data, member.mode & 0o777)
        tally.files += 1
        tally.size_bytes += len(data)
    else:
        raise InvalidArgument(f"{member.name!r} is no file, directory or link")
