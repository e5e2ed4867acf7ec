"""The tools of git. Always contained: a repository tells git what to run, and whoever wrote it is not known.

A word that git would take for an option is refused where a name is asked for, and cannot be one behind
`--end-of-options`. Nothing asks for a password, and nothing waits for a pager or an editor.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sandlot.model import TextBlock, Tool, ToolProblem, ToolTier, limits
from sandlot.tools.contained.command import Command, ContainedTool, Ended, why_ended
from sandlot.tools.outcome import Outcome
from sandlot.tools.schemas import count, flag, parameters, text, texts

_Plan = Callable[[Mapping[str, Any]], tuple[str, ...]]
_GIT = ("git", "--no-pager", "-c", "color.ui=false", "-c", "core.quotePath=false", "-c", "advice.detachedHead=false")
_ENVS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
}
_LOG_FORMAT = "%H %an %aI %s"
_PLAIN = ("--no-ext-diff", "--no-textconv")


def _name(arguments: Mapping[str, Any], parameter: str, default: str = "") -> tuple[str, ...]:
    """One word, or none: never an option."""
    value: str = arguments.get(parameter, default)
    if value.startswith("-"):
        raise ToolProblem(f"{parameter} {value[:64]!r} starts with -: git would take it for an option")
    return (value,) if value else ()


def _paths(arguments: Mapping[str, Any], parameter: str = "path") -> tuple[str, ...]:
    value = arguments.get(parameter)
    return () if value is None else ("--", *([value] if isinstance(value, str) else value))


def _status(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    del arguments
    return ("status", "--porcelain=v1")


def _diff(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    staged = ("--staged",) if arguments.get("staged") else ()
    return ("diff", *_PLAIN, *staged, "--end-of-options", *_name(arguments, "ref"), *_paths(arguments))


def _log(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    number = arguments.get("n", 10)
    head = ("log", f"--max-count={number}", f"--format={_LOG_FORMAT}", "--end-of-options")
    return (*head, *_name(arguments, "ref"), *_paths(arguments))


def _show(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return ("show", *_PLAIN, "--end-of-options", *_name(arguments, "ref", "HEAD"))


def _add(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return ("add", *_paths(arguments, "paths"))


def _commit(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    if not arguments["message"].strip():
        raise ToolProblem("message is blank")
    return ("commit", f"--message={arguments['message']}")


def _words(verb: str) -> _Plan:
    return lambda arguments: (verb, *arguments.get("args", ()))


def _tell(ended: Ended) -> Outcome:
    result = ended.result
    why = why_ended(result)
    parts = (ended.stdout.strip("\n"), ended.stderr.strip(), f"({why})" if why else "")
    text = "\n".join(filter(None, parts)) or "(no output)"
    if result.exit_code:
        text += f"\nexit code {result.exit_code}"
    return Outcome((TextBlock(text),), result.exit_code != 0, result.exit_code, ended.truncated)


def _tool(
    name: str, about: str, schema: dict[str, Any], words: _Plan, *, changes: bool = True, far: bool = False
) -> ContainedTool:
    timeout_s = limits.TOOL_TIMEOUT_S if far else limits.TOOL_GIT_TIMEOUT_S

    def plan(arguments: Mapping[str, Any]) -> Command:
        return Command((*_GIT, *words(arguments)), _ENVS, timeout_s)

    return ContainedTool(Tool(name, about, schema, ToolTier.CONTAINED, changes=changes), plan, _tell)


_REF = text("A commit, branch or tag.")
_PATH = text("Only this file or directory.")
_ARGS = texts("The words behind the verb, one each.")

GIT_TOOLS = (
    _tool("git_status", "What changed in the repository, in the short format.", parameters(), _status, changes=False),
    _tool(
        "git_diff",
        "The changes of the working tree, or with staged those that will be committed; against ref, if it is given.",
        parameters(ref=_REF, staged=flag("What was added, instead of what was not."), path=_PATH),
        _diff,
        changes=False,
    ),
    _tool(
        "git_log",
        "The newest commits, one per line: hash, author, date, subject.",
        parameters(n=count("How many.", 1, 100, 10), ref=_REF, path=_PATH),
        _log,
        changes=False,
    ),
    _tool("git_show", "A commit and what it changed.", parameters(ref=_REF), _show, changes=False),
    _tool("git_add", "Put files into the next commit.", parameters("paths", paths=texts("Which.")), _add),
    _tool(
        "git_commit", "Commit what was added.", parameters("message", message=text("What it does and why.")), _commit
    ),
    _tool("git_clone", "Clone a repository.", parameters("args", args=_ARGS), _words("clone"), far=True),
    _tool("git_fetch", "Fetch from a remote repository.", parameters(args=_ARGS), _words("fetch"), far=True),
    _tool("git_pull", "Fetch and merge.", parameters(args=_ARGS), _words("pull"), far=True),
    _tool("git_push", "Push commits to a remote repository.", parameters(args=_ARGS), _words("push"), far=True),
)
