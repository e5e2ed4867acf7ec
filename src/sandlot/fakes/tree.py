"""Files in memory: what a session's filesystem is to its callers, without rights, devices or a kernel."""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from sandlot.model import FileConflict, FileInfo, FileKind, FileNotFound

WORKSPACE = "/workspace"
USER, UID = "user", 1000
_LINKS_MAX = 40


@dataclass(slots=True)
class Node:
    kind: FileKind
    mode: int
    data: bytes = b""
    target: str = ""
    modified: float = field(default_factory=time.time)
    owner: str = USER
    group: str = USER
    attributes: dict[str, bytes] = field(default_factory=dict[str, bytes])
    children: "dict[str, Node]" = field(default_factory=dict[str, "Node"])

    def same_as(self, other: "Node") -> bool:
        """To whoever compares two points."""
        mine = (self.kind, self.mode, self.data, self.target, self.attributes)
        return mine == (other.kind, other.mode, other.data, other.target, other.attributes)


def directory(mode: int = 0o755) -> Node:
    return Node(FileKind.DIRECTORY, mode)


class Tree:
    """Every path is looked up below one root: there is nothing that a link could lead out to."""

    def __init__(self) -> None:
        self.root = directory()
        for name in (WORKSPACE, "/tmp", "/home/user"):
            self.make_directories(name)

    def copy(self) -> "Tree":
        """Another tree of the same content; bytes are shared, because nobody changes them in place."""
        made = Tree.__new__(Tree)
        made.root = copy.deepcopy(self.root)
        return made

    # ---- looking -----------------------------------------------------------------------------------------------

    def find(self, path: str, *, follow: bool = True, cwd: str = WORKSPACE) -> tuple[str, Node]:
        """The absolute path without links above its last name, and what is there. Raises FileNotFound, FileConflict."""
        names, node, seen = list(self._names(path, cwd)), self.root, 0
        way: list[tuple[str, Node]] = []
        while names:
            name = names.pop(0)
            if name == "..":
                node = way.pop()[1] if way else self.root
                continue
            if node.kind is not FileKind.DIRECTORY:
                raise FileConflict(f"{_join(way)} is no directory", path=path)
            child = node.children.get(name)
            if child is None:
                raise FileNotFound(f"there is no {path}", path=path)
            if child.kind is FileKind.SYMLINK and (names or follow):
                seen += 1
                if seen > _LINKS_MAX:
                    raise FileConflict(f"too many links on the way to {path}", path=path)
                if child.target.startswith("/"):
                    node, way = self.root, []
                names = [*_split(child.target), *names]
                continue
            way.append((name, node))
            node = child
        return _join(way), node

    def place(self, path: str, *, parents: bool = True, cwd: str = WORKSPACE) -> tuple[str, Node, str]:
        """Where something of that name is, or would be: its absolute path, the directory, and its name there. A link in
        that place is not followed. Raises FileNotFound, FileConflict."""
        names = list(self._names(path, cwd))
        if not names or names[-1] == "..":
            found, _node = self.find(path, cwd=cwd)
            if found == "/":
                raise FileConflict("the root cannot be changed", path=path)
            names = list(_split(found))
        above = "/" + "/".join(names[:-1])
        if parents:
            self.make_directories(above)
        whole, node = self.find(above)
        if node.kind is not FileKind.DIRECTORY:
            raise FileConflict(f"{whole} is no directory", path=path)
        return f"{whole.rstrip('/')}/{names[-1]}", node, names[-1]

    def behind(self, path: str, *, parents: bool = True, cwd: str = WORKSPACE) -> tuple[str, Node, str]:
        """The same for content: a link in that place leads to where it is written."""
        for _ in range(_LINKS_MAX):
            whole, folder, name = self.place(path, parents=parents, cwd=cwd)
            node = folder.children.get(name)
            if node is None or node.kind is not FileKind.SYMLINK:
                return whole, folder, name
            path, cwd = node.target, whole.rpartition("/")[0] or "/"
        raise FileConflict(f"too many links on the way to {path}", path=path)

    def walk(self, path: str = "/", depth: int | None = None) -> Iterator[tuple[str, Node]]:
        """What is below a directory, by name, each directory before what is in it."""
        whole, node = self.find(path)
        yield from _walk(whole.rstrip("/"), node, depth)

    def info(self, path: str, node: Node) -> FileInfo:
        size = len(node.data) if node.kind is FileKind.FILE else len(node.target)
        uid, gid = (0 if who == "root" else int(who) if who.isdigit() else UID for who in (node.owner, node.group))
        about = (node.modified, node.target, node.owner, node.group, node.modified)
        return FileInfo(path, node.kind, size, node.mode, uid, gid, *about)

    # ---- changing ----------------------------------------------------------------------------------------------

    def make_directories(self, path: str) -> bool:
        """Whether the last one was made. Raises FileConflict."""
        node, made, walked = self.root, False, ""
        names = list(_split(path))
        while names:
            name = names.pop(0)
            walked = f"{walked}/{name}"
            child = node.children.get(name)
            made = child is None
            if child is None:
                child = node.children[name] = directory()
            elif child.kind is FileKind.SYMLINK:
                walked, child = self.find(walked)
            if child.kind is not FileKind.DIRECTORY:
                raise FileConflict(f"{walked} is no directory", path=path)
            node = child
        return made

    def write(
        self, path: str, data: bytes, mode: int | None = None, *, parents: bool = True, cwd: str = WORKSPACE
    ) -> str:
        """The absolute path of what was written. Raises FileConflict, FileNotFound."""
        whole, folder, name = self.behind(path, parents=parents, cwd=cwd)
        node = folder.children.get(name)
        if node is not None and node.kind is not FileKind.FILE:
            raise FileConflict(f"{whole} is a {node.kind}", path=path)
        if node is None:
            node = folder.children[name] = Node(FileKind.FILE, 0o644)
        node.data, node.modified = data, time.time()
        node.mode = node.mode if mode is None else mode
        return whole

    def read(self, path: str, *, cwd: str = WORKSPACE) -> bytes:
        whole, node = self.find(path, cwd=cwd)
        if node.kind is not FileKind.FILE:
            raise FileConflict(f"{whole} is a {node.kind}", path=path)
        return node.data

    def remove(self, path: str, *, recursive: bool = False, cwd: str = WORKSPACE) -> None:
        whole, folder, name = self.place(path, parents=False, cwd=cwd)
        node = folder.children.get(name)
        if node is None:
            raise FileNotFound(f"there is no {whole}", path=path)
        if node.children and not recursive:
            raise FileConflict(f"{whole} is a directory with something in it", path=path)
        del folder.children[name]

    def _names(self, path: str, cwd: str) -> Iterator[str]:
        return _split(path if path.startswith("/") else f"{cwd}/{path}")


def _split(path: str) -> Iterator[str]:
    return (name for name in path.split("/") if name not in ("", "."))


def _join(way: list[tuple[str, Node]]) -> str:
    return "/" + "/".join(name for name, _above in way)


def _walk(path: str, node: Node, depth: int | None) -> Iterator[tuple[str, Node]]:
    for name, child in sorted(node.children.items()):
        yield f"{path}/{name}", child
        if depth is None or depth > 1:
            yield from _walk(f"{path}/{name}", child, None if depth is None else depth - 1)
