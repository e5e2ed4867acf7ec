"""`python -m tests.performance.picture IN.json OUT.svg`: what `make bench` measured, as one picture for a page."""

import itertools
import json
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.performance.report import Row, number


class Kind(StrEnum):
    """Whose bar it is; the value is its colour."""

    OURS = "#3ecf9f"
    WALLS = "#6d8cba"
    OPEN = "#566274"


@dataclass(frozen=True, slots=True)
class Shown:
    """A row of the results by its section, where * stands for a count, and its name; and what it is called here."""

    section: str
    name: str
    label: str
    about: str = ""  # {section} is put in
    kind: Kind = Kind.OURS


COMMAND = "command in a session"
CREATE = "session, create to first result (static true)"
LIVING = "* living sessions"
EXEC = "others: command in a running sandbox (static true)"
RUN = "others: create to first result (static true)"
HISTORY = "a session's history"
POINTS = "comparing two points"

# What is drawn, from top to bottom, below each title and its remark. A row that the results do not have is left out.
PANELS: Mapping[tuple[str, str], tuple[Shown, ...]] = {
    ("Run a command", "in a sandbox that is there already"): (
        Shown(COMMAND, "static true", "Sandlot", "in the only session"),
        Shown(LIVING, "command in one of them, static true", "Sandlot", "in one of {section}"),
        Shown(RUN, "bwrap", "bwrap", "a new sandbox each time", Kind.WALLS),
        Shown(EXEC, "crun exec", "crun exec", "OCI runtime in C", Kind.WALLS),
        Shown(EXEC, "runsc exec", "runsc exec", "gVisor, platform ptrace", Kind.WALLS),
        Shown(EXEC, "docker exec", "docker exec", "", Kind.WALLS),
        Shown(EXEC, "SWE-ReX, execute", "SWE-ReX", "execute", Kind.OPEN),
        Shown(EXEC, "SWE-ReX, run in a bash session", "SWE-ReX", "run in a bash session", Kind.OPEN),
    ),
    ("Create to first result", "a new sandbox, and the first command in it"): (
        Shown(CREATE, "warm", "Sandlot, warm", "from a pool of sessions"),
        Shown(CREATE, "cold", "Sandlot, cold", "made when asked for"),
        Shown(RUN, "bwrap", "bwrap", "on the machine's own files", Kind.WALLS),
        Shown(RUN, "crun run", "crun run", "OCI runtime in C", Kind.WALLS),
        Shown(RUN, "runsc run", "runsc run", "gVisor, platform ptrace", Kind.WALLS),
        Shown(RUN, "docker run", "docker run", "", Kind.WALLS),
        Shown(RUN, "SWE-ReX, bash session in a running server", "SWE-ReX", "bash, server runs already", Kind.OPEN),
        Shown(RUN, "SWE-ReX, server start and execute", "SWE-ReX", "server start and execute", Kind.OPEN),
    ),
    ("Turns", "each is a snapshot of all files, on disk when it is told"): (
        Shown(HISTORY, "turn snapshot, 2000 files", "close a turn", "2,000 files"),
        Shown(HISTORY, "turn snapshot, 100000 files", "close a turn", "100,000 files"),
        Shown(HISTORY, "turn snapshot after 100 turns", "close a turn", "after 100 others"),
        Shown(HISTORY, "rollback, 2000 files", "roll back", "2,000 files"),
        Shown(HISTORY, "rollback, 100000 files", "roll back", "100,000 files"),
        Shown(HISTORY, "fork, 2000 files", "fork", "2,000 files"),
        Shown(HISTORY, "fork, 100000 files", "fork", "100,000 files"),
        Shown(POINTS, "diff, 10 changes among 100000 files", "diff", "10 changes, 100,000 files"),
        Shown(POINTS, "diff, 1000 changes among 2000 files", "diff", "1,000 changes, 2,000 files"),
    ),
}
TILES = (
    Shown(LIVING, "memory each", "memory per session", "{section}, idle"),
    Shown(LIVING, "creates per second", "sessions created", "8 at a time, all kept"),
    Shown("sessions per second, *", "8 at a time", "created and destroyed", "8 at a time"),
    Shown("64 commands at once in one session", "commands per second", "commands run", "64 at once, in one session"),
)

LEGEND = {Kind.OURS: "Sandlot", Kind.WALLS: "other sandboxes", Kind.OPEN: "isolates nothing itself"}
RAW = "raw = one posix_spawn and wait of a static program, measured in turn"
SCALE = "A value is how many times longer it took. The scale is logarithmic, and shorter is better."
NOTHING = "There is nothing to draw: no row of this picture was measured."

CARD, EDGE, GRID, TILE = "#10161f", "#2b3644", "#232d3a", "#17202b"
BRIGHT, TEXT, DIM, TARGET, MISS = "#f0f4f9", "#c5cfdb", "#8d9bad", "#ffd166", "#ff8a80"
WIDTH, MARGIN, BARS, BARS_END = 800, 28, 236, 640
ROW, BAR, LINE_CHARACTERS = 36, 16, 112


