"""`.venv/bin/python tools/record_demo.py [OUT.svg]`: play `sandlot demo` on a terminal of our own, draw what it left.

The demo moves its cursor about while it waits, so its bytes go through a small model of a screen first. What that model
does not know is an error: a picture that is wrong in silence would be worse than none.
"""

import getpass
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

REPOSITORY = Path(__file__).parents[1]
PICTURE = REPOSITORY / "docs" / "pictures" / "demo.svg"
COLUMNS, ROWS = 100, 500  # so high that nothing scrolls away
LINES_MAX, LINES_LAST = 60, 16  # of a longer story the middle is left out; its end has the table of times
TIMEOUT_S = 180.0
INTERRUPT_S = 20.0

TOKEN = re.compile(
    r"\x1b\[(?P<parameters>[0-9;?]*)(?P<final>[@-~])|(?P<text>[^\x00-\x1f\x7f]+)|(?P<control>[\x00-\x1f\x7f])"
)

CARD, EDGE, DOT = "#10161f", "#2b3644", "#3b4858"
TEXT, BRIGHT, DIM = "#c5cfdb", "#f0f4f9", "#8d9bad"
COLOURS = {"31": "#ff8a80", "32": "#3ecf9f", "33": "#ffd166", "34": "#6d8cba", "35": "#c792ea", "36": "#66c8de"}
SIZE, CHARACTER, LINE, MARGIN, HEAD = 15, 9.0, 21, 26, 40


class DemoFailed(Exception):
    """Why there is no picture."""


@dataclass(frozen=True, slots=True)
class Style:
    colour: str = TEXT
    bold: bool = False

    def after(self, parameters: str) -> "Style":
        style = self
        for parameter in parameters.split(";"):
            if parameter in ("", "0"):
                style = Style()
            elif parameter == "1":
                style = replace(style, bold=True, colour=BRIGHT if style.colour == TEXT else style.colour)
            elif parameter == "2":
                style = replace(style, colour=DIM)
            elif parameter in COLOURS:
                style = replace(style, colour=COLOURS[parameter])
            else:
                raise DemoFailed(f"it asks for a style that is not known here: {parameters}")
        return style


Cell = tuple[Style, str]


class Screen:
    """As much of a terminal as the demo uses: lines of cells, each a character with the style that was on."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style = Style()

    def feed(self, text: str) -> None:
        for token in TOKEN.finditer(text):
            if token["text"]:
                self._write(token["text"])
            elif token["control"]:
                self._control(token["control"])
            else:
                self._sequence(token["parameters"], token["final"])

    def lines(self) -> list[list[Cell]]:
        """Without the empty lines at the end."""
        last = max((at for at, cells in enumerate(self._lines) if any(c != " " for _, c in cells)), default=-1)
        return [list(cells) for cells in self._lines[: last + 1]]

    def _write(self, text: str) -> None:
        for character in text:
            if self._column == self._columns:
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line += [(Style(), " ")] * (self._column + 1 - len(line))
            line[self._column] = (self._style, character)
            self._column += 1

    def _control(self, control: str) -> None:
        if control == "\r":
            self._column = 0
        elif control == "\n":
            self._down()
        else:
            raise DemoFailed(f"it writes a control character that is not known here: {control!r}")

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])

    def _sequence(self, parameters: str, final: str) -> None:
        line = self._lines[self._row]
        match final, parameters:
            case "m", _:
                self._style = self._style.after(parameters)
            case "A", _:
                self._row = max(0, self._row - int(parameters or 1))
            case "K", "" | "0":
                del line[self._column :]
            case "K", "2":
                line.clear()
            case (("h" | "l"), "?25"):
                pass  # the cursor comes and goes; the picture has none
            case _:
                raise DemoFailed(f"it writes a sequence that is not known here: ESC [ {parameters} {final}")


def play() -> bytes:
    """Everything the demo wrote. It runs away from the checkout, because it tells where its files are."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(ours, (ROWS, COLUMNS))
        return _run([sys.executable, "-m", "sandlot", "demo"], environment, ours, theirs)
    finally:
        os.close(ours)


