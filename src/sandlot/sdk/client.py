"""Where sandboxes are made: the engine of one data directory, shared by everything in the process that uses it."""

import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from sandlot import registry
from sandlot.config.remote import load_remote
from sandlot.contracts import CustomTool, Host
from sandlot.model import (
    CordonRequest,
    Drained,
    Examination,
    Health,
    HostSample,
    InvalidArgument,
    InvalidState,
    MetricsRequest,
    Scope,
    SessionSample,
    check_scope,
    check_token_lifetime,
    limits,
    token_of_key,
)
from sandlot.sdk.caller import call_back
from sandlot.sdk.whole_file import write_whole

if TYPE_CHECKING:
    import asyncio

    from sandlot.sdk.engines import Release
    from sandlot.sdk.portal import Portal

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Client:
    """Made without I/O; the engine starts with the first use. Leaving it closes the engine, unless another client uses
    it too. Calls under way are broken off; sessions, and commands in the background, live on.

    With `url` it uses the server there, with `api_key` when that wants one; certificates are those that the system
    trusts. Without arguments it is told by the environment: `SANDLOT_URL` and `SANDLOT_API_KEY`, else
    `SANDLOT_DATA_DIR`, `SANDLOT_RUNTIME` and `SANDLOT_STORAGE`. A data directory that another process has is used
    through that one. A host
    of one's own, given as `host`, is used on the loop that it lives on, and not closed; with `on_portal`, on the loop
    that the SDK has for itself, and then by the sync SDK too. `tools` are tools of one's own; all clients of the same
    engine have them while it runs.
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        host: Host | None = None,
        on_portal: bool = False,
        tools: Sequence[CustomTool] = (),
    ) -> None:
        if url is not None and (data_dir is not None or host is not None):
            raise InvalidArgument("a URL is given, and another place too", next_step="give one of them")
        self._remote = load_remote(url, api_key) if data_dir is None and host is None else None
        if self._remote and tools:
            raise InvalidArgument("a server does not run tools of this program", next_step="leave out `tools`")
        self._tools = tuple(tools)
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._portal: Portal | None = registry.load("sdk", "portal")() if host is None or on_portal else None
        self._host: Host | None = host
        self._release: Release | None = None
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._closed = False

    def token(self, session_id: str, *, lifetime: float = limits.TOKEN_LIFETIME_S, scope: str = Scope.USE) -> str:
        """What reaches this session on the server, and nothing else there, for `lifetime` seconds or until the key of
        this client is revoked. With the scope `read` it changes nothing. Made here: nobody is asked. Raises
        InvalidArgument, InvalidState without a key."""
        if self._remote is None or not self._remote.api_key:
            raise InvalidState("this client has no key that a token could be of", next_step="give `url` and `api_key`")
        expires = time.time() + check_token_lifetime(lifetime)
        return token_of_key(self._remote.api_key, session_id, expires, check_scope(scope))

    # ---- for the faces -----------------------------------------------------------------------------------------

    @property
    def portal(self) -> "Portal":
        """For the sync face. Raises InvalidState for a host that lives on someone else's loop."""
        if self._portal is None:
            raise InvalidState(
                "a host of one's own cannot be used by the sync SDK", next_step="use AsyncSandbox on the host's loop"
            )
        return self._portal

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that the client belongs to."""
        return self._portal is not None and self._portal.pid != os.getpid()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Where the host lives."""
        return await (work if self._portal is None else self._portal.run_async(work))

    async def host(self) -> Host:
        """In the portal, at the beginning of all work there: closing the client breaks it off. Raises InvalidState when
        it is closed, InvalidArgument, DataDirectoryHeld, Unavailable, CapabilityNotSupported."""
        if self._closed:
            raise InvalidState("the client is closed", next_step="make another one")
        if self._portal is not None:
            self._portal.enlist(self._tasks)
        if self._host is not None:
            return self._host
        opened = await self._open()
        if self._host is None:
            self._host, self._release = opened
        else:  # someone was quicker
            await opened[1]()
        return self._host

    async def _open(self) -> "tuple[Host, Release]":
        if self._remote is None:
            opened: tuple[Host, Release] = await registry.load("sdk", "engines")().open(self._data_dir, self._tools)
            return opened
        remote = registry.load("host", "client")(self._remote.url, api_key=self._remote.api_key)
        return remote, remote.aclose

    # ---- the host ----------------------------------------------------------------------------------------------

    async def ahealth(self) -> Health:
        """How the host is, found out anew: its space, its sessions, its calls, and what failed lately."""
        return await self.run(self._health())

    def health(self) -> Health:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._health())

    async def aexamine(self, *, repair: bool = False) -> Examination:
        """Whether the journal and the machine say the same. A repair removes what is ours and nobody needs."""
        return await self.run(self._examine(repair))

    def examine(self, *, repair: bool = False) -> Examination:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._examine(repair))

    async def abackup(self, path: str | os.PathLike[str]) -> int:
        """All that the host holds, as one file of yours: whole, or as it was before. Gives its size in bytes;
        everything goes on meanwhile. `sandlot restore` makes a host of it. Raises Unavailable, LimitReached,
        PermissionDenied, and OSError for a file that cannot be written."""
        return await self.run(self._backup(path))

    def backup(self, path: str | os.PathLike[str]) -> int:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._backup(path))

    async def acordon(self, reason: str = "") -> Health:
        """The host makes no sessions from now on, also after a restart, and tells the reason to whoever asks for one.
        Sessions that are there go on. Raises InvalidArgument, Unavailable, PermissionDenied."""
        return await self.run(self._cordon(CordonRequest(reason)))

    def cordon(self, reason: str = "") -> Health:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._cordon(CordonRequest(reason)))

    async def auncordon(self) -> Health:
        """The host makes sessions again. Raises Unavailable, PermissionDenied."""
        return await self.run(self._uncordon())

    def uncordon(self) -> Health:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._uncordon())

    async def adrain(
        self,
        reason: str = "",
        *,
        timeout: float = limits.HOST_DRAIN_S,
        pause: bool = False,
        memory: bool = False,
        to: "Client | None" = None,
        on_progress: Callable[[Drained], object] | None = None,
    ) -> Drained:
        """Empty the host: it is cordoned, and its sandboxes end by themselves, are paused, or move to the host of
        another client. What is left when the time is up is told with the reason. Raises InvalidArgument, Unavailable,
        PermissionDenied."""
        return await self.run(self._drain(reason, timeout, pause, memory, to, on_progress))

    def drain(
        self,
        reason: str = "",
        *,
        timeout: float = limits.HOST_DRAIN_S,
        pause: bool = False,
        memory: bool = False,
        to: "Client | None" = None,
        on_progress: Callable[[Drained], object] | None = None,
    ) -> Drained:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._drain(reason, timeout, pause, memory, to, on_progress))

    async def ametrics(self, *, since: float = 0.0, limit: int = limits.SAMPLES_KEPT) -> list[HostSample]:
        """What the machine used in the last hour, oldest first; the last one is of now."""
        return await self.run(self._metrics(MetricsRequest(None, since, limit)))

    def metrics(self, *, since: float = 0.0, limit: int = limits.SAMPLES_KEPT) -> list[HostSample]:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._metrics(MetricsRequest(None, since, limit)))

    async def asandbox_metrics(self) -> list[SessionSample]:
        """What every sandbox uses, not older than five seconds."""
        return await self.run(self._all_metrics())

    def sandbox_metrics(self) -> list[SessionSample]:
        """The same, for who does not wait on a loop."""
        return self.portal.run(self._all_metrics())

    async def _metrics(self, request: MetricsRequest) -> list[HostSample]:
        return [*await (await self.host()).host_metrics(request)]

    async def _all_metrics(self) -> list[SessionSample]:
        return [*await (await self.host()).all_metrics()]

    async def _examine(self, repair: bool) -> Examination:
        return await (await self.host()).examine(repair=repair)

    async def _backup(self, path: str | os.PathLike[str]) -> int:
        async with (await self.host()).backup() as stream:
            return await write_whole(stream, path)

    async def _cordon(self, request: CordonRequest) -> Health:
        return await (await self.host()).cordon(request)

    async def _uncordon(self) -> Health:
        return await (await self.host()).uncordon()

    async def _drain(
        self,
        reason: str,
        timeout: float,
        pause: bool,
        memory: bool,
        to: "Client | None",
        on_progress: Callable[[Drained], object] | None,
    ) -> Drained:
        begin, told = registry.load("sdk", "drain"), Drained(0)
        elsewhere = await to.host() if to else None
        async for told in begin(await self.host(), reason, timeout, pause=pause, memory=memory, to=elsewhere):
            if on_progress is not None:
                await call_back(on_progress, told)
        return told

    async def _health(self) -> Health:
        return await (await self.host()).health()

    # ---- life --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        try:
            await self.run(self._close())
        except BaseException:  # cancelled, then raised again; it is closed all the same
            if self._portal is not None:
                self._portal.begin(self._close())
            raise

    def close(self) -> None:
        if self._portal is None:
            self._closed, self._host = True, None
        else:
            self._portal.run(self._close())

    async def _close(self) -> None:
        self._closed, self._host = True, None
        if self._portal is not None:
            await self._portal.break_off(self._tasks)
        release, self._release = self._release, None
        if release is not None:
            await release()

    def __reduce__(self) -> NoReturn:
        raise InvalidState("a sandbox cannot be sent to another process", next_step="send its id, and connect there")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_exception: object) -> None:
        if not self.is_inherited:
            self.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if not self.is_inherited:
            await self.aclose()