def draw(content: Mapping[str, Any]) -> str:
    """The whole picture as SVG, with a background of its own, so that it stands on a page of any colour."""
    rows = read_rows(content)
    y, parts = 44.0, [_text(MARGIN, 44, "Sandlot beside others", 20, BRIGHT, bold=True)]
    for line in (RAW, SCALE):
        y += 19
        parts.append(_text(MARGIN, y, line, 12.5, DIM))
    panels = {heading: _measured(rows, bars) for heading, bars in PANELS.items()}
    values = [row.value for bars in panels.values() for _, row in bars if row.value]
    axis = Axis.around(values)
    if any(panels.values()):
        y += 30
        parts.append(_legend(y))
    for heading, bars in panels.items():
        if bars:
            parts.append(_panel(heading, bars, axis, y + 40))
            y += 40 + 34 + ROW * len(bars)
    if tiles := _measured(rows, TILES):
        parts.append(_tiles(tiles, y + 22))
        y += 22 + 104
    y += 8
    if not tiles and not any(panels.values()):
        y += 30
        parts.append(_text(MARGIN, y, NOTHING, 14, TEXT))
    for line, colour in _remarks(content, rows):
        y += 18
        parts.append(_text(MARGIN, y, line, 12, colour))
    height = math.ceil(y + 24)
    frame = f'width="{WIDTH - 1}" height="{height - 1}" rx="14" fill="{CARD}" stroke="{EDGE}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif">\n<title>Sandlot beside others</title>\n'
        f'<rect x="0.5" y="0.5" {frame}/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def read_rows(content: Mapping[str, Any]) -> list[Row]:
    known = {field.name for field in fields(Row)}
    rows: list[Mapping[str, Any]] = content.get("rows", [])
    return [Row(**{name: value for name, value in row.items() if name in known}) for row in rows]


def _find(rows: Sequence[Row], shown: Shown) -> Row | None:
    return next((row for row in rows if row.name == shown.name and fnmatchcase(row.section, shown.section)), None)


def _measured(rows: Sequence[Row], choice: Sequence[Shown]) -> list[tuple[Shown, Row]]:
    return [(shown, row) for shown in choice if (row := _find(rows, shown)) and _is_measured(row)]


def _is_measured(row: Row) -> bool:
    return row.value is not None and math.isfinite(row.value)


