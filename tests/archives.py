"""Archives as tests need them: broken in one way, or whole."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
APPLETS = (
    *("sh", "ls", "touch", "cat", "true", "id", "env", "pwd", "stat", "echo", "test", "find", "ln", "mkdir", "rm"),
    *("chmod", "chown"),
)
PASSWD = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/user:/bin/sh\n"


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member; fields are those of tarfile."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    for field, value in fields.items():
        setattr(member, field, value)
    return member, data


def folder(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    given: dict[str, Any] = {"mode": 0o755, **fields}
    return entry(name, type=tarfile.DIRTYPE, **given)


def link(name: str, target: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target, **fields)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data) if member.size else None)
    return out.getvalue()


def busybox_members() -> list[tuple[tarfile.TarInfo, bytes]]:
    """A small root filesystem with nothing of the C library in it."""
    return [
        folder("./"),
        folder("./bin"),
        entry("./bin/busybox", BUSYBOX.read_bytes(), mode=0o755),
        *(link(f"./bin/{name}", "busybox") for name in APPLETS),
        folder("./etc"),
        entry("./etc/passwd", PASSWD),
        entry("./etc/group", b"root:x:0:\napps:x:2000:app\n"),
    ]


def busybox_tar() -> bytes:
    return tar(*busybox_members())


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Image:
    """An image of some layers, to be written in any of the forms."""

    def __init__(
        self, layers: Iterable[bytes], config: Mapping[str, object] | None = None, *, zipped: bool = True
    ) -> None:
        plain = list(layers)
        stored = [gzip.compress(layer, 1, mtime=0) if zipped else layer for layer in plain]
        self.blobs: dict[str, bytes] = {digest(one): one for one in stored}
        document = {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in plain]},
        }
        self.config = self._add(document)
        self.platform = {"os": "linux", "architecture": document["architecture"]}
        media = "application/vnd.oci.image"
        self.manifest_document: dict[str, object] = {
            "schemaVersion": 2,
            "mediaType": f"{media}.manifest.v1+json",
            "config": self._descriptor(self.config, f"{media}.config.v1+json"),
            "layers": [self._descriptor(digest(one), f"{media}.layer.v1.tar+gzip") for one in stored],
        }
        self.manifest = self._add(self.manifest_document)
        self.layers = [digest(one) for one in stored]

    def _add(self, document: object) -> str:
        data = json.dumps(document).encode()
        self.blobs[digest(data)] = data
        return digest(data)

    def _descriptor(self, name: str, media: str) -> dict[str, object]:
        return {"mediaType": media, "digest": name, "size": len(self.blobs[name])}

    def index(self) -> dict[str, object]:
        """With an image for another machine before this one, as most have."""
        other = self._add({"not": "for us"})
        media = "application/vnd.oci.image.manifest.v1+json"
        return {
            "schemaVersion": 2,
            "manifests": [
                {**self._descriptor(other, media), "platform": {"os": "linux", "architecture": "s390x"}},
                {**self._descriptor(self.manifest, media), "platform": self.platform},
            ],
        }

    def layout(self) -> dict[str, bytes]:
        """The files of an OCI image layout."""
        index = self.index()
        return {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps(index).encode(),
            **{f"blobs/sha256/{name[7:]}": data for name, data in self.blobs.items()},
        }

    def write_layout(self, into: Path) -> Path:
        for name, data in self.layout().items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(data)
        return into

    def saved(self) -> bytes:
        """What `docker save` writes."""
        manifest = [
            {
                "Config": f"blobs/sha256/{self.config[7:]}",
                "RepoTags": ["app:1"],
                "Layers": [f"blobs/sha256/{name[7:]}" for name in self.layers],
            }
        ]
        files = {f"blobs/sha256/{name[7:]}": data for name, data in self.blobs.items()}
        files["manifest.json"] = json.dumps(manifest).encode()
        return tar(folder("blobs/"), folder("blobs/sha256/"), *(entry(name, data) for name, data in files.items()))
