"""The programs of a fake session. Each does a plain part of what it is named for; options that it does not know end
it with the exit code 2 and a word about it."""

import asyncio
from collections.abc import Mapping

from sandlot.fakes.calls import Program, Running
from sandlot.model import FileKind, FileNotFound

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}


async def _true(running: Running) -> int:
    del running
    return 0


async def _false(running: Running) -> int:
    del running
    return 1


async def _echo(running: Running) -> int:
    words = running.argv[1:]
    bare = bool(words) and words[0] == "-n"
    await running.out(" ".join(words[bare:]) + "\n" * (not bare))
    return 0


async def _printf(running: Running) -> int:
    text, *words = running.argv[1:] or ("",)
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    parts = text.split("%s")
    if "%" in "".join(parts):
        return await _unknown(running, text)
    while True:
        made = parts[0]
        for part in parts[1:]:
            made += (words.pop(0) if words else "") + part
        await running.out(made)
        if not words or len(parts) == 1:
            return 0


async def _cat(running: Running) -> int:
    code = 0
    for name in running.argv[1:] or ("-",):
        if name != "-":
            try:
                data = running.tree.read(name, cwd=running.cwd)
            except OSError as error:  # FileNotFound and FileConflict
                code = 1
                await running.err(f"cat: {name}: {error}\n")
                continue
            await _print(running, data)
            continue
        while data := await running.read():
            await _print(running, data)
    return code


async def _print(running: Running, data: bytes) -> None:
    for start in range(0, len(data), 65536):
        await running.out(data[start : start + 65536].decode(errors="surrogateescape"))


async def _tee(running: Running) -> int:
    words = list(running.argv[1:])
    append = "-a" in words
    names = [word for word in words if word != "-a"]
    data = await running.read_all()
    for name in names:
        kept = b""
        if append:
            try:
                kept = running.tree.read(name, cwd=running.cwd)
            except FileNotFound:
                kept = b""
        running.tree.write(name, kept + data, parents=False, cwd=running.cwd)
    await _print(running, data)
    return 0


async def _sleep(running: Running) -> int:
    await asyncio.sleep(sum(float(word) for word in running.argv[1:]))
    return 0


async def _seq(running: Running) -> int:
    last = int(running.argv[1])
    for first in range(1, last + 1, 5000):
        await running.out("".join(f"{number}\n" for number in range(first, min(first + 5000, last + 1))))
    return 0


async def _test(running: Running) -> int:
    words = list(running.argv[1:])
    if running.argv[0] == "[" and (not words or words.pop() != "]"):
        return await _unknown(running, "a missing ]")
    match words:
        case [("-e" | "-f" | "-d" | "-L" | "-s") as what, path]:
            try:
                _whole, node = running.tree.find(path, follow=what != "-L", cwd=running.cwd)
            except OSError:
                return 1
            kinds = {"-f": FileKind.FILE, "-d": FileKind.DIRECTORY, "-L": FileKind.SYMLINK}
            is_so = bool(node.data) if what == "-s" else node.kind is kinds.get(what, node.kind)
        case ["-n", text]:
            is_so = bool(text)
        case ["-z", text]:
            is_so = not text
        case [left, ("=" | "!=") as how, right]:
            is_so = (left == right) == (how == "=")
        case [text]:
            is_so = bool(text)
        case []:
            is_so = False
        case _:
            return await _unknown(running, " ".join(words))
    return int(not is_so)


async def _mkdir(running: Running) -> int:
    options, names = _options(running)
    if options - {"p"}:
        return await _unknown(running, f"-{''.join(options)}")
    for name in names:
        whole, folder, last = running.tree.place(name, parents="p" in options, cwd=running.cwd)
        if last in folder.children and "p" not in options:
            await running.err(f"mkdir: {name}: there is something of that name\n")
            return 1
        running.tree.make_directories(whole)
    return 0


