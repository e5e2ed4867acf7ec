"""Every message and every procedure of the wire, by name, as `proto/` declares them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from protobuf import Message

from sandlot.rpc.gen.sandlot.v1 import (
    calls_pb,
    code_pb,
    common_pb,
    errors_pb,
    events_pb,
    files_pb,
    host_pb,
    metrics_pb,
    moving_pb,
    processes_pb,
    sessions_pb,
    snapshots_pb,
    templates_pb,
    terminals_pb,
    tools_pb,
    volumes_pb,
)

AnyMessage = Message[Any]
_FILES = (
    calls_pb,
    code_pb,
    common_pb,
    errors_pb,
    events_pb,
    files_pb,
    host_pb,
    metrics_pb,
    moving_pb,
    processes_pb,
    sessions_pb,
    snapshots_pb,
    templates_pb,
    terminals_pb,
    tools_pb,
    volumes_pb,
)
MESSAGES: Mapping[str, type[AnyMessage]] = {
    desc.name: cast("type[AnyMessage]", getattr(file, desc.name)) for file in _FILES for desc in file.desc().messages
}


@dataclass(frozen=True, slots=True)
class Procedure:
    name: str
    service: str  # with its package
    request: type[AnyMessage]
    response: type[AnyMessage]
    takes_stream: bool
    gives_stream: bool

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


def _procedures() -> dict[str, Procedure]:
    found: dict[str, Procedure] = {}
    for file in _FILES:
        for service in file.desc().services:
            for method in service.methods:
                request, response = MESSAGES[method.input.name], MESSAGES[method.output.name]
                proto = method.proto
                streams = bool(proto.client_streaming), bool(proto.server_streaming)
                found[method.name] = Procedure(method.name, service.type_name, request, response, *streams)
    return found


PROCEDURES: Mapping[str, Procedure] = _procedures()
"""By name: no two services have one of the same."""
