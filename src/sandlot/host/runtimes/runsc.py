"""What `runsc` is told: its words, and the text of `config.json`. Pure."""

import json
from collections.abc import Sequence
from pathlib import Path

STAGE = "/sys"  # of runsc's own mount namespace: guest/src/runsc.h
# As root inside has under `namespaces`, and two more for pid 1 alone: it mounts, and goes into the session's root.
CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE", "CAP_MKNOD", "CAP_AUDIT_WRITE", "CAP_SETFCAP",
)  # fmt: skip
OF_PID_ONE = ("CAP_SYS_ADMIN", "CAP_SYS_CHROOT")
# As `auto` tries them. Where virtualisation is itself emulated `kvm` may hang, so it is taken when asked for, or as the
# last way.
PLATFORMS = ("systrap", "ptrace", "kvm")
IDS = 65536


def config(hostname: str, first_id: int) -> str:
    """Of a sandbox whose root is small and only read, with the session's root below `/stage`."""
    held = [*CAPABILITIES, *OF_PID_ONE]
    mapping = [{"containerID": 0, "hostID": first_id, "size": IDS}]
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/guest", "sentry"],
                "env": [],
                "cwd": "/",
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
                "rlimits": [
                    {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1048576},
                    {"type": "RLIMIT_CORE", "soft": 1, "hard": 1},
                ],
            },
            "root": {"path": "rootfs", "readonly": True},
            "hostname": hostname,
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/stage",
                    "type": "bind",
                    "source": f"{STAGE}/tree",
                    "options": ["rbind", "rslave", "rw"],
                },
            ],
            "linux": {
                # Those of the network, of pids and of names are runsc's own, made by the keeper.
                "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "user")],
                "uidMappings": mapping,
                "gidMappings": mapping,
                "maskedPaths": [],
            },
        }
    )


def flags(platform: str, log: Path) -> tuple[str, ...]:
    """In front of each verb. Control groups are ours; there is no network but the sandbox's own loopback."""
    return (
        f"--root={STAGE}/state",
        f"--platform={platform}",
        f"--log={log}",
        "--ignore-cgroups",
        "--network=none",
        "--overlay2=none",
    )


def checkpoint_words(program: str, given: Sequence[str], name: str, image: Path) -> tuple[str, ...]:
    return (program, *given, "checkpoint", f"--image-path={image}", name)


def restore_words(program: str, given: Sequence[str], name: str, image: Path) -> tuple[str, ...]:
    return (program, *given, "restore", f"--image-path={image}", f"--bundle={STAGE}/bundle", name)


def run_words(program: str, given: Sequence[str], name: str) -> tuple[str, ...]:
    return (program, *given, "run", f"--bundle={STAGE}/bundle", name)
