"""Which session an environment has: none at first, then one for good, then none that can be used."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sandlot.model import InvalidState


class Binding:
    def __init__(self) -> None:
        self.session_id: str | None = None
        self.is_destroyed = False
        self._is_binding = False

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[None]:
        """While a session is made or looked for nobody else may begin one; after a failure, again."""
        if self.session_id is not None or self._is_binding:
            told = f"session {self.session_id}" if self.session_id else "one that is being made"
            raise InvalidState(
                f"this environment has a session already: {told}", next_step="make another environment for another one"
            )
        self._is_binding = True
        try:
            yield
        finally:
            self._is_binding = False

    def need(self) -> str:
        """The session's id. Raises InvalidState."""
        if self.session_id is None:
            raise InvalidState("this environment has no session yet", next_step="create one, or attach to one")
        if self.is_destroyed:
            raise InvalidState(f"session {self.session_id} was destroyed", next_step="make another environment")
        return self.session_id
