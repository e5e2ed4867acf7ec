"""A client for any OpenSandbox server, async and sync. Nothing here knows the rest of Sandlot but its errors."""

from sandlot.opensandbox.async_client import AsyncOpenSandboxClient
from sandlot.opensandbox.client import OpenSandboxClient
from sandlot.opensandbox.control import OpenSandboxControl
from sandlot.opensandbox.events import Event
from sandlot.opensandbox.values import (
    EGRESS_PORT,
    EXECD_PORT,
    CommandLogs,
    CommandResult,
    CommandStatus,
    EgressRule,
    Endpoint,
    FileInfo,
    FileUpload,
    NetworkPolicy,
    SandboxMetrics,
    SandboxOpts,
    SandboxResponse,
    SnapshotResponse,
)
from sandlot.opensandbox.vendor import OpenSandboxVendor, VendorOptions

__all__ = [
    "EGRESS_PORT",
    "EXECD_PORT",
    "AsyncOpenSandboxClient",
    "CommandLogs",
    "CommandResult",
    "CommandStatus",
    "EgressRule",
    "Endpoint",
    "Event",
    "FileInfo",
    "FileUpload",
    "NetworkPolicy",
    "OpenSandboxClient",
    "OpenSandboxControl",
    "OpenSandboxVendor",
    "SandboxMetrics",
    "SandboxOpts",
    "SandboxResponse",
    "SnapshotResponse",
    "VendorOptions",
]
