"""`bash`: one command by itself, or in a shell that remembers.

A shell that remembers is no process: what a command leaves behind (directory, variables, functions, options) is written
to a file of the session when it ends and read before the next. So it outlives engines and hangs on nothing, each
command has its own output, exit code and time, and a rollback brings back the shell of that moment.
"""

import re
from collections.abc import Mapping
from typing import Any

from sandlot.model import LimitHit, TextBlock, Tool, ToolProblem, ToolTier, limits
from sandlot.tools.contained.command import Command, ContainedTool, Ended, why_ended
from sandlot.tools.outcome import Outcome
from sandlot.tools.schemas import count, parameters, text

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_ONCE = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'
# `exit` is remembered too: hence the trap. What cannot be set again (UID, PPID and such) complains, and is not heard.
_REMEMBERING = r"""
__sandlot_file="${HOME:-/tmp}/.local/state/sandlot/shells/$1"
mkdir -p -- "${__sandlot_file%/*}" || { echo 'the shell cannot be remembered: HOME cannot be written' >&2; exit 126; }
shopt -s expand_aliases
[ ! -f "$__sandlot_file" ] || . "$__sandlot_file" 2>/dev/null
__sandlot_save() {
  local status=$?
  local file="${HOME:-/tmp}/.local/state/sandlot/shells/$1"
  [ "$BASHPID" = "$$" ] && [ -z "$__sandlot_saved" ] || return $status
  __sandlot_saved=1
  { unset __sandlot_saved; declare -p; declare -f; alias -p; printf 'cd -- %q\n' "$PWD"; shopt -p; set +o; } \
    >"$file.$$" 2>/dev/null
  mv -f -- "$file.$$" "$file"
  __sandlot_saved=1
  return $status
}
trap "__sandlot_save $1" EXIT
unset __sandlot_saved
eval "set --; $2"
exit
"""


def remembering(shell: str, cmd: str) -> tuple[str, ...]:
    """What runs a command in a shell that remembers. The name is for whoever calls this to check."""
    return ("bash", "-c", _REMEMBERING, "bash", shell, cmd)


def _plan(arguments: Mapping[str, Any]) -> Command:
    cmd, shell = arguments["cmd"], arguments.get("shell")
    if not cmd.strip():
        raise ToolProblem("cmd is blank")
    timeout_s = arguments.get("timeout_ms", limits.TOOL_TIMEOUT_S * 1000) / 1000
    if shell is None:
        return Command(("/bin/sh", "-c", _ONCE, "sh", cmd), timeout_s=timeout_s)
    if not _NAME.fullmatch(shell):
        raise ToolProblem("shell is a name of up to 64 letters, digits, - and _")
    return Command(remembering(shell, cmd), timeout_s=timeout_s)


def _tell(ended: Ended) -> Outcome:
    result = ended.result
    parts = [ended.stdout.rstrip("\n")]
    if ended.stderr.strip():
        parts.append(f"STDERR:\n{ended.stderr.rstrip()}")
    if why := why_ended(result):
        parts.append(f"({why})")
    text = "\n".join(filter(None, parts)) or "(no output)"
    text += f"\nexit code {result.exit_code}, {result.duration_s:.2f} s"
    # A program that says no is an answer; one that was stopped, or could not be run, is not.
    stopped = bool(result.reason) or result.limit not in (None, LimitHit.OUTPUT)
    return Outcome((TextBlock(text),), stopped, result.exit_code, ended.truncated)


BASH = ContainedTool(
    Tool(
        "bash",
        "Run a command with bash and tell its output and exit code. Each call is a new shell in the workspace, unless "
        "`shell` names one: a named shell keeps its directory, variables and functions from call to call.",
        parameters(
            "cmd",
            cmd=text("The command."),
            timeout_ms=count("After how many milliseconds it is ended.", 1, 24 * 3600 * 1000, 120_000),
            shell=text("The name of a shell that remembers; it is made when it is first named."),
        ),
        ToolTier.CONTAINED,
    ),
    _plan,
    _tell,
)
