"""What every host promises of tools, whatever the runtime and the storage. Each check has a session of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sandlot.conformance.checks import Check, Outcome, Stage, conform, equal, expect
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    Capability,
    ImageBlock,
    RollbackRequest,
    SandlotError,
    Stream,
    ToolProgress,
    ToolRequest,
    ToolResult,
    TurnRequest,
)

_SNAPSHOTS = (Capability.SNAPSHOTS,)
_REPOSITORY = "git init -q . && git config user.name A && git config user.email a@example.com && echo one >f"


async def call(stage: Stage, tool: str, call_id: str | None = None, /, **arguments: Any) -> ToolResult:
    request = ToolRequest(stage.session.session_id, tool, arguments, call_id, timeout_s=60)
    async with stage.host.execute_tool(request) as stream:
        return await stream.result()


async def text(stage: Stage, tool: str, /, **arguments: Any) -> str:
    """Of a call that must not fail."""
    result = await call(stage, tool, **arguments)
    expect(not result.is_error, f"{tool}: {result.text}")
    return result.text


async def shell(stage: Stage, script: str) -> str:
    ran = await stage.sh(script)
    equal((ran.result.exit_code, ran.stderr), (0, b""))
    return ran.text


# ---- files -----------------------------------------------------------------------------------------------------


async def files_are_written_read_and_edited(stage: Stage) -> None:
    """What one tool writes the other reads, with line numbers; an edit changes what it names and nothing else."""
    equal(await text(stage, "write_file", path="a/b", content="one\ntwo\nthree\n"), "wrote 14 bytes to a/b")
    equal(await text(stage, "read_file", path="a/b"), "     1\tone\n     2\ttwo\n     3\tthree")
    part = await call(stage, "read_file", path="a/b", offset=1, limit=1)
    equal((part.text, part.truncated), ("     2\ttwo\n(showing lines 2-2 of 3)", True))
    edited = await text(stage, "edit_file", path="a/b", old_string="two", new_string="2\n2")
    equal(edited, "edited a/b: 1 replacement made")
    equal(await shell(stage, "cat a/b"), "one\n2\n2\nthree")
    equal(await text(stage, "list_dir", depth=2), "a/\na/b (14 bytes)")
    for path in ("missing", "a"):
        expect((await call(stage, "read_file", path=path)).is_error, path)


async def the_same_path_is_the_same_file_in_both_tiers(stage: Stage) -> None:
    """Relative or absolute, a path means the same to a tool of the host and to a program."""
    await text(stage, "write_file", path="here", content="by the host\n")
    equal(await shell(stage, "cat here; mkdir -p sub; echo by a program >sub/there"), "by the host")
    equal(await text(stage, "read_file", path="sub/there"), "     1\tby a program")
    where = await shell(stage, "pwd")
    equal(await text(stage, "read_file", path=f"{where}/here"), "     1\tby the host")


async def no_edit_of_many_at_once_is_lost(stage: Stage) -> None:
    """Edits of one file that come together are all done."""
    await text(stage, "write_file", path="f", content="".join(f"<{n}>\n" for n in range(20)))
    await asyncio.gather(
        *(text(stage, "edit_file", path="f", old_string=f"<{n}>", new_string=f"({n})") for n in range(20))
    )
    equal(await shell(stage, "cat f"), "\n".join(f"({n})" for n in range(20)))


async def what_is_no_file_is_told_and_not_waited_for(stage: Stage) -> None:
    """A pipe, a device, a link that leads nowhere or to the kernel's own files: a result that says so."""
    await shell(stage, "mkfifo pipe; ln -s nowhere dead; ln -s /proc/self/environ kernel; ln -s loop loop")
    for path in ("pipe", "dead", "kernel", "loop", "../" * 40 + "proc/self/environ", "/dev/zero"):
        result = await call(stage, "read_file", path=path)
        expect(result.is_error, f"{path}: {result.text[:200]}")


