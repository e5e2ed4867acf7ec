"""OpenSandbox's interface on our sessions: its lifecycle API, and ExecD and egress of each sandbox."""

from sandlot.gateways.opensandbox.application import OpenSandboxGateway
from sandlot.gateways.opensandbox.settings import GatewaySettings

__all__ = ["GatewaySettings", "OpenSandboxGateway"]
