"""What ExecD is asked, and who of us answers: one table, in the order of its document."""

from collections.abc import Mapping
from typing import Final

from sandlot.contracts import Host
from sandlot.gateways.opensandbox.code import Code
from sandlot.gateways.opensandbox.commands import Commands
from sandlot.gateways.opensandbox.files import Files
from sandlot.gateways.opensandbox.metrics import Metrics
from sandlot.gateways.opensandbox.terminals import Terminals
from sandlot.gateways.web import Handler, Route

_OWN: Final = "/v1/filesystem/{uid}/{gid}"  # stands before the paths of files where somebody else's are meant


def routes(host: Host, user: str) -> list[Route]:
    """Commands, files, programs and terminals are those of `user`, where a request names nobody."""
    files = _files(Files(host, user))
    others = {**_code(Code(host, user)), **_commands(Commands(host, user)), **_metrics(Metrics(host))}
    verbs = {**others, **_terminals(Terminals(host, user)), **files, **{_elsewhere(one): files[one] for one in files}}
    return [Route(*_asked(name), handler) for name, handler in verbs.items()]


def _asked(name: str) -> tuple[str, str]:
    verb, _, path = name.partition(" ")
    return verb, path


def _elsewhere(name: str) -> str:
    verb, path = _asked(name)
    return f"{verb} {_OWN}{path}"


def _code(code: Code) -> Mapping[str, Handler]:
    return {
        "POST /code/context": code.create,
        "GET /code/contexts": code.list_contexts,
        "DELETE /code/contexts": code.delete_language,
        "GET /code/contexts/{context}": code.get,
        "DELETE /code/contexts/{context}": code.delete,
        "POST /code": code.run,
        "DELETE /code": code.interrupt,
    }


def _commands(commands: Commands) -> Mapping[str, Handler]:
    return {
        "POST /command": commands.run,
        "DELETE /command": commands.interrupt,
        "GET /command/status/{command}": commands.status,
        "GET /command/{command}/logs": commands.logs,
        "POST /session": commands.create_session,
        "POST /session/{session}/run": commands.run_in_session,
        "DELETE /session/{session}": commands.delete_session,
    }


def _metrics(metrics: Metrics) -> Mapping[str, Handler]:
    return {"GET /metrics": metrics.get, "GET /metrics/watch": metrics.watch}


def _terminals(terminals: Terminals) -> Mapping[str, Handler]:
    return {
        "POST /pty": terminals.create,
        "GET /pty/{pty}": terminals.get,
        "DELETE /pty/{pty}": terminals.delete,
        "GET /pty/{pty}/ws": terminals.attach,
    }


def _files(files: Files) -> Mapping[str, Handler]:
    return {
        "GET /files/info": files.info,
        "POST /files/upload": files.upload,
        "GET /files/download": files.download,
        "GET /files/search": files.search,
        "POST /files/replace": files.replace,
        "POST /files/mv": files.move,
        "POST /files/permissions": files.permissions,
        "DELETE /files": files.remove,
        "GET /directories/list": files.list_directory,
        "POST /directories": files.make_directories,
        "DELETE /directories": files.remove_directories,
    }