async def files_are_found_by_name_and_by_content(stage: Stage) -> None:
    """`glob` tells paths in order, `grep` tells file, line number and line; both say when there is more."""
    await shell(stage, "mkdir -p src/deep .hid; printf 'one\\nTwo\\nthree\\n' >src/a.py; cp src/a.py src/deep/b.py")
    await shell(stage, "cp src/a.py .hid/c.py; echo two >src/d.txt; printf 'two\\0' >src/binary")
    equal(await text(stage, "glob", pattern="**/*.py"), "Found 2 files\nsrc/a.py\nsrc/deep/b.py")
    equal(await text(stage, "glob", pattern="*.py", path="src"), "Found 1 file\na.py")
    cut = await call(stage, "glob", pattern="**", max_results=1)
    expect(cut.truncated and cut.text.startswith("Found 1 or more file"), cut.text)
    equal(await text(stage, "glob", pattern="*.rs"), "No file fits the pattern")
    told = await text(stage, "grep", pattern="^t[wh]", ignore_case=True, include="*.py", context_lines=1)
    equal(
        told,
        "Found 4 matches\n    one\nsrc/a.py:2: Two\n    three\n    Two\nsrc/a.py:3: three"
        "\n    one\nsrc/deep/b.py:2: Two\n    three\n    Two\nsrc/deep/b.py:3: three",
    )
    equal(await text(stage, "grep", pattern="two"), "Found 1 match\nsrc/d.txt:1: two")
    expect(
        (await text(stage, "grep", pattern="T.o", literal=True, path="src/a.py")).startswith("No match"), "T.o is text"
    )
    expect((await call(stage, "grep", pattern="(")).is_error, "a pattern that is none was taken")
    expect(
        (await call(stage, "grep", pattern="x", path="nowhere")).is_error, "a directory that is not there was searched"
    )


async def any_name_is_a_name(stage: Stage) -> None:
    """Blanks, quotes, dollars, newlines, a dash or a star in a name are letters of it, for every tool."""
    names = ("-rf", "a b", "it's", '"q"', "$(touch bad)", "`touch bad`", "new\nline", "*", "\\", "é€😀", "# x", "~")
    for name in names:
        await text(stage, "write_file", path=f"odd/{name}", content=f"this is <{name}>\n")
        told = await text(stage, "read_file", path=f"odd/{name}")
        expect(told.startswith("     1\tthis is <"), f"{name!r}: {told}")
        edited = await text(stage, "edit_file", path=f"odd/{name}", old_string="this", new_string="that")
        equal(edited, f"edited odd/{name}: 1 replacement made")
    listed = (await text(stage, "list_dir", path="odd")).split("\n")
    equal(len(listed), len(names))
    expect(any(line.startswith("new\\nline ") for line in listed), listed)
    equal((await text(stage, "glob", pattern="*", path="odd")).split("\n")[0], f"Found {len(names)} files")
    found = await text(stage, "grep", pattern="^that is", path="odd")
    equal(found.split("\n")[0], f"Found {len(names)} matches")
    expect("bad" not in await text(stage, "list_dir"), "a name was run")
    await text(stage, "write_file", path="-n/-e/f", content="x")
    equal(await text(stage, "list_dir", path="-n", depth=2), "-e/\n-e/f (1 bytes)")


async def bytes_that_are_no_text_are_told_as_such(stage: Stage) -> None:
    """A binary file is not shown as text and not searched; a picture is shown with exactly its bytes."""
    await shell(stage, "printf 'needle\\0\\377\\n' >binary; printf '\\211PNG\\r\\n\\032\\n\\0\\377\\376' >p.png")
    told = await call(stage, "read_file", path="binary")
    expect(told.is_error and "is binary (9 bytes)" in told.text, told.text)
    expect((await text(stage, "grep", pattern="needle")).startswith("No match"), "a binary file was searched")
    shown = await call(stage, "read_file", path="p.png")
    equal([block.data for block in shown.blocks if isinstance(block, ImageBlock)], [b"\x89PNG\r\n\x1a\n\0\xff\xfe"])
    await shell(stage, "printf 'caf\\351 x\\n' >latin")
    equal(await text(stage, "read_file", path="latin"), "     1\tcaf\ufffd x")


