"""Tools of an environment that break a promise are told by the check of that promise."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.conformance import TOOLS_OF_ENVIRONMENTS, Verdict, conform_environment_tools
from sandlot.contracts import ExecutionEnvironment, OnProgress
from sandlot.environments.local import LocalEnvironment, LocalProvider
from sandlot.model import TextBlock, ToolRequest, ToolResult, Unavailable


class Broken(LocalEnvironment):
    """Right in everything; each mutation is wrong in one thing."""

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        return await super().execute_tool(self.asked(request), on_progress)

    def asked(self, request: ToolRequest) -> ToolRequest:
        return request

    def changed(self, request: ToolRequest, **arguments: object) -> ToolRequest:
        return replace(request, arguments={**request.arguments, **arguments})


class PutsNamesIntoScripts(Broken):
    def asked(self, request: ToolRequest) -> ToolRequest:
        path = request.arguments.get("path")
        if not isinstance(path, str):
            return request
        return self.changed(request, path=re.sub(r"\$\(.*\)|`.*`|\n", "", path) or ".")


class ShowsBytesAsText(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        result = await super().execute_tool(request, on_progress)
        if result.is_error and "is binary" in result.text:
            return replace(result, is_error=False, blocks=(TextBlock("needle"),))
        return result


class CutsAndSaysNothing(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        return replace(await super().execute_tool(request, on_progress), truncated=False)


class RaisesForAMissingProgram(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        result = await super().execute_tool(request, on_progress)
        if result.exit_code == 127:
            raise Unavailable("there is no such program")
        return result


class ReplacesLinks(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        if request.tool == "write_file" and request.arguments.get("path") == "link":
            remove = replace(request, tool="bash", arguments={"cmd": "rm link"})
            await super().execute_tool(remove)
        return await super().execute_tool(request, on_progress)


class LosesEdits(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        if request.tool != "edit_file" or not str(request.arguments.get("old_string")).startswith("<"):
            return await super().execute_tool(request, on_progress)
        look = replace(request, tool="bash", arguments={"cmd": f"cat {request.arguments['path']}"})
        before = (await super().execute_tool(look)).text.rpartition("\nexit code")[0] + "\n"
        await asyncio.sleep(0.01)
        after = before.replace(request.arguments["old_string"], request.arguments["new_string"])
        write = {"path": request.arguments["path"], "content": after}
        return await super().execute_tool(replace(request, tool="write_file", arguments=write))


class WaitsForPipes(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        if request.tool == "read_file":
            shown = replace(request, tool="bash", arguments={"cmd": f"timeout 1 cat {request.arguments.get('path')}"})
            return await super().execute_tool(shown)
        return await super().execute_tool(request, on_progress)


class FindsHiddenFiles(Broken):
    def asked(self, request: ToolRequest) -> ToolRequest:
        return self.changed(request, hidden=True) if request.tool in ("glob", "grep") else request


class IgnoresTheTimeLimit(Broken):
    def asked(self, request: ToolRequest) -> ToolRequest:
        return self.changed(request, timeout_ms=5000, cmd="sleep 1") if "timeout_ms" in request.arguments else request


MUTATIONS: tuple[tuple[type[Broken], str], ...] = (
    (PutsNamesIntoScripts, "any_name_is_a_name"),
    (ShowsBytesAsText, "bytes_that_are_no_text_are_told_as_such"),
    (CutsAndSaysNothing, "what_is_large_is_cut_and_said_so"),
    (RaisesForAMissingProgram, "a_program_that_is_missing_is_a_result"),
    (ReplacesLinks, "a_write_goes_where_the_file_is"),
    (LosesEdits, "no_edit_of_many_at_once_is_lost"),
    (WaitsForPipes, "what_is_no_file_is_told_and_not_waited_for"),
    (FindsHiddenFiles, "files_are_found_by_name_and_by_content"),
    (IgnoresTheTimeLimit, "a_command_is_told_with_its_streams_and_its_end"),
)


@pytest.mark.parametrize(("mutation", "name"), MUTATIONS, ids=[kind.__name__ for kind, _name in MUTATIONS])
async def test_each_mutation_fails_its_own_check(tmp_path: Path, mutation: type[Broken], name: str) -> None:
    provider = LocalProvider(tmp_path)
    make: Callable[[], ExecutionEnvironment] = lambda: mutation(provider)  # noqa: E731 - a name for its type
    checks = [check for check in TOOLS_OF_ENVIRONMENTS if check.name == name]
    outcomes = [one async for one in conform_environment_tools(make, checks)]
    assert [one.verdict for one in outcomes] == [Verdict.FAILED]


async def test_without_a_mutation_every_one_of_these_checks_passes(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    names = {name for _kind, name in MUTATIONS}
    checks = [check for check in TOOLS_OF_ENVIRONMENTS if check.name in names]
    outcomes = [one async for one in conform_environment_tools(lambda: Broken(provider), checks)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
