"""One change as git writes it, so that `git apply` takes it. Pure."""

import base64
import difflib
import hashlib
import zlib
from dataclasses import dataclass

_LINE_BYTES = 52  # of a binary patch
_COMPARED_MAX = 25_000_000  # pairs of lines
_QUOTED = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\", ord("\r"): "\\r"}


@dataclass(frozen=True, slots=True)
class Side:
    mode: int
    content: bytes | None  # None: too large to be shown


def write_patch(path: str, old: Side | None, new: Side | None) -> str:
    """Empty where git sees no difference: directories, owners, special files."""
    if old == new:
        return ""
    # A file that becomes a link, or the other way round, goes and comes.
    if old and new and (old.mode ^ new.mode) & 0o170000:
        return write_patch(path, old, None) + write_patch(path, None, new)
    lines = [f"diff --git {_quoted('a/' + path)} {_quoted('b/' + path)}\n"]
    if old is None and new is not None:
        lines.append(f"new file mode {new.mode:o}\n")
    elif new is None and old is not None:
        lines.append(f"deleted file mode {old.mode:o}\n")
    elif old and new and old.mode != new.mode:
        lines += [f"old mode {old.mode:o}\n", f"new mode {new.mode:o}\n"]
    before, after = old.content if old else b"", new.content if new else b""
    if before is None or after is None:
        # git cannot apply this; whoever reads it sees why.
        return "".join([*lines, f"Binary files {_quoted('a/' + path)} and {_quoted('b/' + path)} differ\n"])
    if before != after:
        lines += _content(path, before, after, was_there=old is not None, is_there=new is not None)
    return "".join(lines)


def _content(path: str, before: bytes, after: bytes, *, was_there: bool, is_there: bool) -> list[str]:
    if _is_binary(before) or _is_binary(after):
        names = [_blob(content) if there else "0" * 40 for content, there in ((before, was_there), (after, is_there))]
        head = [f"index {names[0]}..{names[1]}\n", "GIT binary patch\n"]
        return [*head, *_literal(after), "\n", *_literal(before), "\n"]
    heads = [_label("a/" + path) if was_there else "/dev/null", _label("b/" + path) if is_there else "/dev/null"]
    body = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in _hunks(before, after)
    ]
    return [f"--- {heads[0]}\n", f"+++ {heads[1]}\n", *body]


def _hunks(before: bytes, after: bytes) -> list[str]:
    old, new = _lines(before), _lines(after)
    if len(old) * len(new) <= _COMPARED_MAX:
        return list(difflib.unified_diff(old, new, "", "", n=3, lineterm="\n"))[2:]
    # Finding out what two long texts have in common takes longer than anyone waits; this is right all the same.
    spans = [f"{min(1, len(lines))},{len(lines)}" for lines in (old, new)]
    return [f"@@ -{spans[0]} +{spans[1]} @@\n", *(f"-{line}" for line in old), *(f"+{line}" for line in new)]


def _lines(content: bytes) -> list[str]:
    """With their ends. Only a line feed ends one: that is what git thinks."""
    lines = [line + "\n" for line in content.decode("utf-8").split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _is_binary(content: bytes) -> bool:
    if b"\0" in content:
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return False


def _literal(content: bytes) -> list[str]:
    packed = zlib.compress(content)
    lines = [f"literal {len(content)}\n"]
    for at in range(0, len(packed), _LINE_BYTES):
        piece = packed[at : at + _LINE_BYTES]
        size = len(piece)
        letter = chr(ord("A") + size - 1) if size <= 26 else chr(ord("a") + size - 27)
        padded = piece + b"\0" * (-size % 4)
        lines.append(letter + base64.b85encode(padded).decode() + "\n")
    return lines


def _blob(content: bytes) -> str:
    """git's name for a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _label(path: str) -> str:
    """git ends a plain name at a tab, so one with blanks gets one behind it."""
    quoted = _quoted(path)
    return quoted + "\t" if " " in quoted and not quoted.startswith('"') else quoted


def _quoted(path: str) -> str:
    raw = path.encode("utf-8", "surrogateescape")
    if all(0x20 <= byte < 0x7F and byte not in (0x22, 0x5C) for byte in raw):
        return path
    text = "".join(_QUOTED.get(byte, chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw)
    return f'"{text}"'