async def what_is_large_is_cut_and_said_so(stage: Stage) -> None:
    """A file that is too large is refused with its size; a long line and long output are told in part."""
    size = 11 * 1024 * 1024
    await shell(stage, f"head -c {size} /dev/zero | tr '\\0' 'x' >large; echo needle >>large")
    told = await call(stage, "read_file", path="large")
    expect(told.is_error and str(size + 7) in told.text, told.text)
    await shell(stage, "head -c 5000 large >line; echo >>line; echo end >>line")
    cut = await call(stage, "read_file", path="line")
    expect(cut.truncated and "(3000 bytes more)" in cut.text and cut.text.endswith("\tend"), cut.text[-200:])
    loud = await call(stage, "bash", cmd="cat large; echo; echo the end")
    expect(loud.truncated and "bytes left out]" in loud.text and "\nthe end\n" in loud.text, loud.text[-200:])
    equal(loud.exit_code, 0)
    expect((await text(stage, "grep", pattern="^needle$", path="line")).startswith("No match"), "it is not there")


async def a_program_that_is_missing_is_a_result(stage: Stage) -> None:
    """Exit code 127, as a shell tells it."""
    missing = await call(stage, "bash", cmd="echo before; no-such-program-here")
    expect(missing.exit_code == 127 and missing.text.startswith("before\n"), missing.text)


async def a_write_goes_where_the_file_is(stage: Stage) -> None:
    """Through a link to what it leads to, with the mode that the file had; a directory is not replaced."""
    await shell(stage, "mkdir d; printf old >d/real; chmod 750 d/real; ln -s d/real link; ln -s d way")
    await text(stage, "write_file", path="link", content="new")
    await text(stage, "edit_file", path="way/real", old_string="new", new_string="newer")
    told = await shell(
        stage, "cat d/real; test -L link && test -L way && echo ' links'; ls -l d | tail -n 1 | cut -c 1-10"
    )
    equal(told, "newer links\n-rwxr-x---")
    refused = await call(stage, "write_file", path="d", content="x")
    expect(refused.is_error, refused.text)
    equal(await text(stage, "list_dir"), "d/\nlink -> d/real\nway -> d")


# ---- commands --------------------------------------------------------------------------------------------------


async def a_command_is_told_with_its_streams_and_its_end(stage: Stage) -> None:
    """Output, errors, exit code; and that it was its time which ended it."""
    result = await call(stage, "bash", cmd="echo out; echo err >&2; exit 3")
    expect(result.text.startswith("out\nSTDERR:\nerr\nexit code 3, "), result.text)
    equal((result.exit_code, result.is_error), (3, False))
    slow = await call(stage, "bash", cmd="echo begun; sleep 60 | sleep 60", timeout_ms=500)
    expect("begun" in slow.text and "its time limit" in slow.text, slow.text)
    equal((slow.exit_code, slow.is_error), (124, True))


async def progress_streams_while_a_command_runs(stage: Stage) -> None:
    """What is printed is told before the end."""
    script = "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two"
    async with stage.host.execute_tool(ToolRequest(stage.session.session_id, "bash", {"cmd": script})) as stream:
        events = aiter(stream)
        equal(await anext(events), ToolProgress(Stream.STDOUT, "one\n"))
        await text(stage, "write_file", path="go", content="")
        equal(await anext(events), ToolProgress(Stream.STDOUT, "two\n"))
        expect(isinstance(await anext(events), ToolResult), "no result at the end")


async def a_named_shell_remembers(stage: Stage) -> None:
    """Directory, variables, functions and aliases, from call to call; another shell knows nothing of them."""
    await text(stage, "bash", shell="a", cmd="mkdir d; cd d; export X=1; Y='2 3'; f() { echo f $1; }; alias g='f you'")
    told = await text(stage, "bash", shell="a", cmd='basename $PWD; sh -c "echo $X"; echo "$Y"; g')
    expect(told.startswith("d\n1\n2 3\nf you\n"), told)
    told = await text(stage, "bash", shell="b", cmd="echo [$X]")
    expect(told.startswith("[]\n"), told)
    equal((await call(stage, "bash", shell="a", cmd="cd /; exit 9")).exit_code, 9)
    told = await text(stage, "bash", shell="a", cmd="pwd; false || echo on")
    expect(told.startswith("/\non\n"), told)


