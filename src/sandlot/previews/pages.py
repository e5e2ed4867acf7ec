"""What a visitor is told when there is no answer of a program: as a page, as a document or as text."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from html import escape
from typing import Any, Final

from sandlot.model import (
    CapabilityNotSupported,
    DeadlineExceeded,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    RollbackInProgress,
    SandlotError,
    SessionDestroying,
    SessionFailed,
    SessionNotFound,
    SessionPaused,
    Unavailable,
)
from sandlot.previews.heads import Header

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# The first that fits.
_STATUSES: Final = (
    (SessionNotFound, 404, "This sandbox is gone"),
    (NotFound, 502, "Nothing listens here yet"),
    (SessionPaused, 503, "This sandbox is paused"),
    ((SessionDestroying, RollbackInProgress), 503, "This sandbox is busy"),
    (SessionFailed, 502, "This sandbox has failed"),
    (LimitReached, 503, "Too many connections"),
    (DeadlineExceeded, 504, "No answer in time"),
    (InvalidArgument, 400, "This request cannot be passed on"),
    (PermissionDenied, 403, "This is not allowed"),
    (CapabilityNotSupported, 501, "This sandbox shows no ports"),
    (Unavailable, 502, "No answer that could be read"),
)
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color:#222;"
    "background:#fff}h1{font-size:1.4rem}p{color:#555}code{background:#eee;padding:0 .2rem}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}p{color:#aaa}code{background:#333}}"
)
_STRICT: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


def status_of(error: SandlotError) -> tuple[int, str]:
    return next(((status, title) for kind, status, title in _STATUSES if isinstance(error, kind)), (502, "No answer"))


async def tell(send: Send, scope: Mapping[str, Any], error: SandlotError, headers: tuple[Header, ...] = ()) -> None:
    status, title = status_of(error)
    more = (*headers, (b"retry-after", b"2")) if status == 503 else headers
    step = error.next_step or ("start a server in the sandbox, then reload" if isinstance(error, NotFound) else "")
    await say(send, scope, status, error.code, title, error.message, step, more)


async def refuse(send: Send, scope: Mapping[str, Any]) -> None:
    """The same for a session that nobody has. Programs get the document that every refusal of the server is."""
    title, step = "This preview needs a token", "`sandlot preview ID PORT` gives an address with a new one"
    why = "there is none in this request that is good for it now"
    asks: tuple[Header, ...] = ((b"www-authenticate", b"Bearer"),)
    if b"text/html" in _accept(scope):
        await _answer(send, scope, 401, b"text/html; charset=utf-8", _page(title, why, step), asks)
        return
    text = json.dumps({"code": "unauthenticated", "message": f"{title[:1].lower()}{title[1:]}: {why} ({step})"})
    await _answer(send, scope, 401, b"application/json", text, asks)


async def say(
    send: Send,
    scope: Mapping[str, Any],
    status: int,
    code: str,
    title: str,
    message: str,
    next_step: str = "",
    headers: tuple[Header, ...] = (),
) -> None:
    accept = _accept(scope)
    if b"text/html" in accept:
        kind, text = b"text/html; charset=utf-8", _page(title, message, next_step)
    elif b"application/json" in accept:
        document = {"code": code, "message": message} | ({"next_step": next_step} if next_step else {})
        kind, text = b"application/json", json.dumps(document)
    else:
        kind, text = b"text/plain; charset=utf-8", f"{title}: {message}{f' ({next_step})' if next_step else ''}\n"
    await _answer(send, scope, status, kind, text, headers)


def _accept(scope: Mapping[str, Any]) -> bytes:
    return next((value for name, value in scope["headers"] if name == b"accept"), b"").lower()


async def _answer(
    send: Send, scope: Mapping[str, Any], status: int, kind: bytes, text: str, headers: tuple[Header, ...]
) -> None:
    body = text.encode("utf-8", "replace")
    found = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *_STRICT, *headers]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _told(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text[:1].upper() + text[1:]))


def _page(title: str, message: str, next_step: str) -> str:
    step = f"<p>{_told(next_step)}.</p>" if next_step else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{_told(message)}.</p>{step}</html>\n"
    )
