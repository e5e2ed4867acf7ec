"""Every verb of the waist has a form in the SDK, async and sync, and one on the command line."""

import inspect
import re
from pathlib import Path

import pytest

import sandlot
from sandlot.cli import verbs
from sandlot.contracts import Host

SOURCE = Path(__file__).parents[2] / "src" / "sandlot"
# Verb: method of the SDK, words of the command line.
FORMS: dict[str, tuple[str, str]] = {
    # sessions
    "create": ("AsyncSandbox.create", "create"),
    "get": ("AsyncSandbox.info", "show"),
    "list": ("AsyncSandbox.list", "ls"),
    "pause": ("AsyncSandbox.pause", "pause"),
    "resume": ("AsyncSandbox.resume", "resume"),
    "extend": ("AsyncSandbox.extend", "extend"),
    "relabel": ("AsyncSandbox.relabel", "label"),
    "destroy": ("AsyncSandbox.kill", "kill"),
    "capabilities": ("AsyncSandbox.info", "show"),  # of the session that there is
    # calls
    "call": ("AsyncCommands.run", "exec"),
    "attach": ("AsyncCommands.connect", "attach"),
    "calls": ("AsyncCommands.list", "show"),
    # terminals
    "open_terminal": ("AsyncTerminals.open", "shell"),
    "attach_terminal": ("AsyncPty.attach", "attach"),
    "get_terminal": ("AsyncPty.info", "attach"),
    "terminals": ("AsyncTerminals.list", "attach"),
    "write_terminal": ("AsyncPty.write", "attach"),
    "resize_terminal": ("AsyncPty.resize", "attach"),
    "kill_terminal": ("AsyncPty.kill", ""),
    # code
    "create_context": ("AsyncCode.create_context", "code --new"),
    "contexts": ("AsyncCode.contexts", "code --list"),
    "interrupt_context": ("AsyncContext.interrupt", "code --interrupt"),
    "restart_context": ("AsyncContext.restart", "code --restart"),
    "delete_context": ("AsyncContext.remove", "code --remove"),
    "run_code": ("AsyncSandbox.run_code", "code"),
    "attach_code": ("AsyncCode.connect", "code --attach"),
    # processes
    "launch_process": ("AsyncProcesses.launch", "launch"),
    "list_processes": ("AsyncProcesses.list", "ps"),
    "process_status": ("AsyncManagedProcess.info", "ps"),
    "process_logs": ("AsyncManagedProcess.logs", "logs"),
    "wait_process": ("AsyncManagedProcess.wait", "launch"),
    "kill_process": ("AsyncManagedProcess.kill", "stop"),
    "write_process_stdin": ("AsyncManagedProcess.send_stdin", ""),
    "close_process_stdin": ("AsyncManagedProcess.close_stdin", ""),
    # ports
    "expose_port": ("AsyncPorts.expose", "expose"),
    "list_ports": ("AsyncPorts.list", "expose --list"),
    "unexpose_port": ("AsyncPorts.unexpose", "expose --off"),
    "connect_port": ("AsyncPorts.connect", "forward"),
    # metrics
    "session_metrics": ("AsyncSandbox.metrics", ""),
    "host_metrics": ("Client.ametrics", "top"),
    "all_metrics": ("Client.asandbox_metrics", "top"),
    # tools
    "tools": ("AsyncTools.list", "tool ls"),
    "execute_tool": ("AsyncTools.call", "tool call"),
    "cancel_tool": ("AsyncTools.cancel", "tool cancel"),
    # files
    "read_file": ("AsyncFiles.read", "files cat"),
    "write_file": ("AsyncFiles.write", "files write"),
    "append_file": ("AsyncFiles.append", "files append"),
    "read_lines": ("AsyncFiles.read_lines", "files cat"),
    "replace_in_file": ("AsyncFiles.replace", "files replace"),
    "copy_file": ("AsyncFiles.copy", "files cp"),
    "change_file": ("AsyncFiles.chmod", "files chmod"),
    "make_link": ("AsyncFiles.symlink", "files ln"),
    "get_attributes": ("AsyncFiles.get_attributes", "files xattr"),
    "set_attributes": ("AsyncFiles.set_attributes", "files xattr"),
    "list_files": ("AsyncFiles.list", "files ls"),
    "find_files": ("AsyncFiles.find", "files find"),
    "search_files": ("AsyncFiles.search", "files grep"),
    "watch_files": ("AsyncFiles.watch", "files watch"),
    "measure_files": ("AsyncFiles.usage", "files du"),
    "stat_file": ("AsyncFiles.stat", "files stat"),
    "make_directory": ("AsyncFiles.make_dir", "files mkdir"),
    "rename_file": ("AsyncFiles.rename", "files mv"),
    "remove_file": ("AsyncFiles.remove", "files rm"),
    "upload_tree": ("AsyncFiles.upload", "cp"),
    "download_tree": ("AsyncFiles.download", "cp"),
    # previews
    "preview_port": ("AsyncSandbox.preview_url", "preview"),
    # history
    "create_snapshot": ("AsyncSandbox.create_snapshot", "snapshot"),
    "list_snapshots": ("AsyncSandbox.snapshots", "snapshot --list"),
    "delete_snapshot": ("AsyncSandbox.delete_snapshot", "snapshot --delete"),
    "turn_complete": ("AsyncSandbox.turn", "turn"),
    "turns": ("AsyncSandbox.turns", "turns"),
    "diff": ("AsyncSandbox.diff", "diff"),
    "rollback": ("AsyncSandbox.rollback", "rollback"),
    "fork": ("AsyncSandbox.fork", "fork"),
    "move": ("AsyncSandbox.move", "move"),
    "export": ("AsyncSandbox.export", "export"),
    "import_session": ("AsyncSandbox.import_session", "import"),
    # templates and volumes
    "list_templates": ("AsyncTemplates.list", "template ls"),
    "get_template": ("AsyncTemplates.get", "template show"),
    "make_template": ("AsyncTemplates.import_path", "template import"),
    "tag_template": ("AsyncTemplates.tag", "template tag"),
    "remove_template": ("AsyncTemplates.remove", "template rm"),
    "warm_template": ("AsyncTemplates.warm", ""),
    "prune_templates": ("AsyncTemplates.prune", "template prune"),
    "create_volume": ("AsyncVolume.create", "volume create"),
    "get_volume": ("AsyncVolume.info", "volume show"),
    "list_volumes": ("AsyncVolume.list", "volume ls"),
    "remove_volume": ("AsyncVolume.remove", "volume rm"),
    # upkeep
    "health": ("Client.ahealth", "health"),
    "examine": ("Client.aexamine", "doctor"),
    "backup": ("Client.abackup", "backup"),
    "cordon": ("Client.acordon", "cordon"),
    "uncordon": ("Client.auncordon", "uncordon"),
    "recover": ("AsyncSandbox.recover", "recover"),
    "events": ("AsyncSandbox.events", "events"),
}
# What has no form, and why. An entry that has got one is wrong.
NO_COMMAND = {
    "write_process_stdin": "who wants to talk to a program opens a terminal: `shell`",
    "close_process_stdin": "the same",
    "kill_terminal": "whoever is at a terminal ends its program there; `attach` comes to it",
    "session_metrics": "`top` tells what all of them use now; an hour of one is for programs",
    "warm_template": "guests wait as long as their engine runs, and a command ends its own: a setting has them",
}
# What the command line comes to by another name: of the session, of the engine, or through a function.
NOT_BY_NAME = {"capabilities", "examine", "events"}