async def _rm(running: Running) -> int:
    options, names = _options(running)
    if options - {"r", "f", "R"}:
        return await _unknown(running, f"-{''.join(options)}")
    code = 0
    for name in names:
        try:
            _whole, folder, last = running.tree.place(name, parents=False, cwd=running.cwd)
            node = folder.children[last]
            if node.kind is FileKind.DIRECTORY and not options & {"r", "R"}:
                code = 1
                await running.err(f"rm: {name} is a directory\n")
                continue
            del folder.children[last]
        except (FileNotFound, KeyError):
            if "f" not in options:
                code = 1
                await running.err(f"rm: there is no {name}\n")
    return code


async def _mv(running: Running) -> int:
    if len(running.argv) != 3 or running.argv[1].startswith("-"):
        return await _unknown(running, " ".join(running.argv[1:]))
    source, target = running.argv[1:]
    _whole, folder, name = running.tree.place(source, parents=False, cwd=running.cwd)
    if name not in folder.children:
        raise FileNotFound(f"there is no {source}", path=source)
    _place, into, last = running.tree.place(target, parents=False, cwd=running.cwd)
    there = into.children.get(last)
    if there is not None and there.kind is FileKind.DIRECTORY:
        into, last = there, name
    into.children[last] = folder.children.pop(name)
    return 0


async def _cp(running: Running) -> int:
    if len(running.argv) != 3 or running.argv[1].startswith("-"):
        return await _unknown(running, " ".join(running.argv[1:]))
    data = running.tree.read(running.argv[1], cwd=running.cwd)
    running.tree.write(running.argv[2], data, parents=False, cwd=running.cwd)
    return 0


async def _ls(running: Running) -> int:
    options, names = _options(running)
    if options - {"1", "a", "A"}:
        return await _unknown(running, f"-{''.join(options)}")
    for name in names or ["."]:
        _whole, node = running.tree.find(name, cwd=running.cwd)
        found = sorted(node.children) if node.kind is FileKind.DIRECTORY else [name]
        await running.out("".join(f"{one}\n" for one in found if options or not one.startswith(".")))
    return 0


async def _touch(running: Running) -> int:
    for name in running.argv[1:]:
        try:
            data = running.tree.read(name, cwd=running.cwd)
        except FileNotFound:
            data = b""
        running.tree.write(name, data, parents=False, cwd=running.cwd)
    return 0


async def _pwd(running: Running) -> int:
    await running.out(f"{running.cwd}\n")
    return 0


async def _env(running: Running) -> int:
    if len(running.argv) > 1:
        return await _unknown(running, " ".join(running.argv[1:]))
    await running.out("".join(f"{name}={value}\n" for name, value in sorted(running.envs.items())))
    return 0


async def _stty(running: Running) -> int:
    if running.argv[1:] != ("size",):
        return await _unknown(running, " ".join(running.argv[1:]))
    if running.size is None:
        await running.err("stty: this is no terminal\n")
        return 1
    size = running.size()
    await running.out(f"{size.rows} {size.columns}\n")
    return 0


async def _wc(running: Running) -> int:
    options, names = _options(running)
    data = running.tree.read(names[0], cwd=running.cwd) if names else await running.read_all()
    counts = {"c": len(data), "l": data.count(b"\n"), "w": len(data.split())}
    if len(options) != 1 or not options <= counts.keys() or len(names) > 1:
        return await _unknown(running, " ".join(running.argv[1:]))
    await running.out(f"{counts[options.pop()]}\n")
    return 0


def _options(running: Running) -> tuple[set[str], list[str]]:
    words = running.argv[1:]
    options = {letter for word in words if word.startswith("-") and word != "-" for letter in word[1:]}
    return options, [word for word in words if not word.startswith("-")]


async def _unknown(running: Running, what: str) -> int:
    await running.err(f"{running.argv[0]}: the fake does not know {what}\n")
    return 2


PROGRAMS: Mapping[str, Program] = {
    "true": _true,
    "false": _false,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "tee": _tee,
    "sleep": _sleep,
    "seq": _seq,
    "test": _test,
    "[": _test,
    "mkdir": _mkdir,
    "rm": _rm,
    "mv": _mv,
    "cp": _cp,
    "ls": _ls,
    "touch": _touch,
    "pwd": _pwd,
    "env": _env,
    "stty": _stty,
    "wc": _wc,
}
