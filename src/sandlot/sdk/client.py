"""Where sandboxes are made: the engine of one data directory, shared by everything in the process that uses it."""

import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from sandlot import registry
from sandlot.config.settings import Settings, load
from sandlot.contracts import Host
from sandlot.model import InvalidState

if TYPE_CHECKING:
    from sandlot.sdk.portal import Portal

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Client:
    """Made without I/O; the engine starts with the first use. Leaving it closes the engine, and sessions live on.

    Without arguments it is told by the environment (`SANDLOT_DATA_DIR`, `SANDLOT_RUNTIME`, `SANDLOT_STORAGE`). A host
    of one's own, given as `host`, is used on the loop that it lives on.
    """

    def __init__(self, *, data_dir: str | os.PathLike[str] | None = None, host: Host | None = None) -> None:
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._given = host
        self._portal: Portal | None = None if host else registry.load("sdk", "portal")()
        self._host: Host | None = host
        self._settings: Settings | None = None
        self._closed = False

    # ---- for the faces -----------------------------------------------------------------------------------------

    @property
    def portal(self) -> "Portal":
        """For the sync face. Raises InvalidState for a host that lives on someone else's loop."""
        if self._portal is None:
            raise InvalidState(
                "a host of one's own cannot be used by the sync SDK", next_step="use AsyncSandbox on the host's loop"
            )
        return self._portal

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Where the host lives."""
        return await (work if self._portal is None else self._portal.run_async(work))

    async def host(self) -> Host:
        """In the portal. Raises InvalidArgument, DataDirectoryHeld, Unavailable."""
        if self._host is not None:
            return self._host
        if self._closed:
            raise InvalidState("the client is closed", next_step="make another one")
        settings = load()
        if self._data_dir is not None:
            settings = replace(settings, data=self._data_dir.absolute())
        host: Host = await registry.load("sdk", "engines")().open(settings)
        if self._host is None:
            self._host, self._settings = host, settings
        else:  # someone was quicker
            await registry.load("sdk", "engines")().release(settings.data)
        return self._host

    # ---- life --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        await self.run(self._close())

    def close(self) -> None:
        self.portal.run(self._close())

    async def _close(self) -> None:
        self._closed = True
        if self._host is not None and self._settings is not None:
            self._host = None
            await registry.load("sdk", "engines")().release(self._settings.data)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()


_default: Client | None = None


def _after_fork() -> None:
    global _default
    _default = None


os.register_at_fork(after_in_child=_after_fork)


def default_client() -> Client:
    """The one of whoever gives none: told by the environment, open until the program ends."""
    global _default
    if _default is None:
        _default = Client()
    return _default


class _Placed(Protocol):
    @property
    def client(self) -> Client: ...


_Self = TypeVar("_Self", bound=_Placed)


def in_portal(
    function: Callable[Concatenate[_Self, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Self, _P], Coroutine[Any, Any, _T]]:
    """A method that is written as if it ran beside the engine, and does, wherever it is called from."""

    async def run(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.client.run(function(self, *args, **kwargs))

    run.__doc__, run.__name__, run.__qualname__ = function.__doc__, function.__name__, function.__qualname__
    run.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess] - for whoever asks for the signature
    return run


def iterate_in_portal(
    function: Callable[Concatenate[_Self, _P], AsyncGenerator[_T]],
) -> Callable[Concatenate[_Self, _P], AsyncGenerator[_T]]:
    """The same for a method that gives one thing after another."""

    async def iterate(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> AsyncGenerator[_T]:
        inner = function(self, *args, **kwargs)

        async def step() -> tuple[bool, _T | None]:
            try:
                return True, await anext(inner)
            except StopAsyncIteration:
                return False, None

        try:
            while True:
                more, item = await self.client.run(step())
                if not more:
                    return
                yield item  # pyright: ignore[reportReturnType] - there is one when there is more
        finally:
            await self.client.run(inner.aclose())

    iterate.__doc__, iterate.__name__, iterate.__qualname__ = (
        function.__doc__,
        function.__name__,
        function.__qualname__,
    )
    iterate.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]
    return iterate
