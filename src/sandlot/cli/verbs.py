"""The verbs by name. One is loaded when it is used: `--help` needs none of them."""

import importlib
from collections.abc import Mapping
from types import ModuleType

# Each is a module here; its line is the first sentence of the module's docstring.
VERBS: Mapping[str, str] = {
    "run": "Run one command in a session made for it, and destroy the session whatever happens",
    "create": "Make a session that lives on when the program has ended, and print its id",
    "exec": "Run one command in a session that is there already",
    "code": "Run code in a context of a session that remembers: a file, or what stdin has",
    "shell": "Open a terminal in a session, or in a new one that is destroyed when you leave",
    "cp": "Copy files and directories into a session, out of one, or from one to another",
    "tool": "Call the tools that models call: list them, call one in a session, or cancel a call",
    "files": "Work at the files of a session without running a command in it",
    "attach": "Come back to a terminal, or follow a command that was left running, from its first byte to its end",
    "launch": "Begin a process: a program with a name that goes on by itself, and is told by `ps`, `logs` and `stop`",
    "ps": "List the processes of a session, or tell all about one",
    "logs": "Show what a process has printed, and go on with -f until it has ended",
    "stop": "End a process of a session and all that descends from it, or send it a signal; `kill` destroys sessions",
    "expose": "Give a port of a session an address on the host, list them, or take one away with --off",
    "forward": "Bring a port of a session to this machine, until you interrupt it",
    "turn": "Close a turn: a snapshot of all files, and the record of what was done since the last one",
    "turns": "List the turns of a session: their calls, and what changed",
    "log": "Show the history of a session as a tree: turns and snapshots, branches, and where its files are now",
    "diff": "Show what two points of a session do not have in common: snapshots, turns, or the files as they are now",
    "rollback": "Put a session's files back to a snapshot or a turn, in place",
    "fork": "Make new sessions that begin with the files of a session: of a snapshot or a turn, or of now",
    "move": "Move a session to another storage, with all of its turns",
    "export": "Write a session into one file, with all of its turns",
    "import": "Make a session from a file that `sandlot export` wrote",
    "snapshot": "Take a snapshot of a session's files under a name, list them, or delete one",
    "template": "Make, list, name and remove templates: what sessions start from",
    "key": "Keys for a server and tokens of sessions: make one, list them, revoke one, or bound what a tenant may have",
    "webhook": "Print the secret that receivers of webhooks verify them with, or the addresses that are told",
    "audit": "Tell who asked for what in which session, or verify that nothing of it was changed, moved or taken away",
    "volume": "Directories with names that outlive sessions: make one, list them, show one, or remove one",
    "ls": "List sessions, oldest first",
    "show": "Tell all about one session and its calls",
    "events": "Tell what has happened to sessions, and go on telling with -f",
    "pause": "Let everything in a session stand still, until it is resumed",
    "resume": "Let a paused session go on where it stood",
    "extend": "Give a session more time, or less: it lives for so long from now on",
    "label": "Set labels of a session, and take others away with KEY-; all others stay",
    "preview": "Print the address under which a port of a session is reached through the server",
    "kill": "Destroy sessions: everything that runs in them ends, their files are removed",
    "serve": "Serve the engine of a data directory to clients: the SDK, the command line, any client of the wire",
    "health": "Tell how the host is: its space, its load, and what went wrong lately",
    "cordon": "Let a host make no sessions from now on; those that are there go on",
    "uncordon": "Let a host make sessions again",
    "drain": "Empty a host: no new sessions, and those that are there end, are paused or move to another host",
    "backup": "Write all that a host holds into one file: sessions with their turns, templates, volumes, keys",
    "restore": "Make a host again from a file that `sandlot backup` wrote, in an empty data directory",
    "top": "Show what sessions and their host use, again and again, or once",
    "recover": "Bring a failed session back: its files as they were left, with nothing running in it",
    "doctor": "Tell what this machine can do, and what to do about what it cannot",
    "support": "Write one file that tells how this machine and its host are, with nothing secret, for whoever helps",
    "attack": "Try to break out of sessions of this machine, in every way that is known, and tell what held",
    "conform": "Hold the runtimes and storages of this machine to what they promise, and tell what was not kept",
    "demo": "Show a sandbox at work, step by step, with times",
    "completion": "Print a script that lets a shell complete verbs, options and session ids",
}
TAKE_COMMAND = ("run", "exec", "shell", "launch")  # behind `--`
TAKE_WORDS = ("run", "exec")  # also without `--`: the first word that is not ours begins the command


def load(name: str) -> ModuleType:
    """The module of a verb, or `running`, which needs the event loop."""
    return importlib.import_module(f"sandlot.cli.{name}")
