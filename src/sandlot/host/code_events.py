"""From the records of a run to what its readers are told. Nothing that came from the session is believed: it is bounded
and well-formed here, or it is left out."""

import binascii
import codecs
import json
import re
from collections.abc import Iterable
from typing import Any, cast

from sandlot.host.code_frames import TEXT, json_object
from sandlot.host.code_story import DROPPED, RESULT, SENT, Record
from sandlot.model import (
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    CodeStarted,
    CodeStatus,
    CodeValue,
    Stream,
    is_json_media,
    is_text_media,
    limits,
)

STREAMS = {".": Stream.STDOUT, "!": Stream.STDERR}  # the flag of a record of text
VALUE, ERROR = "V", "E"
_FORMS_MAX = 64
_MEDIA = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,62}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,62}", re.ASCII)


class Telling:
    """Of one reader."""

    def __init__(self, execution_id: str, context_id: str) -> None:
        self._execution_id = execution_id
        self._context_id = context_id
        self._parts: list[bytes] = []
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in Stream}

    def events(self, record: Record) -> Iterable[CodeEvent]:
        kind = record.kind
        if kind == TEXT:
            stream = STREAMS.get(record.flag, Stream.STDOUT)
            if text := self._decoders[stream].decode(record.data):
                yield CodeOutput(stream, text)
        elif kind in (VALUE, ERROR):
            yield from self._message(record)
        elif kind == DROPPED:
            self._parts = []
        elif kind == SENT:
            yield CodeStarted(self._execution_id, self._context_id, int(json_object(record.data)["count"]))
        elif kind == RESULT:
            for stream, decoder in self._decoders.items():
                if text := decoder.decode(b"", final=True):
                    yield CodeOutput(stream, text)
            yield self.result(record)

    def result(self, record: Record) -> CodeResult:
        told = json_object(record.data)
        return CodeResult(
            self._execution_id,
            self._context_id,
            int(told["count"]),
            CodeStatus(told["status"]),
            float(told["duration_s"]),
            bool(told["truncated"]),
            str(told["reason"]),
        )

    def _message(self, record: Record) -> Iterable[CodeEvent]:
        if record.flag in ".<":
            self._parts = []
        elif not self._parts:
            return  # of one whose beginning was left out
        self._parts.append(record.data)
        if record.flag in ".>":
            data, self._parts = b"".join(self._parts), []
            event = value_of(data) if record.kind == VALUE else error_of(data)
            if event is not None:
                yield event


def value_of(data: bytes) -> CodeValue | None:
    told = json_object(data)
    found: object = told.get("data")
    if not isinstance(found, dict):
        return None
    forms: dict[str, str] = {}
    room = limits.CODE_VALUE_BYTES_MAX
    for media, form in cast("dict[Any, Any]", found).items():
        if len(forms) >= _FORMS_MAX or not isinstance(media, str) or not _MEDIA.fullmatch(media):
            continue
        text = _form(media, form)
        if text is None or (size := len(text.encode())) > room:
            continue
        forms[media] = text
        room -= size
    return CodeValue(forms, is_main=told.get("main") is True) if forms else None


def _form(media: str, form: object) -> str | None:
    if not isinstance(form, str):
        return None
    if is_text_media(media):
        return _clean(form)
    try:
        if is_json_media(media):
            json.loads(form)
            return _clean(form)
        form = form.replace("\n", "")
        binascii.a2b_base64(form, strict_mode=True)
    except (ValueError, RecursionError):
        return None
    return form


def error_of(data: bytes) -> CodeError | None:
    told = json_object(data)
    name, value, traceback = (told.get(key) for key in ("name", "value", "traceback"))
    if not (isinstance(name, str) and isinstance(value, str) and isinstance(traceback, str)):
        return None
    return CodeError(_short(name, 1000), _short(value), _short(traceback))


def _short(text: str, most: int = limits.CODE_TEXT_BYTES_MAX) -> str:
    data = _clean(text[:most]).encode()
    return data[:most].decode(errors="ignore")


def _clean(text: str) -> str:
    """Half a character of JSON is none of UTF-8."""
    return text if text.isascii() else text.encode(errors="replace").decode()
