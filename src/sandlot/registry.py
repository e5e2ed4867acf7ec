"""What is loaded by name, and only when asked for: a client needs no engine, and an engine no library of a vendor."""

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from sandlot.model import CapabilityNotSupported, InvalidArgument, Unavailable


@dataclass(frozen=True, slots=True)
class Row:
    axis: str
    name: str
    path: str  # module:attribute
    needs: str  # what to do when it cannot be imported
    platform: str = ""  # of sys.platform; empty: any


_ELSEWHERE = "the engine needs Linux; elsewhere use a server"
ROWS = (
    Row("sdk", "portal", "sandlot.sdk.portal:portal", "report it"),
    Row("sdk", "engines", "sandlot.sdk.engines:engines", "report it"),
    Row("sdk", "workspace", "sandlot.sdk.workspace:Workspace", "report it"),
    Row("sdk", "fill", "sandlot.sdk.workspace:fill", "report it"),
    Row("sdk", "upload", "sandlot.sdk.workspace:upload", "report it"),
    Row("sdk", "download", "sandlot.sdk.workspace:download", "report it"),
    Row("sdk", "drain", "sandlot.sdk.draining:drain", "report it"),
    Row("control", "node", "sandlot.control.node:NodeSandboxControl", "report it"),
    Row("server", "keys", "sandlot.wiring.identity:keys_of", "report it"),
    Row("server", "webhook-secret", "sandlot.wiring.telling:webhook_secret", "report it"),
    Row("server", "audit", "sandlot.wiring.auditing:AuditReader", "report it"),
    Row("server", "redaction", "sandlot.server.redaction:redact_document", "report it"),
    Row("server", "host-figures", "sandlot.server.figures:host_page", "report it"),
    Row("server", "journal-facts", "sandlot.host.journal_facts:read_facts", "report it"),
    Row("host", "engine", "sandlot.wiring.embedded:build", _ELSEWHERE, "linux"),
    Row(
        "host", "embedded", "sandlot.wiring.holding:Holding", "the engine needs Linux; elsewhere use a server", "linux"
    ),
    Row("host", "client", "sandlot.rpc.client:HostClient", "install sandlot with all that it depends on"),
    Row("server", "spans", "sandlot.server.spans:Spans", "pip install sandlot[otel]"),
    Row("server", "door", "sandlot.wiring.door:Door", "report it"),
    Row("server", "serving", "sandlot.wiring.serving:Serving", "a server needs Linux", "linux"),
    Row("server", "logs", "sandlot.server.logs:configure", "report it"),
    Row("host", "fake", "sandlot.fakes.host:FakeHost", "report it"),
    Row("target", "native", "sandlot.wiring.targets:native", "report it"),
    Row("target", "node", "sandlot.wiring.targets:node", "report it"),
    Row("target", "opensandbox", "sandlot.wiring.opensandbox_targets:opensandbox", "report it"),
    Row("target", "opensandbox-control", "sandlot.wiring.opensandbox_targets:opensandbox_control", "report it"),
    Row("target", "local", "sandlot.wiring.targets:local", "report it"),
    Row("target", "local-provisioner", "sandlot.wiring.targets:local_provisioner", "report it"),
    Row("target", "fake-provisioner", "sandlot.wiring.targets:fake_provisioner", "report it"),
    Row("target", "fake-host", "sandlot.wiring.targets:fake_host", "report it"),
    Row("target", "fake-environment", "sandlot.wiring.targets:fake_environment", "report it"),
    Row("target", "fake-control", "sandlot.wiring.targets:fake_control", "report it"),
)


def load(axis: str, name: str) -> Any:
    """The thing itself. Raises InvalidArgument for a name that nobody knows, CapabilityNotSupported on a machine that
    it does not run on, Unavailable when it cannot be imported."""
    for row in ROWS:
        if (row.axis, row.name) == (axis, name):
            return _import(row)
    known = ", ".join(row.name for row in ROWS if row.axis == axis)
    raise InvalidArgument(f"there is no {axis} {name!r}", next_step=f"use one of: {known}")


def _import(row: Row) -> Any:
    if row.platform not in ("", sys.platform):
        raise CapabilityNotSupported(f"{row.axis} {row.name!r} does not run on {sys.platform}", next_step=row.needs)
    module, _, attribute = row.path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"{row.axis} {row.name!r} cannot be loaded: {error}", next_step=row.needs) from error
    except RuntimeError as error:  # the standard library does not load all of itself after the main thread's end
        raise Unavailable(
            f"{row.axis} {row.name!r} cannot be loaded: {error}",
            next_step="let the main thread wait for the others",
        ) from error
