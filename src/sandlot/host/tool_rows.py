"""Calls of direct tools in the journal, among the other calls of their session: a turn tells of both.

What such a call gave is kept as the output of a command would be.
"""

import asyncio
import base64
import json
from itertools import islice
from typing import Any

from sandlot.host.calls import INLINE_BYTES
from sandlot.host.journal import CallRow, Journal, write_ended
from sandlot.host.output import OutputLog
from sandlot.host.session import Session
from sandlot.model import (
    Block,
    CallRecord,
    CallResult,
    CallState,
    ImageBlock,
    Stream,
    TextBlock,
    ToolRequest,
    ToolResult,
    ToolTier,
)

_PREFIX = "tool:"  # before its name, where a command has its program
_WORDS_CHARS, _WORDS_MAX, _WORD_CHARS = 200, 8, 60


def words_of(request: ToolRequest) -> tuple[str, ...]:
    """What stands for a command line."""
    told = json.dumps({name: _short(value) for name, value in islice(request.arguments.items(), _WORDS_MAX)})
    return (f"{_PREFIX}{request.tool}", told[:_WORDS_CHARS])


def _short(value: object) -> str | int | float | bool | None:
    """However large it is, little work."""
    if isinstance(value, str):
        return value if len(value) <= _WORD_CHARS else f"{value[:_WORD_CHARS]}…"
    return value if value is None or isinstance(value, bool | int | float) else f"({type(value).__name__})"


def is_tool(record: CallRecord) -> bool:
    return record.argv[0].startswith(_PREFIX)


class ToolRows:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def start(self, session: Session, number: int, call_id: str, started: float, words: tuple[str, ...]) -> bool:
        """No death of a process undoes it when this returns. False: there is a call of that id."""
        values = (session.row.session_id, number, call_id, str(CallState.RUNNING), started, json.dumps(words))
        sql = "INSERT OR IGNORE INTO calls (session_id, process_id, call_id, state, started, argv) VALUES (?,?,?,?,?,?)"
        return await self._journal.begin(lambda db: db.execute(sql, values).rowcount == 1, full=False, quick=True)

    async def give_up(self, session: Session, number: int) -> None:
        """It was not done, and may be asked for again."""
        sql = "DELETE FROM calls WHERE session_id = ? AND process_id = ?"
        await self._journal.begin(lambda db: db.execute(sql, (session.row.session_id, number)), full=False, quick=True)

    async def end(
        self, session: Session, number: int, started: float, words: tuple[str, ...], result: ToolResult, *, keep: bool
    ) -> None:
        """The same; with `keep`, what it gave can be told again. What a rollback has forgotten stays forgotten."""
        log = OutputLog(lambda: session.output_path(number))
        output: bytes | None = b""
        if keep:
            log.append(Stream.STDOUT, json.dumps(_to_data(result)).encode())
            output = log.records()
            if len(output) > INLINE_BYTES:
                await asyncio.to_thread(log.write, log.take_unwritten())
                log.close()
                output = None
        told = CallResult(result.call_id, int(result.is_error), duration_s=result.duration_s)
        record = CallRecord(session.row.session_id, result.call_id, words, CallState.ENDED, started, told)
        row = CallRow(number, record, output)
        if number <= session.row.forgotten:
            return
        if keep:
            await self._journal.begin(lambda db: write_ended(db, [row]), full=False, quick=True)
        else:
            self._journal.call_ended(row, _nothing)

    async def find(self, session_id: str, call_id: str) -> CallRow | None:
        return await self._journal.find_call(session_id, call_id)


def _nothing() -> None:
    return


def told_again(log: OutputLog, call_id: str) -> ToolResult | None:
    """What was kept of it; None when it is not kept any more."""
    found = log.read(0)
    if found is None:
        return None
    data: dict[str, Any] = json.loads(found.event.data)
    data["blocks"] = tuple(_block(block) for block in data["blocks"])
    data["tier"] = ToolTier(data["tier"])
    return ToolResult(call_id, **data)


def _to_data(result: ToolResult) -> dict[str, Any]:
    return {
        "tool": result.tool,
        "tier": str(result.tier),
        "blocks": [_block_data(block) for block in result.blocks],
        "is_error": result.is_error,
        "exit_code": result.exit_code,
        "duration_s": result.duration_s,
        "truncated": result.truncated,
        "snapshot": result.snapshot,
    }


def _block_data(block: Block) -> dict[str, str]:
    if isinstance(block, TextBlock):
        return {"text": block.text}
    return {"image": base64.b64encode(block.data).decode(), "mime": block.mime}


def _block(data: dict[str, str]) -> Block:
    return TextBlock(data["text"]) if "text" in data else ImageBlock(base64.b64decode(data["image"]), data["mime"])
