"""The program of a Python context. It runs in the session, under whatever Python is there from 3.8 on, with the
standard library alone. What it tells the engine stands among what user code prints, each piece behind a mark that only
the two of them know, and small enough that the kernel never tears it: `sandlot.host.code_frames` reads it."""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import json
import linecache
import os
import re
import select
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

_PIECE = 4000  # of a frame: with its mark it is less than what a pipe takes whole
_PLAIN_CHARS = 1 << 20
_VALUE_BYTES = 15 << 20
_TABLE_BYTES = 4 << 20
_TEXT_CHARS = 200_000
_CHART = "application/vnd.sandlot.chart+json"
_TABLE = "application/vnd.sandlot.table+json"
_MAGIC = re.compile(r"^(\s*)([!%])(.*)$")
_FORMS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


class Line:
    """To the engine. Signals wait while something is said, or half of it would be."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._out = os.dup(1)  # user code may close its own
        self._err = os.dup(2)
        self._in = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._talking = 0
        self.armed = False
        self._pending = False
        self.count = 0

    @property
    def is_own(self) -> bool:
        return os.getpid() == self._pid

    def on_interrupt(self, _number: int, _frame: Any) -> None:
        if self.armed and self._talking and threading.current_thread() is threading.main_thread():
            self._pending = True
        elif self.armed:
            raise KeyboardInterrupt

    def say(self, kind: str, value: dict[str, Any]) -> None:
        if not self.is_own:
            return
        value["n"] = self.count
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        with self._lock:
            self._talking += 1
            try:
                for at in range(0, len(data), _PIECE):
                    is_last = at + _PIECE >= len(data)
                    flag = (b"." if is_last else b"<") if at == 0 else (b">" if is_last else b"=")
                    piece = data[at : at + _PIECE]
                    self._write(self._out, self._mark + kind.encode() + flag + b"%04d" % len(piece) + piece)
            finally:
                self._talking -= 1
        if self._pending and not self._talking:
            self._pending = False
            if self.armed:
                raise KeyboardInterrupt

    def end(self, status: str) -> None:
        self.armed = self._pending = False
        self.say("X", {"status": status})
        number = str(self.count).encode()
        self._write(self._err, self._mark + b"Z." + b"%04d" % len(number) + number)

    def _write(self, fd: int, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:  # user code made it so
                select.select([], [fd], [], 1.0)

    def hear(self) -> dict[str, Any] | None:
        head = self._read(8)
        return json.loads(self._read(int(head, 16))) if len(head) == 8 else None

    def _read(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            piece = os.read(self._in, min(count, 1 << 20))
            if not piece:
                return b""
            parts.append(piece)
            count -= len(piece)
        return b"".join(parts)


class Shown:
    """Data with its media type, as `IPython.display` has them for code that is written for it."""

    def __init__(self, forms: dict[str, Any]) -> None:
        self._forms = forms

    def _repr_mimebundle_(self, **_how: Any) -> dict[str, Any]:
        return self._forms

    def __repr__(self) -> str:
        return "<%s>" % ", ".join(map(str, self._forms))


def is_kind(value: Any, kind: Any) -> bool:
    return isinstance(value, kind)


def first_of(value: Any) -> Any:
    return value[0] if is_kind(value, tuple) and len(value) else value


def text_of(media: str, value: Any) -> str | None:
    """As it travels: text as it is, JSON as its text, anything else in base64."""
    value = first_of(value)
    if value is None:
        return None
    if media == "application/json" or media.endswith("+json"):
        return value if isinstance(value, str) else json.dumps(value, default=str)
    if isinstance(value, (bytes, bytearray)):
        if media.startswith("text/") or media in ("image/svg+xml", "application/javascript"):
            return bytes(value).decode("utf-8", "replace")
        return base64.b64encode(value).decode()
    return str(value)


class Display:
    def __init__(self, line: Line, charts: str) -> None:
        self._line = line
        self._charts_source = charts
        self._charts: dict[str, Any] | None = None
        self._main: Any = None

    def forms(self, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        if not isinstance(value, type):
            self._add_bundle(value, found)
            for name, media in _FORMS:
                if media not in found:
                    self._add(found, media, self._ask(value, name))
            kind: Any = value.__class__
            if kind.__name__ == "DataFrame" and hasattr(value, "to_dict"):
                self._add_table(value, found)
            if kind.__module__.startswith("matplotlib.figure") and hasattr(value, "savefig"):
                self._add_figure(value, found)
        if "text/plain" not in found:
            try:
                plain = repr(value)
            except Exception as error:  # whatever code of others raises
                plain = "<%s whose repr fails: %s>" % (type(value).__name__, error)
            found["text/plain"] = plain if len(plain) <= _PLAIN_CHARS else plain[:_PLAIN_CHARS] + "…"
        return found

    def _ask(self, value: Any, name: str, *given: Any) -> Any:
        try:
            method = getattr(value, name, None)
            # What answers to every name, answers to this one, too.
            if not callable(method) or callable(getattr(value, "_sandlot_no_such_name_", None)):
                return None
            return method(*given)
        except Exception:  # whatever code of others raises
            return None  # as if it had no such form

    def _add(self, found: dict[str, str], media: str, value: Any) -> None:
        try:
            text = text_of(media, value)
        except (TypeError, ValueError):
            return
        if text is not None:
            found[media] = text

    def _add_bundle(self, value: Any, found: dict[str, str]) -> None:
        bundle: Any = first_of(self._ask(value, "_repr_mimebundle_"))
        if is_kind(bundle, dict):
            for media, data in bundle.items():
                self._add(found, str(media), data)

    def _add_table(self, value: Any, found: dict[str, str]) -> None:
        try:
            table = json.dumps(value.to_dict(orient="list"), default=str)
        except Exception:  # whatever code of others raises
            return
        if len(table) <= _TABLE_BYTES:
            found[_TABLE] = table

    def _add_figure(self, figure: Any, found: dict[str, str]) -> None:
        import io

        try:
            image = io.BytesIO()
            figure.savefig(image, format="png", bbox_inches="tight")
            found["image/png"] = base64.b64encode(image.getvalue()).decode()
            if self._charts is None:
                self._charts = {"__name__": "sandlot_charts"}
                exec(compile(self._charts_source, "<sandlot>", "exec"), self._charts)
            chart = self._charts["chart_of"](figure)
            if chart is not None:
                found[_CHART] = json.dumps(chart, default=str)
        except Exception as error:  # whatever code of others raises
            found["text/plain"] = "%r: it cannot be drawn: %s" % (figure, error)

    def tell(self, value: Any, *, is_main: bool = False) -> None:
        found, dropped = self.forms(value), False
        self._main = value if is_main else self._main
        while sum(map(len, found.values())) > _VALUE_BYTES and found:
            found.pop(max(found, key=lambda media: len(found[media])))
            dropped = True
        self._line.say("V", {"data": found, "main": is_main, "dropped": dropped})

    def show(self, *values: Any, **how: Any) -> None:
        """What `display` is in user code."""
        for value in values:
            if not self._line.is_own:
                print(repr(value))
            else:
                self.tell(Shown(value) if how.get("raw") and is_kind(value, dict) else value)

    def figures(self) -> None:
        """What was drawn and not shown."""
        plot: Any = sys.modules.get("matplotlib.pyplot")
        if plot is None:
            return
        for figure in map(plot.figure, plot.get_fignums()):
            if figure is not self._main:  # that was told
                self.tell(figure)
        self._main = plot.close("all")


class Patches(importlib.abc.MetaPathFinder):
    """Changes a few modules when user code imports them."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._changes: dict[str, Callable[[Any], None]] = {
            "matplotlib.pyplot": self._change_plot,
            "IPython.display": self._change_display,
        }

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        change = self._changes.get(name)
        if change is None:
            return None
        for finder in sys.meta_path:
            spec: Any = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
                execute = spec.loader.exec_module

                def exec_module(module: Any, execute: Any = execute, change: Any = change) -> None:
                    execute(module)
                    change(module)

                spec.loader.exec_module = exec_module
                return spec
        return None

    def _change_plot(self, module: Any) -> None:
        def show(*_given: Any, **_how: Any) -> None:
            self._display.figures()

        module.show = show

    def _change_display(self, module: Any) -> None:
        module.display = self._display.show


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """For `from IPython.display import display, HTML` where there is no IPython: asked when nobody else has it."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        is_known = name in ("IPython", "IPython.display")
        return importlib.machinery.ModuleSpec(name, self, is_package=name == "IPython") if is_known else None

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "IPython":
            module.version_info, module.get_ipython = (9, 0, 0), _nothing
            return
        medias = {"HTML": "text/html", "Markdown": "text/markdown", "SVG": "image/svg+xml", "Latex": "text/latex"}
        medias.update({"JSON": "application/json", "Javascript": "application/javascript", "Image": "image/png"})
        for name, media in medias.items():

            def make(data: Any = None, *, filename: str | None = None, media: str = media, **_how: Any) -> Shown:
                if filename is not None:
                    with open(filename, "rb") as file:
                        data = file.read()
                return Shown({media: data})

            setattr(module, name, make)
        module.display, module.clear_output = self._display.show, _nothing


def _nothing(*_given: Any, **_how: Any) -> None:
    return None


def translated(code: str) -> str:
    """Lines of notebooks that are no Python: `!command`, `%pip`, `%cd`, `%env`; `%matplotlib` says what is so."""
    told: list[str] = []
    for line in code.split("\n"):
        found = _MAGIC.match(line)
        indent, sign, words = found.groups() if found else ("", "", "")
        name, _, rest = words.partition(" ")
        if sign == "!" or (sign == "%" and name == "pip"):
            command = words if sign == "!" else "%s -m pip %s" % (sys.executable, rest)
            told.append("%s__sandlot_shell__(%r)" % (indent, command))
        elif sign == "%" and name == "cd":
            told.append(
                "%s__import__('os').chdir(__import__('os').path.expanduser(%r))" % (indent, rest.strip() or "~")
            )
        elif sign == "%" and name in ("matplotlib", "config", "autoreload", "load_ext"):
            told.append(indent + "pass")
        else:
            told.append(line)
    return "\n".join(told)


def shell(command: str) -> int:
    import subprocess

    sys.stdout.flush()
    return subprocess.run(command, shell=True, check=False).returncode


class Shell:
    def __init__(self, line: Line, display: Display) -> None:
        self._line = line
        self._display = display
        self._loop: Any = None
        self._is_parsing = False
        self._module = types.ModuleType("__main__")
        self._names = self._module.__dict__
        self._names.update(__builtins__=builtins, _=None)
        sys.modules["__main__"] = self._module
        everywhere: Any = builtins
        everywhere.display = display.show
        everywhere.__sandlot_shell__ = shell

    def run(self, code: str, envs: dict[str, str]) -> str:
        before = {name: os.environ.get(name) for name in envs}
        os.environ.update(envs)
        try:
            return self._run(code)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _run(self, code: str) -> str:
        name = "<cell %d>" % self._line.count
        try:
            try:
                self._is_parsing = True
                tree, code = self._parse(code, name)
                self._is_parsing = False
                self._execute(tree, name, is_shown=not code.rstrip().endswith(";"))
            finally:
                if self._line.is_own:
                    self._flush()
                    self._display.figures()
        except KeyboardInterrupt as error:
            self._line.armed = False
            self._fail(error, name)
            return "interrupted"
        except BaseException as error:  # whatever user code raises
            self._line.armed = False
            self._fail(error, name)
            return "error"
        return "ok"

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(Exception):  # it is user code's
                stream.flush()  # type: ignore[union-attr]

    def _parse(self, code: str, name: str) -> tuple[ast.Module, str]:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            return ast.parse(code, name), code
        except SyntaxError:
            other = translated(code)
            if other == code:
                raise
            with contextlib.suppress(SyntaxError):
                return ast.parse(other, name), other
            raise

    def _execute(self, tree: ast.Module, name: str, *, is_shown: bool) -> None:
        last = tree.body.pop() if tree.body and is_shown and isinstance(tree.body[-1], ast.Expr) else None
        self._eval(tree, name, "exec")
        if isinstance(last, ast.Expr):
            value = self._eval(ast.Expression(last.value), name, "eval")
            if value is not None:
                self._names["_"] = value
                self._flush()
                self._display.tell(value, is_main=True)

    def _eval(self, tree: Any, name: str, mode: str) -> Any:
        program = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if not program.co_flags & 0x80:  # it has no await of its own
            return eval(program, self._names)
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        made: Any = types.FunctionType(program, self._names)()
        task = self._loop.create_task(made)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with contextlib.suppress(BaseException):  # it was interrupted
                self._loop.run_until_complete(task)
            raise

    def _fail(self, error: BaseException, name: str) -> None:
        kind = type(error)
        try:
            value = str(error)
        except Exception:  # whatever code of others raises
            value = "<no text>"
        trace = None if self._is_parsing else error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == "<sandlot>":
            trace = trace.tb_next
        try:
            text = "".join(traceback.TracebackException(kind, error, trace, compact=False).format())
        except Exception:  # whatever code of others raises
            text = "%s: %s" % (kind.__name__, value)
        text = re.sub(r'  File "<sandlot>".*\n(?:    .*\n)*', "", text)
        told = {"name": kind.__name__, "value": value[:_TEXT_CHARS], "traceback": text[-_TEXT_CHARS:]}
        self._line.say("E", told)


def main(mark: str, charts: str) -> None:
    line = Line(mark)
    os.environ.setdefault("MPLBACKEND", "Agg")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    display = Display(line, charts)
    sys.meta_path.insert(0, Patches(display))
    sys.meta_path.append(StandIn(display))
    shell_of_user = Shell(line, display)
    sys.argv = [""]
    sys.path.insert(0, "")
    signal.signal(signal.SIGINT, line.on_interrupt)
    line.say("R", {"version": sys.version.split()[0]})
    while True:
        asked = line.hear()
        if asked is None:
            return
        line.count = asked["n"]
        signal.signal(signal.SIGINT, line.on_interrupt)  # user code may have had its own
        try:
            line.armed = True
            line.say("B", {})
            status = shell_of_user.run(asked["code"], asked["envs"])
        except KeyboardInterrupt:
            status = "interrupted"
        if not line.is_own:
            os._exit(0)  # a child that user code forked came to the end of it
        line.end(status)


main(globals()["MARK"], globals()["CHARTS"])
