"""A minimal OCI bundle: the yardstick, a program that sleeps, and the libraries it needs."""

import json
import re
import shutil
import subprocess
from pathlib import Path

NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
SLEEP = "/bin/sleep"
MOUNTS = (
    ("/proc", "proc", "proc", ()),
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
)


def write_bundle(folder: Path, program: Path, *, idle: bool = False, cgroups: bool = True) -> Path:
    """`idle`: its first process sleeps, so that commands can be run in it. Gives the folder."""
    root = folder / "rootfs"
    for name in ("proc", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(program, root / "true")
    (root / "true").chmod(0o755)
    for file in (SLEEP, *_libraries(SLEEP)):
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    namespaces = [{"type": name} for name in (*NAMESPACES, *(("cgroup",) if cgroups else ()))]
    config = {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [SLEEP, "3600"] if idle else ["/true", "true"],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "bench",
        "mounts": [
            {"destination": where, "type": kind, "source": source, "options": list(options)}
            for where, kind, source, options in MOUNTS
        ],
        "linux": {"namespaces": namespaces},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _libraries(program: str) -> list[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", told)
