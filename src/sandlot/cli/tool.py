"""Call the tools that models call: list them, call one in a session, or cancel a call.

`sandlot tool ls --format openai` prints the catalogue as a model is told it. `sandlot tool call ID read_file path=a.py`
calls one; a value is text, or JSON where the parameter is no text. With --call-id a call that is repeated is done once.
"""

import argparse
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sandlot.cli.context import Context
from sandlot.model import (
    ImageBlock,
    InvalidArgument,
    Tool,
    ToolFormat,
    ToolProgress,
    ToolRequest,
    ToolResult,
)

USAGE = "tool ls [--format F] | tool call ID NAME [PARAMETER=VALUE ...] | tool cancel ID CALL"
EXIT_ERROR = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="WHAT", choices=("ls", "call", "cancel"), help="ls, call or cancel")
    parser.add_argument("session", metavar="ID", nargs="?", help="the session")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of the tool; for cancel, the id of the call")
    parser.add_argument("given", metavar="PARAMETER=VALUE", nargs="*", help="what the tool takes")
    parser.add_argument("--arguments", metavar="JSON", help="all parameters as one JSON object; - reads it from stdin")
    parser.add_argument("--format", choices=tuple(ToolFormat), help="of the catalogue, for the vendor of a model")
    parser.add_argument("--call-id", metavar="CALL", help="a call that is repeated with the same id is done once")
    parser.add_argument("-u", "--user", metavar="USER", help="with whose rights; else the session's user")
    parser.add_argument("--timeout", metavar="S", type=float, help="end it after so many seconds")
    parser.add_argument("--progress", action="store_true", help="show on stderr what it says while it works")


async def run(context: Context) -> int:
    args = context.args
    if args.action == "ls":
        async with context.host() as host:
            return _list(context, await host.tools())
    if args.session is None or args.name is None:
        raise InvalidArgument(f"{args.action} takes a session and a name", next_step=f"usage: sandlot {USAGE}")
    if args.action == "cancel":
        async with context.host() as host:
            ended = await host.cancel_tool(args.session, args.name)
        if context.screen.as_json:
            context.screen.json({"cancelled": ended})
        else:
            context.screen.line("cancelled" if ended else "it had ended already")
        return 0
    return await _call(context)


async def _call(context: Context) -> int:
    args = context.args
    whole = _whole(args.arguments)
    async with context.host() as host:
        tool = next((tool for tool in await host.tools() if tool.name == args.name), None)
        given = {**whole, **_pairs(args.given, tool)}
        request = ToolRequest(args.session, args.name, given, args.call_id, args.user, args.timeout)
        async with host.execute_tool(request) as stream:
            async for event in stream:
                if args.progress and isinstance(event, ToolProgress):
                    print(event.text, end="", file=sys.stderr, flush=True)
            result = await stream.result()
    _show(context, result)
    return EXIT_ERROR if result.is_error else 0


def _whole(text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        told: Any = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise InvalidArgument(f"--arguments is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise InvalidArgument("--arguments is no JSON object", next_step='give one such as {"path": "a.py"}')
    return cast("dict[str, Any]", told)


def _pairs(given: Sequence[str], tool: Tool | None) -> dict[str, Any]:
    """Text stays text where the tool takes text; what is no JSON is left for the tool to complain about."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {}) if tool else {}
    pairs: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidArgument(f"{word!r} is no PARAMETER=VALUE", next_step="put = between the two")
        pairs[name] = value
        if properties.get(name, {}).get("type") != "string":
            try:
                pairs[name] = json.loads(value)
            except ValueError:
                continue
    return pairs


def _list(context: Context, tools: Sequence[Tool]) -> int:
    wanted = context.args.format
    if wanted or context.screen.as_json:
        context.screen.json({"tools": [tool.to_data(ToolFormat(wanted or ToolFormat.MCP)) for tool in tools]})
    else:
        rows = [(tool.name, str(tool.tier), " ".join(tool.parameters.get("properties", {}))) for tool in tools]
        context.screen.table(("NAME", "TIER", "PARAMETERS"), rows)
    return 0


def _show(context: Context, result: ToolResult) -> None:
    if not context.screen.as_json:
        for block in result.blocks:
            text = f"({block.mime}, {len(block.data)} bytes)" if isinstance(block, ImageBlock) else block.text
            context.screen.line(text)
        return
    context.screen.json(
        {
            "call_id": result.call_id,
            "tool": result.tool,
            "tier": str(result.tier),
            "blocks": [
                {"type": "image", "mime": block.mime, "data": base64.b64encode(block.data).decode()}
                if isinstance(block, ImageBlock)
                else {"type": "text", "text": block.text}
                for block in result.blocks
            ],
            "is_error": result.is_error,
            "exit_code": result.exit_code,
            "duration_s": result.duration_s,
            "truncated": result.truncated,
            "snapshot": result.snapshot,
        }
    )