async def a_rollback_brings_back_the_shell_of_that_moment(stage: Stage) -> None:
    """What a shell remembers goes with the files."""
    await text(stage, "bash", shell="a", cmd="X=then")
    await stage.host.turn_complete(TurnRequest(stage.session.session_id))
    await text(stage, "bash", shell="a", cmd="X=now")
    await stage.host.rollback(RollbackRequest(stage.session.session_id, "1"))
    told = await text(stage, "bash", shell="a", cmd="echo $X")
    expect(told.startswith("then\n"), told)


# ---- git -------------------------------------------------------------------------------------------------------


async def a_repository_from_the_first_commit_on(stage: Stage) -> None:
    """Status, add, diff, commit, log and show of a new repository."""
    await shell(stage, _REPOSITORY)
    equal(await text(stage, "git_status"), "?? f")
    equal(await text(stage, "git_add", paths=["f"]), "(no output)")
    expect("+one" in await text(stage, "git_diff", staged=True), "what was added is not told")
    expect("first" in await text(stage, "git_commit", message="first"), "what was committed is not told")
    await text(stage, "write_file", path="f", content="two\n")
    expect("-one\n+two" in await text(stage, "git_diff", ref="HEAD", path="f"), "the change is not told")
    told = await text(stage, "git_log", n=1)
    expect(told.split(" ", 1)[1].startswith("A 20"), told)
    expect("+one" in await text(stage, "git_show"), "the commit is not told")
    failed = await call(stage, "git_show", ref="nowhere")
    equal((failed.is_error, failed.exit_code), (True, 128))


async def commits_go_to_another_repository_and_come_back(stage: Stage) -> None:
    """Clone, push, fetch and pull between two repositories of the session."""
    await shell(stage, f"{_REPOSITORY} && git add f && git commit -qm first && git clone -q --bare . there.git")
    await shell(stage, "git remote add origin there.git")
    await text(stage, "git_clone", args=["there.git", "copy"])
    equal(await shell(stage, "cat copy/f; echo two >f; git commit -qam second"), "one")
    await text(stage, "git_push", args=["origin", "HEAD"])
    await text(stage, "git_fetch", args=["origin"])
    await text(stage, "git_pull", args=["origin", await shell(stage, "git branch --show-current")])


async def options_are_not_smuggled_in_as_names(stage: Stage) -> None:
    """A ref, a path or a message that looks like an option is a name, or is refused."""
    await shell(stage, f"{_REPOSITORY} && git add f && git commit -qm first")
    for tool in ("git_diff", "git_log", "git_show"):
        result = await call(stage, tool, ref="--output=written")
        expect(result.is_error and "starts with -" in result.text, result.text)
    await call(stage, "git_diff", path="--output=written")
    await call(stage, "git_add", paths=["--output=written"])
    await call(stage, "git_commit", message="--amend")
    expect("written" not in await text(stage, "list_dir"), "a file was written")


async def what_a_repository_names_neither_hangs_nor_fools(stage: Stage) -> None:
    """Pagers, editors, colours and programs for diffs that a repository names are not used; a monitor that hangs is
    ended in time."""
    await shell(stage, f"{_REPOSITORY} && git add f && git commit -qm first && echo two >f")
    await shell(
        stage,
        "git config core.pager 'sleep 60'; git config core.editor 'sleep 60'; git config diff.external 'echo fooled';"
        "git config pager.log 'sleep 60'; git config color.ui always; git config core.askPass 'sleep 60'",
    )
    for tool in ("git_log", "git_show", "git_diff", "git_status"):
        told = await text(stage, tool)
        expect("fooled" not in told and "\x1b" not in told, told)
    await shell(stage, "git config core.fsmonitor 'sleep 60'")
    request = ToolRequest(stage.session.session_id, "git_status", timeout_s=1)
    async with stage.host.execute_tool(request) as stream:
        stopped = await stream.result()
    expect(stopped.is_error and stopped.duration_s < 30, stopped)


