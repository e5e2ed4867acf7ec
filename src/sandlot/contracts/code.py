"""The part of the waist that is about code in contexts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.model import CodeContext, CodeEvent, CodeRequest, CodeResult, ContextRequest


class CodeStream(Protocol):
    """One run, live or over. Given out by a context manager: leaving it interrupts a run that was not detached."""

    @property
    def execution_id(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[CodeEvent]:
        """Started, what is printed and shown in order, an error if it fails, and last the result.

        Raises Unavailable when the engine is closed; the run goes on and can be read again.
        """
        ...

    async def result(self) -> CodeResult:
        """Wait for the end without looking. Raises as reading does."""
        ...


class Code(Protocol):
    """Contexts: programs of the session that run code and remember what it did. They outlive the engine, and end with
    the session, with a rollback, and when memory runs out; then they are lost, and say so.

    Every verb raises InvalidArgument, SessionNotFound, SessionPaused, SessionDestroying, SessionFailed, InvalidState,
    Unavailable; those that name a context NotFound.
    """

    async def create_context(self, request: ContextRequest) -> CodeContext:
        """It answers when this returns. A known id gives what is there. Raises CapabilityNotSupported when the session
        has no program for the language, LimitReached, DeadlineExceeded when it does not answer."""
        ...

    async def contexts(self, session_id: str) -> Sequence[CodeContext]:
        """Oldest first; also those that are lost, until they are deleted or the engine ends."""
        ...

    async def interrupt_context(self, session_id: str, context_id: str) -> bool:
        """As Ctrl-C does; what waits behind the run goes on. False when nothing runs."""
        ...

    async def restart_context(self, session_id: str, context_id: str) -> CodeContext:
        """It forgets everything; what runs is lost. Raises as creating does."""
        ...

    async def delete_context(self, session_id: str, context_id: str) -> None:
        """What runs in it is lost."""
        ...

    def run_code(self, request: CodeRequest) -> AbstractAsyncContextManager[CodeStream]:
        """One after another in each context. A run whose id is known is read again, and not done again. The default
        context of a language is made anew when it was lost: the run that it was lost with has said so.

        Entering raises what creating a context raises, InvalidState when a context that is named is lost, LimitReached
        when too many wait for it.
        """
        ...

    def attach_code(self, session_id: str, execution_id: str) -> AbstractAsyncContextManager[CodeStream]:
        """Read a run again, from its beginning, as long as it is kept. Leaving never interrupts it."""
        ...