@dataclass(frozen=True, slots=True)
class Axis:
    """From below the smallest value, because a bar of no length would not be seen, to the power of ten above all."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> "Axis":
        low = min([0.5, *(value / 2 for value in values)])
        return cls(max(low, 0.001), 10.0 ** math.ceil(math.log10(max([10.0, *values]))))

    def x(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return BARS + share * (BARS_END - BARS)

    def ticks(self) -> list[float]:
        first = math.ceil(math.log10(self.low))
        return [10.0**power for power in range(first, round(math.log10(self.high)) + 1)]


def _panel(heading: tuple[str, str], bars: Sequence[tuple[Shown, Row]], axis: Axis, y: float) -> str:
    top, bottom = y + 34, y + 34 + ROW * len(bars)
    title, remark = heading
    words = _span(f"{title} ", BRIGHT, bold=True) + f'<tspan dx="6" font-size="12.5">{_clean(remark)}</tspan>'
    parts = [f'<text x="{MARGIN}" y="{y:.1f}" font-size="15" fill="{DIM}">{words}</text>']
    for tick in axis.ticks():
        x = axis.x(tick)
        # One raw is the floor: what the same program takes without any sandbox.
        colour, label = (DIM, "1 raw") if tick == 1 else (GRID, number(tick))
        parts.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="1"/>')
        parts.append(_text(x, top - 5, label, 11, DIM, anchor="middle"))
    for at, (shown, row) in enumerate(bars):
        parts.append(_bar(shown, row, axis, top + ROW * at))
    return "\n".join(parts)


def _bar(shown: Shown, row: Row, axis: Axis, y: float) -> str:
    middle, end = y + ROW / 2, axis.x(row.value or 0)
    about = shown.about.format(section=row.section)
    name_y = middle - 2 if about else middle + 4
    ours = shown.kind is Kind.OURS
    parts = [
        _text(MARGIN, name_y, shown.label, 13, BRIGHT if ours else TEXT, bold=ours),
        *([_text(MARGIN, middle + 12, about, 11, DIM)] if about else []),
        f'<rect x="{BARS}" y="{middle - BAR / 2:.1f}" width="{end - BARS:.1f}" height="{BAR}" rx="3" '
        f'fill="{shown.kind}"/>',
    ]
    after = end
    if row.target is not None:
        x = axis.x(row.target)
        after = max(end, x)
        parts.append(f'<path d="M{x:.1f} {middle - 12:.1f}v24" stroke="{TARGET}" stroke-width="2"/>')
    return "\n".join([*parts, _value(row, after + 9, middle + 4.5)])


def _value(row: Row, x: float, y: float) -> str:
    words = [(number(row.value or 0), BRIGHT), (f" {row.unit}", TEXT)]
    words += [] if row.median_ms is None else [(f"  {number(row.median_ms)} ms", DIM)]
    words += [("  missed", MISS)] if row.verdict == "MISS" else []
    spans = "".join(_span(text, colour, bold=colour == BRIGHT) for text, colour in words)
    # A line of the grid through a number would make it hard to read.
    width = 7.6 * sum(len(text) for text, _ in words)
    ground = f'<rect x="{x - 3:.1f}" y="{y - 13:.1f}" width="{width:.1f}" height="18" fill="{CARD}"/>\n'
    return f'{ground}<text x="{x:.1f}" y="{y:.1f}" font-size="12.5" xml:space="preserve">{spans}</text>'


def _tiles(tiles: Sequence[tuple[Shown, Row]], y: float) -> str:
    gap = 12
    width = (WIDTH - 2 * MARGIN - gap * (len(TILES) - 1)) / len(TILES)
    parts: list[str] = []
    for at, (shown, row) in enumerate(tiles):
        x = MARGIN + at * (width + gap)
        unit = f'<tspan font-size="13"> {_clean(row.unit)}</tspan>'
        value = _span(number(row.value or 0), Kind.OURS, bold=True) + unit
        parts += [
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="100" rx="8" fill="{TILE}"/>',
            f'<text x="{x + 14:.1f}" y="{y + 36:.1f}" font-size="24" fill="{TEXT}" xml:space="preserve">{value}</text>',
            _text(x + 14, y + 57, shown.label, 12, TEXT),
            _text(x + 14, y + 73, shown.about.format(section=row.section), 11, DIM),
        ]
        if row.target is not None:
            bound = f"target {'≥' if row.at_least else '≤'} {number(row.target)} {row.unit}"
            missed = row.verdict == "MISS"
            parts.append(_text(x + 14, y + 89, bound + ", missed" * missed, 11, MISS if missed else TARGET))
    return "\n".join(parts)


def _legend(y: float) -> str:
    parts: list[str] = []
    x = float(MARGIN)
    for kind, label in LEGEND.items():
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="3" fill="{kind}"/>')
        parts.append(_text(x + 19, y, label, 12, TEXT))
        x += 46 + 6.3 * len(label)
    parts.append(f'<path d="M{x:.1f} {y - 12:.1f}v16" stroke="{TARGET}" stroke-width="2"/>')
    return "\n".join([*parts, _text(x + 9, y, "target", 12, TEXT)])


def _remarks(content: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """What the bars cannot tell, each line with its colour: what is missing, and where and when this was."""
    reasons: dict[str, list[str]] = {}
    for shown in (*itertools.chain.from_iterable(PANELS.values()), *TILES):
        row = _find(rows, shown)
        if row and not _is_measured(row):
            names = reasons.setdefault(row.note.removeprefix("not measured: ") or "no reason was given", [])
            names.append(", ".join(filter(None, (shown.label, shown.about.format(section=row.section)))))
    for reason, names in reasons.items():
        for line in textwrap.wrap(f"Not measured: {'; '.join(names)} ({reason})", LINE_CHARACTERS):
            yield line, TEXT
    failures: list[str] = content.get("failures", [])
    if failures:
        sections = ", ".join(failure.partition(":")[0] for failure in failures)
        yield from ((line, MISS) for line in textwrap.wrap(f"Broke off: {sections}", LINE_CHARACTERS))
    if content.get("quick"):
        yield "A quick run with few rounds: the numbers are rough.", TARGET
    machine: Mapping[str, Any] = content.get("machine", {})
    words = [
        str(machine.get("processor", "")),
        f"{machine['cores']} cores" if "cores" in machine else "",
        f"{machine['memory_mib'] / 1024:.0f} GiB" if "memory_mib" in machine else "",
        # What a builder put behind the version tells readers nothing.
        f"Linux {str(machine['kernel']).partition('-')[0]}" if "kernel" in machine else "",
        f"Python {machine['python']}" if "python" in machine else "",
        str(content.get("started", ""))[: len("2000-01-31")],
    ]
    yield from ((line, DIM) for line in textwrap.wrap(", ".join(filter(None, words)), LINE_CHARACTERS))


def _text(x: float, y: float, words: str, size: float, colour: str, *, bold: bool = False, anchor: str = "") -> str:
    weight = ' font-weight="bold"' if bold else ""
    align = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{weight}{align}>{_clean(words)}</text>'


def _span(words: str, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<tspan fill="{colour}"{weight}>{_clean(words)}</tspan>'


def _clean(words: str) -> str:
    """XML has no form for control characters, not even an escaped one."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words))


def draw_file(source: Path, target: Path) -> None:
    target.write_text(draw(json.loads(source.read_text())), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw_file(Path(sys.argv[1]), Path(sys.argv[2]))
