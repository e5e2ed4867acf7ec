"""Tell who asked for what in which session, or verify that nothing of it was changed, moved or taken away.

`sandlot audit log` tells the records, oldest first, `--json` one document a line. `sandlot audit verify` goes through
all of them: 0 when each is what was written and none is missing. What it tells of the last one can be kept elsewhere;
`--known N:HASH` then asks whether that one is still there."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sandlot import registry
from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.screen import printable
from sandlot.model import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from sandlot.wiring.auditing import AuditReader, Verdict
    from sandlot.wiring.identity import KeyStore

USAGE = "audit log [--session ID] [--who KEY] [--after N] | audit verify [--known N:HASH]"
_KNOWN = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="WHAT", choices=("log", "verify"), help="what to do")
    parser.add_argument("--session", metavar="ID", help="only of this session, by its name on the host")
    parser.add_argument("--who", metavar="KEY", help="only of this key, by its name or id, or `local`")
    parser.add_argument("--after", metavar="N", help="only those behind the record with this number")
    parser.add_argument("--known", metavar="N:HASH", help="a record that must be there, as `verify` once told it")


async def run(context: Context) -> int:
    args = context.args
    if context.args.url is not None:
        raise InvalidArgument("the audit log is of this machine", next_step="leave out --url")
    settings = context.settings
    reader: AuditReader = registry.load("server", "audit")(settings.data, settings.audit_anchor)
    try:
        if args.action == "verify":
            return _verify(context, reader.verify(_known(args.known)))
        names = {info.key_id: info.name for info in _keys(context).list()}
        for record in _wanted(context, reader.lines(), names):
            context.screen.line(json.dumps(record) if context.screen.as_json else _text(record, names))
    except OSError as error:
        raise Unavailable(f"the audit log cannot be read: {error}", next_step="ask whoever runs the engine") from error
    return 0


def _keys(context: Context) -> "KeyStore":
    keys: KeyStore = registry.load("server", "keys")(context.settings.data)
    return keys


def _known(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    match = _KNOWN.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"--known: {text[:80]!r} is no record", next_step="give N:HASH, as `audit verify` tells it"
        )
    return int(match[1]), match[2]


def _verify(context: Context, verdict: "Verdict") -> int:
    screen = context.screen
    if screen.as_json:
        screen.json(
            {
                "is_whole": verdict.is_whole,
                "records": verdict.records,
                "first": verdict.first,
                "last": verdict.last.number,
                "hash": verdict.last.hash,
                "findings": list(verdict.findings),
            }
        )
        return 0 if verdict.is_whole else 1
    for finding in verdict.findings:
        screen.line(f"{screen.mark('broken', 'missing')}  {finding}")
    if verdict.is_whole:
        told = f"{verdict.records} records are what was written" if verdict.records else "nothing was recorded yet"
        screen.line(told + (f"; the last is {verdict.last.number}:{verdict.last.hash}" if verdict.records else ""))
    else:
        screen.line(f"{verdict.records} records, and they are not all that was written")
    return 0 if verdict.is_whole else 1


def _wanted(context: Context, lines: Iterator[bytes], names: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """The end of an act names no session: it is of the one that its beginning names."""
    args = context.args
    after = 0 if args.after is None else values.count("--after", args.after)
    begun: set[int] = set()
    for line in lines:
        try:
            record: Mapping[str, Any] = json.loads(line)
            number, who = record["n"], str(record.get("who", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # `verify` tells of it
        if number <= after:
            continue
        key_id = who.partition("~")[0]
        if args.who is not None and args.who not in (who, key_id, names.get(key_id)):
            continue
        if args.session is not None:
            if record.get("session") != args.session and record.get("of") not in begun:
                continue
            begun.add(number)
        yield record


def _text(record: Mapping[str, Any], names: Mapping[str, str]) -> str:
    moment = datetime.fromtimestamp(float(record.get("at", 0)), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    who = str(record.get("who", ""))
    key_id, _, token = who.partition("~")
    told = names.get(key_id, key_id) + (f" ({token if token == 'preview' else 'token'})" if token else "")
    told_of: Mapping[str, Any] = record.get("detail", {})
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in told_of.items())
    of = f"of {record['of']}" if "of" in record else ""
    parts = (record.get("session", ""), of, record.get("error", ""), words)
    line = f"{record['n']}  {moment}  {told}  {record.get('verb', '')} {record.get('phase', '')}"
    return printable("  ".join([line, *(str(part) for part in parts if part)]))