# ---- once ------------------------------------------------------------------------------------------------------


async def a_call_that_is_repeated_is_done_once(stage: Stage) -> None:
    """In both tiers, one after another and at once: the first result is told to all."""
    script = "echo x >>ran; cat ran"
    first = await call(stage, "bash", "b", cmd=script)
    equal(await call(stage, "bash", "b", cmd=script), first)
    await text(stage, "write_file", path="f", content="aa")
    edit = {"path": "f", "old_string": "a", "new_string": "ab", "replace_all": True}
    told = await call(stage, "edit_file", "e", **edit)
    equal(await call(stage, "edit_file", "e", **edit), told)
    await asyncio.gather(*(call(stage, "bash", "m", cmd="sleep 0.1; echo y >>ran") for _ in range(8)))
    equal(await shell(stage, "cat f ran"), "ababx\ny")


async def a_rollback_forgets_the_calls_after_it(stage: Stage) -> None:
    """Their ids may come again and are done; those before it are told as they were."""
    await call(stage, "write_file", "kept", path="f", content="a")
    await stage.host.turn_complete(TurnRequest(stage.session.session_id))
    edit = {"path": "f", "old_string": "a", "new_string": "b"}
    await call(stage, "edit_file", "gone", **edit)
    await call(stage, "bash", "ran", cmd="echo x >>ran")
    await stage.host.rollback(RollbackRequest(stage.session.session_id, "1"))
    equal(await shell(stage, "cat f"), "a")
    equal((await call(stage, "edit_file", "gone", **edit)).text, "edited f: 1 replacement made")
    await call(stage, "bash", "ran", cmd="echo x >>ran")
    equal((await call(stage, "write_file", "kept", path="f", content="never")).text, "wrote 1 bytes to f")
    equal(await shell(stage, "cat f ran"), "bx")


async def a_tool_that_nobody_knows_is_an_error(stage: Stage) -> None:
    """Wrong arguments are a result that names every mistake; a wrong name is an error."""
    told = await call(stage, "write_file", path=7, contents="x")
    expect(told.is_error, told.text)
    for part in ("content is missing", "path must be a string", "contents"):
        expect(part in told.text, told.text)
    try:
        await call(stage, "read_flie")
    except SandlotError:
        return
    expect(False, "it was taken")


TOOL_CHECKS: tuple[Check[Stage], ...] = (
    Check(files_are_written_read_and_edited),
    Check(the_same_path_is_the_same_file_in_both_tiers),
    Check(no_edit_of_many_at_once_is_lost),
    Check(what_is_no_file_is_told_and_not_waited_for),
    Check(files_are_found_by_name_and_by_content),
    Check(any_name_is_a_name),
    Check(bytes_that_are_no_text_are_told_as_such),
    Check(what_is_large_is_cut_and_said_so),
    Check(a_program_that_is_missing_is_a_result),
    Check(a_write_goes_where_the_file_is),
    Check(a_command_is_told_with_its_streams_and_its_end),
    Check(progress_streams_while_a_command_runs),
    Check(a_named_shell_remembers),
    Check(a_rollback_brings_back_the_shell_of_that_moment, _SNAPSHOTS),
    Check(a_repository_from_the_first_commit_on),
    Check(commits_go_to_another_repository_and_come_back),
    Check(options_are_not_smuggled_in_as_names),
    Check(what_a_repository_names_neither_hangs_nor_fools),
    Check(a_call_that_is_repeated_is_done_once),
    Check(a_rollback_forgets_the_calls_after_it, _SNAPSHOTS),
    Check(a_tool_that_nobody_knows_is_an_error),
)


def conform_tools(
    host: Host,
    runtime: str,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = TOOL_CHECKS,
) -> AsyncIterator[Outcome]:
    return conform(host, runtime, checks, {}, storage, have)
