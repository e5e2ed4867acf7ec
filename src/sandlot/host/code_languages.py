"""What runs code of each language in a session, and how it is spoken to."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sandlot.model import BASH, JAVASCRIPT, PYTHON, is_variable_name

_KERNELS = Path(__file__).parent / "kernels"
MARK_FIRST = "\x1e"
MARK_HEX = 24
_MARK_CHARS = 1 + MARK_HEX

# Files of the session must not take the place of modules before user code could mean them to.
_PYTHON = f"""import sys
sys.path[:] = [p for p in sys.path if p]
import os
def r(n):
    b = b""
    while len(b) < n:
        p = os.read(0, n - len(b))
        if not p: os._exit(0)
        b += p
    return b
m = r({_MARK_CHARS}).decode()
s = r(int(r(8), 16))
c = r(int(r(8), 16)).decode()
exec(compile(s, "<sandlot>", "exec"), {{"__name__": "sandlot_kernel", "MARK": m, "CHARTS": c}})
"""
_NODE = f"""const read = (n) => {{
    const b = Buffer.alloc(n);
    for (let at = 0; at < n;) {{
        let got = 0;
        try {{
            got = require('fs').readSync(0, b, at, n - at);
        }} catch (e) {{
            if (e.code === 'EAGAIN') continue;
            throw e;
        }}
        if (!got) process.exit(0);
        at += got;
    }}
    return b.toString();
}};
const mark = read({_MARK_CHARS});
require('vm').runInThisContext(read(parseInt(read(8), 16)), {{ filename: 'sandlot' }}).call({{ require }}, mark);
"""


@dataclass(frozen=True, slots=True)
class Language:
    name: str
    argv: tuple[str, ...]
    program: str  # as an error calls it
    envs: Mapping[str, str] = field(default_factory=dict[str, str])


LANGUAGES: Mapping[str, Language] = {
    PYTHON: Language(PYTHON, ("python3", "-c", _PYTHON), "python3"),
    BASH: Language(BASH, ("bash", "--noprofile", "--norc", "--noediting", "-i"), "bash", {"PS1": "", "PS2": ""}),
    JAVASCRIPT: Language(JAVASCRIPT, ("node", "-e", _NODE), "node"),
}


@cache
def _text(name: str) -> bytes:
    return (_KERNELS / name).read_bytes()


def _sized(data: bytes) -> bytes:
    return b"%08x" % len(data) + data


def greeting(language: str, mark: str) -> bytes:
    """What a context hears first. Blocking the first time: it reads files of the package."""
    if language == PYTHON:
        return mark.encode() + _sized(_text("python_kernel.py")) + _sized(_text("python_charts.py"))
    if language == JAVASCRIPT:
        return mark.encode() + _sized(_text("javascript_kernel.js"))
    half = len(mark) // 2 + 1
    return f"__sandlot_a={mark[1:half]} __sandlot_b={mark[half:]}\n".encode() + _text("bash_kernel.sh")


def asking(language: str, number: int, code: str, envs: Mapping[str, str]) -> bytes:
    """A run, as its context hears it. The same request gives the same bytes: an engine that comes later goes on in the
    middle of them."""
    if language != BASH:
        return _sized(json.dumps({"n": number, "code": code, "envs": dict(envs)}).encode())
    words = [str(number)]
    for name, value in envs.items():
        if is_variable_name(name):
            words += [name, value]
    begin = " ".join(shlex.quote(word) for word in words)
    text = f"__sandlot_begin {begin} 2>/dev/null; eval {shlex.quote(code)} </dev/null\n"
    return (text + f"{{ __sandlot_end {number}; }} 2>/dev/null\n").encode(errors="surrogateescape")