_default: Client | None = None


def default_client() -> Client:
    """The one of whoever gives none: told by the environment, open until the program ends."""
    global _default
    if _default is None or _default.is_inherited:
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

    return _in_place_of(function, run)


def iterate_in_portal(
    function: Callable[Concatenate[_Self, _P], AsyncGenerator[_T]],
) -> Callable[Concatenate[_Self, _P], AsyncGenerator[_T]]:
    """The same for a method that gives one thing after another."""

    def run(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> AsyncGenerator[_T]:
        return iterate(self.client, function(self, *args, **kwargs))

    return _in_place_of(function, run)


async def iterate(client: Client, inner: AsyncGenerator[_T], first: tuple[_T, ...] | None = None) -> AsyncGenerator[_T]:
    """What is made in the portal, one after another; `first` is what was taken of it before. One generator for the loop
    of the caller, because a loop that ends closes all of them at once, and none can be closed inside another."""
    try:
        item = await take(client, inner) if first is None else first
        while item:
            yield item[0]
            item = await take(client, inner)
    except BaseException:  # left early, then raised again; one that has ended is closed
        await client.run(inner.aclose())
        raise


async def take(client: Client, inner: AsyncGenerator[_T]) -> tuple[_T, ...]:
    """The next one, or nothing at the end."""

    async def step() -> tuple[_T, ...]:
        await client.host()
        try:
            return (await anext(inner),)
        except StopAsyncIteration:
            return ()

    return await client.run(step())


def _in_place_of(function: Callable[..., object], wrapper: Callable[_P, _T]) -> Callable[_P, _T]:
    wrapper.__doc__, wrapper.__name__, wrapper.__qualname__ = (
        function.__doc__,
        function.__name__,
        function.__qualname__,
    )
    wrapper.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess] - for whoever asks for the signature
    return wrapper