def verbs_of(contract: type) -> set[str]:
    return {name for name, _verb in inspect.getmembers(contract, inspect.isfunction) if not name.startswith("_")}


def method(path: str) -> object:
    found: object = sandlot
    for name in path.split("."):
        found = getattr(found, name)
    return found


def calls(verb: str, part: str) -> bool:
    """Whether a part of the source calls the verb of a host."""
    pattern = re.compile(rf"\.{verb}\(")
    return any(pattern.search(file.read_text()) for file in (SOURCE / part).glob("*.py"))


def test_every_verb_has_a_row_and_every_row_a_verb() -> None:
    assert sorted(verbs_of(Host) - FORMS.keys()) == []
    assert sorted(FORMS.keys() - verbs_of(Host)) == []


@pytest.mark.parametrize("verb", FORMS)
def test_a_verb_has_a_method_of_the_sdk_in_both_faces(verb: str) -> None:
    path = FORMS[verb][0]
    sync = path.replace("Client.a", "Client.").replace("Async", "")
    for one in (path, sync):
        assert inspect.getdoc(method(one)), one
    assert verb == "capabilities" or calls(verb, "sdk"), f"nothing in the SDK calls {verb}"


@pytest.mark.parametrize("verb", FORMS)
def test_a_verb_has_words_of_the_command_line(verb: str) -> None:
    words = FORMS[verb][1]
    if not words:
        assert verb in NO_COMMAND, f"{verb} has no form on the command line, and no reason"
        return
    assert verb not in NO_COMMAND, f"{verb} has a form: it is no longer without one"
    command, _, word = words.partition(" ")
    assert command in verbs.VERBS
    assert verb in NOT_BY_NAME or calls(verb, "cli"), f"nothing on the command line calls {verb}"
    module = verbs.load(command)
    told = f"{module.__doc__}{getattr(module, 'USAGE', '')}{inspect.getsource(module)}"
    assert not word or re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", told), words
