"""A story in numbered steps, each with its time and with what was expected of it."""

import statistics
import textwrap
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sandlot.cli.context import Context, Engine
from sandlot.cli.screen import Screen, printable
from sandlot.cli.stream import Collected, follow
from sandlot.config.settings import Settings
from sandlot.model import CallRequest, CallResult, FileInfo, FileWrite, SessionInfo, SessionSpec, Stream

_WIDTH = 78
_TEXT_WIDTH = 72
_TIMEOUT_S = 20.0


@dataclass(slots=True)
class Step:
    number: int
    title: str
    ms: float = 0.0  # set by a scene that also waits for other things
    ok: bool = True
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def say(self, text: str) -> None:
        self.lines.append(("", text))

    def expect(self, as_expected: bool, text: str) -> None:
        """A promise: the story ends well only when all were kept."""
        self.lines.append(("ok" if as_expected else "missing", text))
        self.ok = self.ok and as_expected


@dataclass(frozen=True, slots=True)
class Measure:
    operation: str
    ms: float

    @classmethod
    def of(cls, operation: str, seconds: Sequence[float]) -> "Measure":
        return cls(operation, statistics.median(seconds) * 1000)


@dataclass(frozen=True, slots=True)
class Ran:
    result: CallResult
    stdout: str
    stderr: str

    @property
    def exit_code(self) -> int:
        return self.result.exit_code


class Story:
    """Holds the engine and the session that the scenes share."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self.context = context
        self.settings = settings
        self.screen: Screen = context.screen
        self.steps: list[Step] = []
        self.measures: list[Measure] = []  # the first is the unit of the others
        self.runtime = settings.runtime
        self._engine: Engine | None = None
        self._session: SessionInfo | None = None
        self._exit = AsyncExitStack()

    @property
    def host(self) -> Engine:
        assert self._engine is not None, "no engine is open"
        return self._engine

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    @property
    def session(self) -> SessionInfo:
        assert self._session is not None, "no session was made"
        return self._session

    @session.setter
    def session(self, session: SessionInfo) -> None:
        self._session = session

    # ---- the engine --------------------------------------------------------------------------------------------

    async def open(self, warm_pool: int = 0) -> None:
        settings = replace(self.settings, warm_pool=warm_pool)
        self._engine = await self._exit.enter_async_context(self.context.engine(settings))

    async def close(self) -> None:
        self._engine = None
        await self._exit.aclose()

    async def create(self) -> SessionInfo:
        session = await self.host.create(SessionSpec(runtime=self.runtime, labels={"made-by": "demo"}))
        self.context.progress.close()
        return session

    async def write(self, path: str, text: str) -> FileInfo:
        async def content() -> AsyncIterator[bytes]:
            yield text.encode()

        return await self.host.write_file(FileWrite(self.session.session_id, path), content())

    async def sh(self, script: str, stdin: bytes | None = None, **options: Any) -> Ran:
        return await self.run(("sh", "-c", script), stdin, **options)

    async def run(self, argv: tuple[str, ...], stdin: bytes | None = None, **options: Any) -> Ran:
        request = CallRequest(self.session.session_id, argv, stdin=stdin is not None, timeout_s=_TIMEOUT_S)
        sink = Collected()
        async with self.host.call(replace(request, **options)) as stream:
            if stdin is not None:
                await stream.write_stdin(stdin)
                await stream.close_stdin()
            result = await follow(stream, sink)
        texts = [sink.streams[name].decode(errors="replace") for name in (Stream.STDOUT, Stream.STDERR)]
        return Ran(result, texts[0], texts[1])

    # ---- the telling -------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, title: str) -> Generator[Step]:
        """Printed when it is over, with its time, also when it breaks off."""
        step = Step(len(self.steps) + 1, title)
        self.steps.append(step)
        began = time.perf_counter()
        try:
            yield step
        except BaseException:  # a scene that breaks off is shown as such, whatever broke it
            step.ok = False
            raise
        finally:
            step.ms = step.ms or (time.perf_counter() - began) * 1000
            if not self.screen.as_json:
                self._show(step)

    def _show(self, step: Step) -> None:
        screen = self.screen
        title = f"{step.title:<{_WIDTH - 17}}"
        screen.line(f"{step.number:>2}  {screen.mark(title, 'bold')} {step.ms:>9,.1f} ms")
        for style, text in step.lines:
            sign = screen.mark({"ok": "✓", "missing": "✗"}[style], style) if style else " "
            for at, line in enumerate(textwrap.wrap(printable(text), _TEXT_WIDTH, break_on_hyphens=False)):
                screen.line(f"    {sign if at == 0 else ' '} {line}")

    @property
    def ok(self) -> bool:
        return all(step.ok for step in self.steps)
