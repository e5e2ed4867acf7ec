"""`python -m tests.soak.server [--seconds N] [--kill-every N]`: mixed work on a server that is killed and begun anew.

What was told must be true, and memory must not grow. SERVER_SOAK_S is the default of --seconds."""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from sandlot.model import SessionFilter
from sandlot.rpc.client import HostClient
from tests.serving import environment
from tests.soak.clients import KINDS, Client, Tally

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "soak"
_SAMPLE_S = 1.0
_GROWTH_MAX = 1.5  # of the most that a life of a server took, the last third beside the first


class Lives:
    """The server, one process after another, on one port."""

    def __init__(self, data: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._data = data
        self._log = data.parent / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.count = 0

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        words = ["--json", "--data-dir", str(self._data), "serve", "--listen", f"127.0.0.1:{self.port}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sandlot", *words],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.count += 1

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def memory_kib(self) -> int:
        assert self._process is not None
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)


async def watch(lives: Lives, tally: Tally, samples: list[tuple[float, int, int, int]], until: asyncio.Event) -> None:
    began = time.monotonic()
    while not until.is_set():
        samples.append((round(time.monotonic() - began, 1), lives.count, lives.memory_kib(), tally.done))
        await asyncio.sleep(_SAMPLE_S)


async def soak(data: Path, seconds: float, kill_every_s: float, seed: int, each: int) -> dict[str, Any]:
    lives, tally, over = Lives(data), Tally(), asyncio.Event()
    samples: list[tuple[float, int, int, int]] = []
    lives.start()
    try:
        async with HostClient(f"http://127.0.0.1:{lives.port}") as host:
            await _reached(host)
            watching = asyncio.ensure_future(watch(lives, tally, samples, over))
            clients = [
                asyncio.ensure_future(Client(host, f"{kind.__name__}-{n}", tally, seed + n).work(kind, over))
                for kind in KINDS
                for n in range(each)
            ]
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(min(kill_every_s, max(end - time.monotonic(), 0.1)))
                await asyncio.to_thread(lives.kill)
                lives.start()
            over.set()
            for outcome in await asyncio.gather(*clients, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    tally.wrong.append(f"a client ended: {type(outcome).__name__}: {outcome}")
            await watching
            left = [session.session_id for session in (await host.list(SessionFilter())).sessions]
            tally.need(left == [], f"sessions that nobody has: {left}")
            found = await host.examine()
            tally.need(found.is_clean, f"what nobody needs: {found.findings}")
        tally.need(lives.stop() == 0, "the server did not end in order")
        tally.need("Traceback" not in lives.log, f"the server says: {lives.log[-2000:]}")
    finally:
        lives.kill()
    growth = growth_of(samples)
    tally.need(growth <= _GROWTH_MAX, f"memory grew by {growth:.2f} over its lives")
    return {
        "seconds": seconds,
        "kills": lives.count - 1,
        "clients": len(KINDS) * each,
        "done": tally.done,
        "unknown": tally.unknown,
        "wrong": tally.wrong,
        "growth": round(growth, 3),
        "samples": samples,
    }


async def _reached(host: HostClient) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                await host.capabilities()
                return
            except ConnectionError:
                await asyncio.sleep(0.1)


def growth_of(samples: Sequence[tuple[float, int, int, int]]) -> float:
    """How much more the last lives took than the first ones, each at its most; the one that was just beginning left
    out."""
    most: dict[int, int] = {}
    for _, life, memory, _ in samples:
        most[life] = max(most.get(life, 0), memory)
    whole = [memory for _, memory in sorted(most.items())][:-1]
    third = len(whole) // 3
    return statistics.median(whole[-third:]) / statistics.median(whole[:third]) if third else 1.0


def draw(result: Mapping[str, Any]) -> str:
    """Memory of the server and operations over time; a line where it was killed."""
    samples: Sequence[tuple[float, int, int, int]] = result["samples"]
    width, height, left, top = 900, 300, 60, 40
    last = max(samples[-1][0], 1.0)
    memory_max, done_max = max(s[2] for s in samples) or 1, max(s[3] for s in samples) or 1

    def x(at: float) -> float:
        return left + at / last * (width - 2 * left)

    def y(share: float) -> float:
        return top + (1 - share) * (height - 2 * top)

    kills = [b[0] for a, b in itertools.pairwise(samples) if b[1] != a[1]]
    told = (
        f"{result['done']} operations, {result['kills']} kills, {result['unknown']} told as unknown, "
        f"{len(result['wrong'])} wrong; memory at most {memory_max // 1024} MiB"
    )
    memory = " ".join(f"{x(s[0]):.1f},{y(s[2] / memory_max):.1f}" for s in samples)
    done = " ".join(f"{x(s[0]):.1f},{y(s[3] / done_max):.1f}" for s in samples)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#11161d"/>',
        f'<text x="{left}" y="24" font-size="14" fill="#d7dee8">{escape(told)}</text>',
        *(f'<path d="M{x(at):.1f} {top}V{height - top}" stroke="#8b4a4a" stroke-width="1"/>' for at in kills),
        f'<polyline points="{done}" fill="none" stroke="#6d8cba" stroke-width="1.5"/>',
        f'<polyline points="{memory}" fill="none" stroke="#3ecf9f" stroke-width="1.5"/>',
        f'<text x="{left}" y="{height - 12}" font-size="12" fill="#3ecf9f">memory of the server</text>',
        f'<text x="{left + 160}" y="{height - 12}" font-size="12" fill="#6d8cba">operations</text>',
        f'<text x="{left + 250}" y="{height - 12}" font-size="12" fill="#8b4a4a">kills</text>',
        f'<text x="{width - left - 60}" y="{height - 12}" font-size="12" fill="#d7dee8">{last:.0f} s</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SERVER_SOAK_S", "1800")))
    parser.add_argument("--kill-every", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=2, help="clients of each kind")
    parser.add_argument("--templates", type=Path, help="a folder of templates to start from")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandlot-soak-") as scratch:
        data = Path(scratch) / "data"
        data.mkdir(mode=0o700)
        if args.templates:
            (data / "templates").symlink_to(args.templates)
        result = asyncio.run(soak(data, args.seconds, args.kill_every, args.seed, args.each))
        if args.templates:
            (data / "templates").unlink()
        shutil.rmtree(data)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "server.json").write_text(json.dumps(result, indent=1))
    (RESULTS / "server.svg").write_text(draw(result))
    for said in result["wrong"]:
        print(f"wrong: {said}")
    told = {name: result[name] for name in ("seconds", "kills", "clients", "done", "unknown", "growth")}
    print(", ".join(f"{name} {value}" for name, value in told.items()), f"and {len(result['wrong'])} wrong")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
