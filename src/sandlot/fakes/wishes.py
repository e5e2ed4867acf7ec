"""What a fake session cannot have."""

from sandlot.model import Capability, CapabilityNotSupported, NetworkPolicy, SessionSpec


def check_wishes(spec: SessionSpec) -> None:
    """Raises CapabilityNotSupported."""
    asked = {
        Capability.NETWORK: spec.network != NetworkPolicy(),
        Capability.SECRETS: bool(spec.secrets),
        Capability.PORTS: bool(spec.ports),
        Capability.VOLUMES: bool(spec.mounts),
        Capability.USERS: spec.user is not None,
        Capability.MEMORY: spec.idle_timeout_s is not None or spec.call_snapshots,
    }
    missing = [str(one) for one, is_asked in asked.items() if is_asked]
    missing += [f"limit_{name}" for name in spec.resources.asked()]
    if missing:
        raise CapabilityNotSupported(
            f"the fake cannot give what was asked for: {', '.join(missing)}",
            next_step="leave it out",
            capability=missing[0],
        )
