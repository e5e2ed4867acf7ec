"""Short words for what checks of code do."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sandlot.conformance.checks import Broken, Stage, equal
from sandlot.model import (
    CodeContext,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStatus,
    CodeValue,
    ContextRequest,
    Stream,
)

FOREVER = "import time\nprint('up')\ntime.sleep(600)"


@dataclass(slots=True)
class Told:
    """A run that has ended, by what it told."""

    events: list[CodeEvent] = field(default_factory=list[CodeEvent])

    @property
    def result(self) -> CodeResult:
        last = self.events[-1]
        if not isinstance(last, CodeResult):
            raise Broken(f"the last of its events is {last!r}")
        return last

    def text(self, stream: Stream = Stream.STDOUT) -> str:
        return "".join(one.text for one in self.events if isinstance(one, CodeOutput) and one.stream is stream)

    @property
    def values(self) -> list[CodeValue]:
        return [one for one in self.events if isinstance(one, CodeValue)]

    @property
    def main(self) -> str | None:
        """The value of the last expression, as text."""
        return next((one.data.get("text/plain") for one in self.values if one.is_main), None)

    @property
    def error(self) -> CodeError:
        found = [one for one in self.events if isinstance(one, CodeError)]
        equal(len(found), 1)
        return found[0]


def request(stage: Stage, code: str, **options: Any) -> CodeRequest:
    return CodeRequest(stage.session.session_id, code, **options)


async def run(stage: Stage, code: str, **options: Any) -> Told:
    async with stage.host.run_code(request(stage, code, **options)) as stream:
        return Told([event async for event in stream])


async def good(stage: Stage, code: str, **options: Any) -> Told:
    told = await run(stage, code, **options)
    wrong = next((one for one in told.events if isinstance(one, CodeError)), None)
    equal((told.result.status, wrong), (CodeStatus.OK, None))
    return told


async def context(stage: Stage, **options: Any) -> CodeContext:
    return await stage.host.create_context(ContextRequest(stage.session.session_id, **options))


async def status_of(stage: Stage, context_id: str) -> CodeContext:
    found = await stage.host.contexts(stage.session.session_id)
    return next(one for one in found if one.context_id == context_id)


async def hear(stream: AsyncIterator[CodeEvent], wanted: str) -> None:
    async for event in stream:
        if isinstance(event, CodeOutput) and wanted in event.text:
            return
    raise Broken(f"{wanted!r} was not printed")


async def attached(stage: Stage, execution_id: str) -> Told:
    async with stage.host.attach_code(stage.session.session_id, execution_id) as stream:
        return Told([event async for event in stream])