def _run(argv: Sequence[str], environment: Mapping[str, str], ours: int, theirs: int) -> bytes:
    try:
        process = subprocess.Popen(
            argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd="/", env=environment, start_new_session=True
        )
    finally:
        os.close(theirs)
    try:
        output = _read_all(ours, time.monotonic() + TIMEOUT_S)
        code = process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        raise DemoFailed("it closed its terminal and does not end") from None
    finally:
        if process.poll() is None:
            _end(process)
    if code:
        sys.stderr.write(output.decode(errors="replace"))
        raise DemoFailed(f"it ended with {code}")
    return output


def _read_all(terminal: int, deadline: float) -> bytes:
    output = bytearray()
    while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            output += os.read(terminal, 1 << 16)
        except OSError:  # how a terminal says that its last user is gone
            return bytes(output)
    raise DemoFailed(f"it was not done within {TIMEOUT_S:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # so that it destroys its sessions on the way out
    try:
        process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def trim(lines: Sequence[list[Cell]]) -> list[list[Cell]]:
    if len(lines) <= LINES_MAX:
        return list(lines)
    first = LINES_MAX - LINES_LAST - 1
    told = f"    … {len(lines) - first - LINES_LAST} lines more …"
    return [*lines[:first], [(Style(DIM), character) for character in told], *lines[-LINES_LAST:]]


def draw(lines: Sequence[list[Cell]]) -> str:
    prompt = [(Style(COLOURS["32"]), "$"), *((Style(BRIGHT, bold=True), c) for c in " sandlot demo")]
    shown = [prompt, [], *lines]
    columns = max(80, *(len("".join(c for _, c in cells).rstrip()) for cells in shown))
    width, height = round(columns * CHARACTER + 2 * MARGIN), HEAD + LINE * len(shown) + MARGIN
    frame = f'width="{width - 1}" height="{height - 1}" rx="10" fill="{CARD}" stroke="{EDGE}"'
    texts = (text for at, cells in enumerate(shown) for text in _texts(cells, HEAD + LINE * (at + 1)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}">',
            "<title>sandlot demo</title>",
            f'<rect x="0.5" y="0.5" {frame}/>',
            *(f'<circle cx="{MARGIN + 4 + 18 * dot}" cy="22" r="5.5" fill="{DOT}"/>' for dot in range(3)),
            f'<g font-family="monospace" font-size="{SIZE}" fill="{TEXT}">',
            *texts,
            "</g>",
            "</svg>\n",
        ]
    )


def _texts(cells: Sequence[Cell], y: int) -> Iterator[str]:
    """Pieces without a gap, each at its column: whatever font the reader has, the columns stay straight."""
    at = 0
    for style, group in groupby(cells, key=lambda cell: cell[0]):
        run = "".join(character for _, character in group)
        for piece in re.finditer(r"\S+(?: \S+)*", run):
            place = f'x="{MARGIN + (at + piece.start()) * CHARACTER:g}" y="{y}"'
            length = f'textLength="{len(piece.group()) * CHARACTER:g}"'
            colour = "" if style.colour == TEXT else f' fill="{style.colour}"'
            weight = ' font-weight="bold"' if style.bold else ""
            yield f"<text {place} {length}{colour}{weight}>{escape(piece.group())}</text>"
        at += len(run)


def refuse_private(svg: str) -> None:
    """A picture for everyone names neither the folders of this machine nor the one who recorded it."""
    user = getpass.getuser()
    private = {str(REPOSITORY), f"{Path.home()}/", *([] if user == "root" else [user])}
    found = sorted(word for word in private if word in svg)
    if found:
        raise DemoFailed(f"the picture would tell {', '.join(found)}")


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    try:
        screen = Screen(COLUMNS)
        screen.feed(play().decode())
        lines = screen.lines()
        if not lines:
            raise DemoFailed("it wrote nothing")
        svg = draw(trim(lines))
        refuse_private(svg)
    except DemoFailed as error:
        print(f"record_demo: the demo could not be recorded: {error}", file=sys.stderr)
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(svg, encoding="utf-8")
    print(f"{len(lines)} lines of the demo, drawn to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
