"""Every request to an OpenSandbox server, as a value: what is sent, what comes back, and how it is read. Nothing here
touches the network, so the async and the sync client say the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from sandlot.model import InvalidArgument, limits
from sandlot.opensandbox import answers
from sandlot.opensandbox.answers import Answer
from sandlot.opensandbox.values import (
    CommandLogs,
    CommandStatus,
    EgressRule,
    Endpoint,
    FileInfo,
    NetworkPolicy,
    SandboxMetrics,
    SandboxOpts,
    SandboxResponse,
    SnapshotResponse,
)

T = TypeVar("T")
PAGE_SIZE = 200
OK = (200,)
_SAFE = frozenset(["GET", "PUT", "DELETE"])


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """One request. `operation` names it in errors."""

    operation: str
    method: str
    path: str  # below the base of its API, begins with a slash
    read: Callable[[str, Answer], T]
    params: tuple[tuple[str, str], ...] = ()
    body: object = None  # JSON
    expected: tuple[int, ...] = OK

    @property
    def is_safe(self) -> bool:
        """Doing it twice comes to the same."""
        return self.method in _SAFE


def create_sandbox(opts: SandboxOpts) -> Ask[SandboxResponse]:
    body: dict[str, Any] = {
        "timeout": opts.timeout_s,
        "resourceLimits": dict(opts.resource_limits),
        "env": dict(opts.envs),
        "metadata": dict(opts.metadata),
    }
    if opts.image:
        body |= {"image": {"uri": opts.image}, "entrypoint": list(opts.entrypoint)}
    elif opts.snapshot_id:
        body["snapshotId"] = opts.snapshot_id
    else:
        body["templateId"] = opts.template_id
    if opts.network_policy is not None:
        body["networkPolicy"] = policy_document(opts.network_policy)
    return Ask(
        "create_sandbox", "POST", "/sandboxes", answers.one(answers.sandbox), body=body, expected=(200, 201, 202)
    )


def get_sandbox(sandbox_id: str) -> Ask[SandboxResponse]:
    return Ask("get_sandbox", "GET", _sandbox(sandbox_id), answers.one(answers.sandbox))


def list_sandboxes(
    metadata: Mapping[str, str], states: Sequence[str], number: int
) -> Ask[tuple[list[SandboxResponse], bool]]:
    """One page. All pairs go into one parameter: of several a server reads the last alone."""
    params = [("page", str(number)), ("pageSize", str(PAGE_SIZE)), *(("state", state) for state in states)]
    if metadata:
        params.append(("metadata", urlencode(metadata)))
    return Ask("list_sandboxes", "GET", "/sandboxes", answers.page(answers.sandbox), tuple(params))


def delete_sandbox(sandbox_id: str) -> Ask[None]:
    return Ask("delete_sandbox", "DELETE", _sandbox(sandbox_id), answers.nothing, expected=(204, 200, 202))


def pause_sandbox(sandbox_id: str) -> Ask[None]:
    return Ask("pause_sandbox", "POST", _sandbox(sandbox_id, "/pause"), answers.nothing, expected=(202, 200))


def resume_sandbox(sandbox_id: str) -> Ask[None]:
    return Ask("resume_sandbox", "POST", _sandbox(sandbox_id, "/resume"), answers.nothing, expected=(202, 200))


def renew_sandbox(sandbox_id: str, until: float) -> Ask[float]:
    body = {"expiresAt": datetime.fromtimestamp(until, UTC).isoformat()}
    path = _sandbox(sandbox_id, "/renew-expiration")
    return Ask("renew_sandbox", "POST", path, answers.one(answers.expires), body=body)


def patch_metadata(sandbox_id: str, changes: Mapping[str, str | None]) -> Ask[SandboxResponse]:
    path = _sandbox(sandbox_id, "/metadata")
    return Ask("patch_metadata", "PATCH", path, answers.one(answers.sandbox), body=dict(changes))


def get_endpoint(sandbox_id: str, port: int, scheme: str, *, use_server_proxy: bool) -> Ask[Endpoint]:
    limits.within("port", port, 1, 65535)
    params = (("use_server_proxy", "true" if use_server_proxy else "false"),)
    path = _sandbox(sandbox_id, f"/endpoints/{port}")
    return Ask("get_endpoint", "GET", path, answers.one(answers.endpoint(scheme, port)), params)


def create_snapshot(sandbox_id: str, name: str) -> Ask[SnapshotResponse]:
    body = {"name": name} if name else None
    path = _sandbox(sandbox_id, "/snapshots")
    read = answers.one(answers.snapshot)
    return Ask("create_snapshot", "POST", path, read, body=body, expected=(202, 200, 201))


def get_snapshot(snapshot_id: str) -> Ask[SnapshotResponse]:
    return Ask("get_snapshot", "GET", f"/snapshots/{_part('snapshot', snapshot_id)}", answers.one(answers.snapshot))


def list_snapshots(sandbox_id: str, number: int) -> Ask[tuple[list[SnapshotResponse], bool]]:
    params = [("page", str(number)), ("pageSize", str(PAGE_SIZE))]
    if sandbox_id:
        params.append(("sandboxId", sandbox_id))
    return Ask("list_snapshots", "GET", "/snapshots", answers.page(answers.snapshot), tuple(params))


def delete_snapshot(snapshot_id: str) -> Ask[None]:
    path = f"/snapshots/{_part('snapshot', snapshot_id)}"
    return Ask("delete_snapshot", "DELETE", path, answers.nothing, expected=(204, 200))


# Below, the base is the endpoint of a sandbox.


def ping() -> Ask[None]:
    return Ask("ping", "GET", "/ping", answers.nothing)


def command_document(
    command: str | Sequence[str],
    *,
    cwd: str | None,
    timeout_s: float | None,
    envs: Mapping[str, str],
    uid: int | None,
    gid: int | None,
    background: bool,
) -> dict[str, Any]:
    """The body of a command. Its timeout is in milliseconds on the wire."""
    if not command:
        raise InvalidArgument("a command is empty", next_step="give a line for the shell, or arguments")
    if timeout_s is not None and timeout_s <= 0:
        raise InvalidArgument(f"timeout_s is {timeout_s}", next_step="give a time above 0, or None for no end")
    if gid is not None and uid is None:
        raise InvalidArgument("a gid needs a uid")
    body: dict[str, Any] = {"background": background}
    body |= {"command": command} if isinstance(command, str) else {"argv": list(command)}
    if cwd is not None:
        body["cwd"] = cwd
    if timeout_s is not None:
        body["timeout"] = max(1, round(timeout_s * 1000))
    if envs:
        body["envs"] = dict(envs)
    body |= {name: value for name, value in (("uid", uid), ("gid", gid)) if value is not None}
    return body


def interrupt_command(command_id: str) -> Ask[None]:
    return Ask("interrupt_command", "DELETE", "/command", answers.nothing, (("id", command_id),))


def command_status(command_id: str) -> Ask[CommandStatus]:
    path = f"/command/status/{_part('command', command_id)}"
    return Ask("command_status", "GET", path, answers.one(answers.command_status))


def command_logs(command_id: str, cursor: int) -> Ask[CommandLogs]:
    path = f"/command/{_part('command', command_id)}/logs"
    return Ask("command_logs", "GET", path, answers.command_logs, (("cursor", str(cursor)),))


def create_session(cwd: str | None) -> Ask[str]:
    body = {"cwd": cwd} if cwd is not None else {}
    return Ask("create_session", "POST", "/session", answers.one(answers.session_id), body=body)


def delete_session(session_id: str) -> Ask[None]:
    return Ask("delete_session", "DELETE", f"/session/{_part('session', session_id)}", answers.nothing)


def session_path(session_id: str) -> str:
    return f"/session/{_part('session', session_id)}/run"


def search_files(directory: str, pattern: str) -> Ask[list[FileInfo]]:
    params = (("path", directory), ("pattern", pattern))
    return Ask("search_files", "GET", "/files/search", answers.many(answers.file_info), params)


def file_info(paths: Sequence[str]) -> Ask[dict[str, FileInfo]]:
    params = tuple(("path", path) for path in paths)
    return Ask("file_info", "GET", "/files/info", answers.one(answers.file_infos), params)


def list_directory(path: str, depth: int) -> Ask[list[FileInfo]]:
    params = (("path", path), ("depth", str(depth)))
    return Ask("list_directory", "GET", "/directories/list", answers.many(answers.file_info), params)


def make_directories(paths: Sequence[str], mode: int) -> Ask[None]:
    body = {path: {"mode": answers.to_digits(mode)} for path in paths}
    return Ask("make_directories", "POST", "/directories", answers.nothing, body=body)


def remove_directories(paths: Sequence[str]) -> Ask[None]:
    params = tuple(("path", path) for path in paths)
    return Ask("remove_directories", "DELETE", "/directories", answers.nothing, params)


def remove_files(paths: Sequence[str]) -> Ask[None]:
    return Ask("remove_files", "DELETE", "/files", answers.nothing, tuple(("path", path) for path in paths))


def move_files(moves: Mapping[str, str]) -> Ask[None]:
    body = [{"src": source, "dest": target} for source, target in moves.items()]
    return Ask("move_files", "POST", "/files/mv", answers.nothing, body=body)


def replace_in_files(changes: Mapping[str, tuple[str, str]]) -> Ask[dict[str, int]]:
    body = {path: {"old": old, "new": new} for path, (old, new) in changes.items()}
    read = answers.one(answers.replaced)
    return Ask("replace_in_files", "POST", "/files/replace", read, (("verbose", "true"),), body)


def set_permissions(path: str, mode: int, owner: str, group: str) -> Ask[None]:
    wanted: dict[str, Any] = {"mode": answers.to_digits(mode)}
    wanted |= {name: value for name, value in (("owner", owner), ("group", group)) if value}
    return Ask("set_permissions", "POST", "/files/permissions", answers.nothing, body={path: wanted})


def metrics() -> Ask[SandboxMetrics]:
    return Ask("metrics", "GET", "/metrics", answers.one(answers.metrics))


def get_policy() -> Ask[NetworkPolicy]:
    return Ask("get_policy", "GET", "/policy", answers.one(answers.policy))


def set_policy(policy: NetworkPolicy) -> Ask[None]:
    return Ask("set_policy", "PUT", "/policy", answers.nothing, body=policy_document(policy))


def add_rules(rules: Sequence[EgressRule]) -> Ask[None]:
    body = [{"action": rule.action, "target": rule.target} for rule in rules]
    return Ask("add_rules", "PATCH", "/policy", answers.nothing, body=body)


def remove_rules(targets: Sequence[str]) -> Ask[None]:
    return Ask("remove_rules", "DELETE", "/policy", answers.nothing, body=list(targets))


def policy_document(policy: NetworkPolicy) -> dict[str, Any]:
    return {
        "defaultAction": policy.default_action,
        "egress": [{"action": rule.action, "target": rule.target} for rule in policy.egress],
    }


def _sandbox(sandbox_id: str, rest: str = "") -> str:
    return f"/sandboxes/{_part('sandbox', sandbox_id)}{rest}"


def _part(kind: str, name: str) -> str:
    """An id as one part of a path, whatever is in it."""
    if not name or name in (".", ".."):
        raise InvalidArgument(f"{name!r} is no id of a {kind}")
    return quote(name, safe="")
