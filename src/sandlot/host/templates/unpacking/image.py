"""Images of others: an OCI image layout, or what `docker save` writes. Every part of one is found by its digest, and is
what that digest says, or the image is refused."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sandlot.host.templates.unpacking.refusal import Refused, shown

_DOCUMENT_BYTES_MAX = 4 << 20
_LAYERS_MAX = 512
_NESTED_MAX = 4
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a file."""

    fd: int
    offset: int = 0
    size: int | None = None  # None: to its end


@dataclass(frozen=True, slots=True)
class LayerPart:
    part: Part
    digest: str  # of the bytes as they are stored; empty: not told
    diff_id: str  # of what they unpack to


@dataclass(frozen=True, slots=True)
class Image:
    config: Mapping[str, Any]
    layers: Sequence[LayerPart]
    names: Sequence[str] = field(default_factory=tuple[str, ...])


Find = Callable[[str], Part | None]


def is_digest(text: object) -> bool:
    return isinstance(text, str) and bool(_DIGEST.fullmatch(text))


def read_document(part: Part | None, what: str, digest: str = "") -> Any:
    """JSON of a bounded size. Raises Refused."""
    if part is None:
        raise Refused(f"{what} is missing")
    size = os.fstat(part.fd).st_size if part.size is None else part.size
    if size > _DOCUMENT_BYTES_MAX:
        raise Refused(f"{what} has {size} bytes, and {_DOCUMENT_BYTES_MAX} are allowed")
    data = os.pread(part.fd, size, part.offset)
    if digest and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise Refused(f"{what} is not what its digest says")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{what} is not JSON") from error


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{what} is not of the form that was expected")
    return cast("Mapping[str, Any]", value)


def _listing(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(f"{what} is not of the form that was expected")
    return cast("list[Any]", value)


def open_image(find: Find, platform: tuple[str, str], reference: str = "") -> Image:
    """`platform`: system and architecture. `reference`: which image of several. Raises Refused."""
    if find("index.json") is not None:
        return _open_layout(find, platform, reference)
    return _open_saved(find, reference)


# ---- an image layout --------------------------------------------------------------------------------------------


def _blob(find: Find, descriptor: Mapping[str, Any], what: str) -> tuple[Part, str]:
    digest = descriptor.get("digest")
    if not is_digest(digest):
        raise Refused(f"{what} has a digest that cannot be checked: {shown(str(digest))}")
    part = find(f"blobs/sha256/{str(digest)[7:]}")
    if part is None:
        raise Refused(f"{what} is missing: {digest}")
    return part, str(digest)


def _open_layout(find: Find, platform: tuple[str, str], reference: str) -> Image:
    index = _mapping(read_document(find("index.json"), "index.json"), "index.json")
    names: tuple[str, ...] = ()
    for _level in range(_NESTED_MAX):
        chosen = choose(_listing(index.get("manifests"), "the index"), platform, reference)
        annotations = chosen.get("annotations")
        if isinstance(annotations, dict):
            annotated = cast("dict[str, object]", annotations)
            found = annotated.get("io.containerd.image.name") or annotated.get("org.opencontainers.image.ref.name")
            names = names or ((found,) if isinstance(found, str) else ())
        part, digest = _blob(find, chosen, "the manifest")
        index = _mapping(read_document(part, "the manifest", digest), "the manifest")
        reference = ""
        if "manifests" not in index:
            return _from_manifest(find, index, names)
    raise Refused("indexes lie in each other too deep")


def choose(manifests: list[Any], platform: tuple[str, str], reference: str = "") -> Mapping[str, Any]:
    """The one for this machine. One that does not say what it is for is taken when there is no other. Raises
    Refused."""
    listed = [_mapping(one, "the index") for one in manifests[:1000]]
    if reference:
        listed = [one for one in listed if reference in _mapping(one.get("annotations") or {}, "the index").values()]
        if not listed:
            raise Refused(f"there is no image called {shown(reference)} in it")
    fitting: list[Mapping[str, Any]] = []
    others: set[str] = set()
    for one in listed:
        asked = one.get("platform")
        if not isinstance(asked, dict):
            fitting.append(one)
            continue
        told = cast("dict[str, object]", asked)
        if (told.get("os"), told.get("architecture")) == platform:
            fitting.insert(0, one)
        elif told.get("os") != "unknown":  # those are attestations
            others.add(f"{told.get('os')}/{told.get('architecture')}")
    if not fitting:
        there = f"; it is there for {', '.join(sorted(others))}" if others else ""
        raise Refused(f"it is not there for {'/'.join(platform)}{shown(there)}")
    return fitting[0]


def _from_manifest(find: Find, manifest: Mapping[str, Any], names: Sequence[str]) -> Image:
    part, digest = _blob(find, _mapping(manifest.get("config"), "the manifest"), "the configuration")
    config = _mapping(read_document(part, "the configuration", digest), "the configuration")
    stored = [_blob(find, _mapping(one, "a layer"), "a layer") for one in _listing(manifest.get("layers"), "layers")]
    return Image(config, _layers(config, stored), names)


def _layers(config: Mapping[str, Any], stored: Sequence[tuple[Part, str]]) -> list[LayerPart]:
    listed = _listing(_mapping(config.get("rootfs"), "the configuration").get("diff_ids"), "the layers")
    if len(listed) != len(stored) or len(listed) > _LAYERS_MAX or not all(map(is_digest, listed)):
        raise Refused("the configuration does not tell the layers that are there")
    return [LayerPart(part, digest, diff_id) for (part, digest), diff_id in zip(stored, listed, strict=True)]


# ---- what `docker save` writes ----------------------------------------------------------------------------------


def _open_saved(find: Find, reference: str) -> Image:
    images = [
        _mapping(one, "manifest.json")
        for one in _listing(read_document(find("manifest.json"), "manifest.json"), "manifest.json")
    ]
    if reference:
        images = [one for one in images if reference in (one.get("RepoTags") or ())]
    if len(images) != 1:
        known = sorted(str(tag) for one in images for tag in one.get("RepoTags") or ())
        raise Refused(
            f"it holds {len(images)} images{f' called {reference}' if reference else ''}; say which one is meant"
            + (f": {shown(', '.join(known))}" if known else "")
        )
    image = images[0]
    name = str(image.get("Config"))
    # The name of the file is its digest, in every form that there is.
    hexadecimal = name.removesuffix(".json").rpartition("/")[2]
    digest = f"sha256:{hexadecimal}"
    if not is_digest(digest):
        raise Refused(f"the configuration has a name that is no digest: {shown(name)}")
    config = _mapping(read_document(find(name), "the configuration", digest), "the configuration")
    stored: list[tuple[Part, str]] = []
    for one in _listing(image.get("Layers"), "the layers"):
        part = find(str(one))
        if part is None:
            raise Refused(f"a layer is missing: {shown(str(one))}")
        stored.append((part, ""))
    tags = image.get("RepoTags")
    names = tuple(str(tag) for tag in cast("list[object]", tags)[:8]) if isinstance(tags, list) else ()
    return Image(config, _layers(config, stored), names)
