"""The files of a workspace, in plain Python. `None` is a directory."""

from sandlot.model import FileConflict, FileNotFound

Tree = dict[str, str | None]

FILES = ("a", "b", "d/x", "e/x")
FOLDERS = ("d", "e")


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def write(tree: Tree, path: str, content: str) -> None:
    """Directories above are made."""
    if above := parent(path):
        tree[above] = None
    tree[path] = content


def remove(tree: Tree, path: str) -> None:
    """A directory with all that is in it. Raises FileNotFound."""
    if path not in tree:
        raise FileNotFound(path)
    for name in [name for name in tree if name == path or name.startswith(f"{path}/")]:
        del tree[name]


def rename(tree: Tree, path: str, to: str) -> None:
    """A file to a file, or a directory to one that is not there or is empty. Raises FileNotFound, FileConflict."""
    if path not in tree or (parent(to) and parent(to) not in tree):
        raise FileNotFound(path)
    if path == to:
        return
    if path in FOLDERS and any(name.startswith(f"{to}/") for name in tree):
        raise FileConflict(to)
    tree.pop(to, None)
    for name in [name for name in tree if name == path or name.startswith(f"{path}/")]:
        tree[to + name.removeprefix(path)] = tree.pop(name)


def differences(old: Tree, new: Tree) -> set[tuple[str, str]]:
    """What a diff tells of two trees."""
    found = {(name, "added") for name in new.keys() - old.keys()}
    found |= {(name, "removed") for name in old.keys() - new.keys()}
    found |= {(name, "changed") for name in old.keys() & new.keys() if old[name] != new[name]}
    return {(f"/workspace/{name}", kind) for name, kind in found}
