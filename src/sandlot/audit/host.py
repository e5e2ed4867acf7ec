"""A host with the same verbs, that writes down who asked for what before it is done, and how it ended."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from sandlot.audit.rules import PLACES, TEXT_CHARS_MAX, TOLD, UNRECORDED
from sandlot.audit.streams import COUNTED
from sandlot.audit.typed import Typed
from sandlot.audit.who import WHO
from sandlot.contracts import Host
from sandlot.model import SandlotError, TerminalInput

_Redact = Callable[[str], str]


class Log(Protocol):
    def record(self, fields: Mapping[str, Any]) -> int: ...


class AuditedHost:
    """`redact` takes out what may be a secret of what is told."""

    def __init__(self, host: Host, log: Log, redact: _Redact, typed: Typed) -> None:
        self._host = host
        self._typed = typed
        self._writer = _Writer(log, redact)

    def __getattr__(self, verb: str) -> Any:
        """Made when it is first asked for, and kept."""
        behind = getattr(self._host, verb)
        contract = getattr(Host, verb, None)
        if contract is not None and verb not in UNRECORDED:
            recorded = _awaited if inspect.iscoroutinefunction(contract) else _entered
            behind = recorded(verb, behind, self._writer)
        setattr(self, verb, behind)
        return behind

    async def write_terminal(self, request: TerminalInput) -> None:
        """Once for all that somebody types without a pause."""
        who = WHO.get()
        self._typed.began(who, request)
        await self._host.write_terminal(request)
        self._typed.wrote(who, request)


def audited(host: Host, log: Log, redact: _Redact, typed: Typed | None = None) -> Host:
    """`typed` is looked after by whoever gives it."""
    return cast("Host", AuditedHost(host, log, redact, typed or Typed(log)))


def _awaited(verb: str, behind: Callable[..., Any], writer: "_Writer") -> Callable[..., Any]:
    async def ask(*given: Any, **named: Any) -> Any:
        asked = writer.asked(verb, given, named)
        try:
            answer = await behind(*given, **named)
        except BaseException as error:  # written down, then raised again
            writer.ended(asked, verb, error)
            raise
        writer.done(asked, verb, answer)
        return answer

    return ask


def _entered(verb: str, behind: Callable[..., Any], writer: "_Writer") -> Callable[..., Any]:
    def enter(*given: Any, **named: Any) -> "_Entered":
        return _Entered(verb, writer, behind, given, named)

    return enter


class _Entered:
    """From its beginning to its end."""

    __slots__ = ("_asked", "_behind", "_context", "_given", "_named", "_stream", "_verb", "_who", "_writer")

    def __init__(self, verb: str, writer: "_Writer", behind: Callable[..., Any], given: Any, named: Any) -> None:
        self._verb, self._writer, self._behind = verb, writer, behind
        self._given, self._named = given, named
        self._stream: Any = None
        self._asked = 0
        self._who = ""

    async def __aenter__(self) -> Any:
        self._who = WHO.get()  # it may be left by another task
        self._asked = self._writer.asked(self._verb, self._given, self._named)
        try:
            self._context: AbstractAsyncContextManager[Any] = self._behind(*self._given, **self._named)
            self._stream = await self._context.__aenter__()
        except BaseException as error:  # written down, then raised again
            self._writer.ended(self._asked, self._verb, error)
            raise
        if counted := COUNTED.get(self._verb):
            self._stream = counted(self._stream)
        return self._stream

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if isinstance(error, SandlotError):
            self._writer.ended(self._asked, self._verb, error, self._who)
        else:
            self._writer.done(self._asked, self._verb, self._stream, self._who)
        return await self._context.__aexit__(kind, error, trace)


class _Writer:
    def __init__(self, log: Log, redact: _Redact) -> None:
        self._log = log
        self._redact = redact

    def asked(self, verb: str, given: Sequence[Any], named: Mapping[str, Any]) -> int:
        """The number of the record."""
        first = given[0] if given else next(iter(named.values()), None)
        session = named.get("session_id") or (first if isinstance(first, str) else getattr(first, "session_id", None))
        fields: dict[str, Any] = {"who": WHO.get(), "verb": verb, "phase": "asked"}
        if session:
            fields["session"] = str(session)[:TEXT_CHARS_MAX]
        detail = self._detail(first)
        if verb in PLACES:
            named = {**dict(zip(PLACES[verb], given, strict=False)), **named}
        for name, value in named.items():
            if name in TOLD:
                detail[name] = self._text(value)
        if detail:
            fields["detail"] = detail
        return self._log.record(fields)

    def done(self, asked: int, verb: str, answer: Any, who: str | None = None) -> None:
        fields: dict[str, Any] = {"who": who or WHO.get(), "verb": verb, "phase": "done", "of": asked}
        several = _several(answer)
        if session := getattr(cast("object", answer), "session_id", None):
            fields["session"] = session
        detail = self._detail(answer)
        if made := [one.session_id for one in several[:TEXT_CHARS_MAX] if hasattr(one, "session_id")]:
            detail["made"] = made
        if detail:
            fields["detail"] = detail
        self._log.record(fields)

    def ended(self, asked: int, verb: str, error: BaseException, who: str | None = None) -> None:
        code = error.code if isinstance(error, SandlotError) else type(error).__name__
        self._log.record({"who": who or WHO.get(), "verb": verb, "phase": "failed", "of": asked, "error": code})

    def _detail(self, value: Any) -> dict[str, Any]:
        kind = cast("type[Any]", type(value))
        names = _told.get(kind)
        if names is None:
            names = _told[kind] = tuple(name for name in TOLD if _has(kind, name))
        return {name: self._text(got) for name in names if (got := getattr(value, name, None)) is not None}

    def _text(self, value: Any) -> Any:
        if isinstance(value, int | float):
            return value
        if isinstance(value, bytes):
            return len(value)
        if isinstance(value, tuple | list):
            value = " ".join(str(one) for one in cast("Sequence[Any]", value)[:TEXT_CHARS_MAX])
        text = str(value)
        return self._redact(text[: 2 * TEXT_CHARS_MAX])[:TEXT_CHARS_MAX] if text else None


_told: dict[type, tuple[str, ...]] = {}


def _several(answer: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", answer) if isinstance(answer, list | tuple) else ()


def _has(kind: type, name: str) -> bool:
    found = inspect.getattr_static(kind, name, None)
    fields = getattr(kind, "__dataclass_fields__", {})
    return name in fields or isinstance(found, property)
