"""How whoever waits for a tool hears what it says."""

from collections.abc import Awaitable
from typing import cast

from sandlot.contracts import OnProgress
from sandlot.model import ToolProgress


async def tell(on_progress: OnProgress, said: ToolProgress) -> None:
    result = on_progress(said)
    if isinstance(result, Awaitable):
        await cast("Awaitable[object]", result)
