"""Rows of results: printed as they come, as a table at the end, and as JSON."""

import json
import os
import platform
import statistics
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.performance.measure import Samples, quantile

COLUMNS = ("operation", "value", "target", "", "at p10", "median ms", "p95 ms", "raw ms", "n")


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    name: str
    value: float | None = None  # None: could not be measured, and the note says why
    unit: str = ""
    target: float | None = None
    at_least: bool = False  # the target is a lower bound
    low_ratio: float | None = None  # of the 10th percentiles: what is left of the ratio when nobody disturbs
    median_ms: float | None = None
    p95_ms: float | None = None
    raw_ms: float | None = None
    n: int | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        if self.value is None:
            return "MISS"
        return "PASS" if (self.value >= self.target if self.at_least else self.value <= self.target) else "MISS"

    def cells(self) -> tuple[str, ...]:
        sign = ">=" if self.at_least else "<="
        return (
            self.name,
            "-" if self.value is None else f"{number(self.value)} {self.unit}".rstrip(),
            "" if self.target is None else f"{sign} {number(self.target)}",
            self.verdict,
            *(
                "" if value is None else number(value)
                for value in (self.low_ratio, self.median_ms, self.p95_ms, self.raw_ms)
            ),
            "" if self.n is None else str(self.n),
        )


def number(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio_row(section: str, name: str, samples: Samples, *, target: float | None = None, note: str = "") -> Row:
    return Row(
        section,
        name,
        value=samples.ratio,
        unit="raw",
        target=target,
        low_ratio=quantile(samples.operation_ms, 0.1) / quantile(samples.raw_ms, 0.1),
        median_ms=statistics.median(samples.operation_ms),
        p95_ms=quantile(samples.operation_ms, 0.95),
        raw_ms=statistics.median(samples.raw_ms),
        n=len(samples.operation_ms),
        note=note,
    )


def machine() -> dict[str, str | int]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "kernel": platform.release().partition("-")[0],
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int(memory) // 1024,
        "python": platform.python_version(),
        "load_at_start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


@dataclass
class Report:
    quick: bool
    rows: list[Row] = field(default_factory=list[Row])
    failures: list[str] = field(default_factory=list[str])
    machine: dict[str, str | int] = field(default_factory=machine)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def say(self, text: str) -> None:
        print(text, flush=True)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        name, value, target, verdict, *_rest = row.cells()
        words = [f"  {name}: {value}", f"(target {target})" if target else "", verdict, row.note]
        self.say(" ".join(filter(None, words)))

    def fail(self, section: str, error: Exception) -> None:
        """A section that broke off is told of, and the next one still runs."""
        self.failures.append(f"{section}: {type(error).__name__}: {error}")
        self.say(f"  FAILED {self.failures[-1]}")

    def finish(self, file: Path) -> None:
        self._write(file)
        misses = [row for row in self.rows if row.verdict == "MISS"]
        judged = [row for row in self.rows if row.verdict]
        self.say("")
        self.say("  ".join(f"{name} {value}" for name, value in self.machine.items()))
        if sys.stdout.isatty():
            Console().print(self._rich_table())
        else:
            self._print_plain()
        self.say("raw: one posix_spawn and wait of a static program, measured in turn with the operation of its row;")
        self.say("a value in raw is the ratio of the medians, and `at p10` that of the 10th percentiles")
        self.say(f"{len(judged) - len(misses)} of {len(judged)} targets reached" + (", missed:" if misses else ""))
        for row in misses:
            self.say(f"  MISS {row.section}: {row.name}: {row.cells()[1]}, target {row.cells()[2]}")
        for failure in self.failures:
            self.say(f"  FAILED {failure}")
        self.say(f"written to {file}")

    def _sections(self) -> dict[str, list[Row]]:
        sections: dict[str, list[Row]] = {}
        for row in self.rows:
            sections.setdefault(row.section, []).append(row)
        return sections

    def _rich_table(self) -> Table:
        table = Table(*COLUMNS, "note")
        colours = {"PASS": "[green]PASS", "MISS": "[bold red]MISS", "": ""}
        for section, rows in self._sections().items():
            table.add_section()
            table.add_row(f"[bold]{section}")
            for row in rows:
                name, value, target, verdict, *rest = row.cells()
                table.add_row(name, value, target, colours[verdict], *rest, row.note)
        return table

    def _print_plain(self) -> None:
        cells = [COLUMNS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]

        def line(values: tuple[str, ...]) -> str:
            first, *others = values
            aligned = [first.ljust(widths[0]), *(v.rjust(w) for v, w in zip(others, widths[1:], strict=True))]
            return "  ".join(aligned).rstrip()

        self.say("  " + line(COLUMNS))
        for section, rows in self._sections().items():
            self.say(f"\n{section}")
            for row in rows:
                self.say("  " + line(row.cells()))
                if row.note:
                    self.say(f"      {row.note}")
        self.say("")

    def _write(self, file: Path) -> None:
        rows = [asdict(row) | {"verdict": row.verdict} for row in self.rows]
        content = {"started": self.started, "quick": self.quick, "machine": self.machine}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content | {"rows": rows, "failures": self.failures}, indent=2) + "\n")
