"""Images from a registry on loopback, with everything that can go wrong on the way."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.host.templates.registry import parse_reference
from sandlot.model import (
    CallRequest,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SessionSpec,
    TemplateInfo,
    TemplatePull,
    TemplateStep,
    Unavailable,
)
from tests.archives import Image, busybox_tar, entry, tar
from tests.conftest import run
from tests.e2e.loopback_registry import LoopbackRegistry, serving

pytestmark = pytest.mark.root

LAYER = tar(entry("payload", os.urandom(300_000)))


@pytest.fixture
def registry() -> LoopbackRegistry:
    return LoopbackRegistry(Image([busybox_tar(), LAYER], {"Env": ["A=1"]}))


@pytest.fixture
def address(registry: LoopbackRegistry) -> Iterator[str]:
    with serving(registry) as address:
        yield address


async def pull(
    host: SandboxHostService, reference: str, auth_file: str = ""
) -> tuple[TemplateInfo, list[TemplateStep]]:
    steps: list[TemplateStep] = []
    async with host.make_template(TemplatePull(reference, "pulled", auth_file)) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return event, steps
            steps.append(event)
    raise AssertionError("nothing was made")


def credentials(path: Path, address: str, password: str) -> str:
    auth = base64.b64encode(f"me:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {address.partition("/")[0]: {"auth": auth}}}))
    return str(path)


async def test_an_image_of_several_machines(host: SandboxHostService, registry: LoopbackRegistry, address: str) -> None:
    registry.busy = 2
    made, steps = await pull(host, f"{address}:1")
    assert made.source == f"{address}:1"
    assert {step.stage for step in steps} >= {"downloading", "unpacking"} or steps
    session = await host.create(SessionSpec(template="pulled"))
    ran = await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", "stat -c %s /payload; echo $A")))
    assert ran.stdout == b"300000\n1\n"
    by_digest, _steps = await pull(host, f"{address}@{registry.tags['single']}")
    assert by_digest.digest == made.digest
    blobs = host._settings.data / "imports" / "blobs"  # pyright: ignore[reportPrivateUsage]
    assert not list(blobs.iterdir()), "what is unpacked is not kept twice"


async def test_a_transfer_that_is_cut_goes_on(
    host: SandboxHostService, registry: LoopbackRegistry, address: str
) -> None:
    registry.cut_after = [100, 5, 100_000, 0, 50_000]
    await pull(host, f"{address}:1")
    ranges = [asked for _path, asked, _given in registry.requests if asked]
    assert ranges, "what had come was not asked for again"
    registry.requests.clear()
    registry.ignores_ranges = True
    registry.cut_after = [100]
    await pull(host, f"{address}:single")


async def test_what_came_before_a_failure_is_kept(
    host: SandboxHostService, registry: LoopbackRegistry, address: str
) -> None:
    registry.cut_after = [10_000, 150_000, *[0] * 40]
    with pytest.raises(Unavailable, match="again and again"):
        await pull(host, f"{address}:1")
    assert not await host.list_templates()
    registry.cut_after = []
    registry.requests.clear()
    await pull(host, f"{address}:1")
    assert any(asked for _path, asked, _given in registry.requests)


async def test_a_wrong_digest_is_refused_and_forgotten(
    host: SandboxHostService, registry: LoopbackRegistry, address: str
) -> None:
    blob = next(name for name, data in registry.documents.items() if len(data) > 250_000)
    right = registry.documents[blob]
    registry.wrong[blob] = bytes(len(right))
    with pytest.raises(InvalidArgument, match="not what its digest says"):
        await pull(host, f"{address}:1")
    registry.wrong = {registry.tags["single"]: b"{}"}
    with pytest.raises(InvalidArgument, match="not what its digest says"):
        await pull(host, f"{address}:1")
    registry.wrong = {}
    await pull(host, f"{address}:1")


async def test_credentials(host: SandboxHostService, registry: LoopbackRegistry, address: str, tmp_path: Path) -> None:
    registry.password = "secret"
    with pytest.raises(PermissionDenied, match="not for us"):
        await pull(host, f"{address}:1")
    with pytest.raises(PermissionDenied, match="not for us"):
        await pull(host, f"{address}:1", credentials(tmp_path / "wrong", address, "other"))
    right = credentials(tmp_path / "right", address, "secret")
    await pull(host, f"{address}:1", right)
    registry.basic_only = True
    await pull(host, f"{address}:1", right)
    (tmp_path / "broken").write_text("[]")
    with pytest.raises(InvalidArgument, match="no credentials in the form"):
        await pull(host, f"{address}:1", str(tmp_path / "broken"))


async def test_a_redirect_gets_no_credentials(
    host: SandboxHostService, registry: LoopbackRegistry, address: str, tmp_path: Path
) -> None:
    elsewhere = LoopbackRegistry(Image([busybox_tar(), LAYER], {"Env": ["A=1"]}))
    registry.password = "secret"
    with serving(elsewhere) as other:
        registry.redirect_to = f"http://{other.partition('/')[0]}"
        await pull(host, f"{address}:1", credentials(tmp_path / "auth", address, "secret"))
    assert elsewhere.requests
    assert {given for _path, _range, given in elsewhere.requests} == {None}
    registry.redirect_to = "http://registry.example"
    with pytest.raises(Unavailable, match="not safe"):
        await pull(host, f"{address}:1", credentials(tmp_path / "auth", address, "secret"))


async def test_what_is_not_there(host: SandboxHostService, address: str) -> None:
    with pytest.raises(NotFound):
        await pull(host, f"{address}:gone")
    with pytest.raises(Unavailable):
        await pull(host, "127.0.0.1:1/box/app:1")


@pytest.mark.parametrize("text", ["debian", "debian:12", "a/b", "", "http://a.b/c", "a.b/C", "a.b/../c", "a.b/c@md5:1"])
def test_references_name_their_registry(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_reference(text)
    assert parse_reference("a.b:5000/c/d:1@sha256:" + "0" * 64).wanted == "sha256:" + "0" * 64
