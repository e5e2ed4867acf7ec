"""A script of Node with the public packages of Connect, and messages that they generate from our proto."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.fakes.host import FakeHost
from tests.unit.rpc.serving import serving

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).parent / "node"
FOLDER = ROOT / "build" / "node"
INSTALL_S = 150


@pytest.fixture(scope="module")
def script() -> Path:
    """Where it can run: the packages are installed once, and again when their versions change."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    if not (ROOT / "proto").is_dir():
        pytest.skip("proto/ is not here: this is no checkout")
    FOLDER.mkdir(parents=True, exist_ok=True)
    package = (SOURCE / "package.json").read_text()
    done = FOLDER / "installed.json"
    if not done.exists() or done.read_text() != package:
        (FOLDER / "package.json").write_text(package)
        install = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            subprocess.run(install, cwd=FOLDER, check=True, capture_output=True, timeout=INSTALL_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"npm cannot fetch the packages: {error}")
        done.write_text(package)
    generated = FOLDER / "gen"
    shutil.rmtree(generated, ignore_errors=True)
    generated.mkdir()
    plugin = FOLDER / "node_modules" / ".bin" / "protoc-gen-es"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--plugin=protoc-gen-es={plugin}"]
    sources = sorted(str(file) for file in (ROOT / "proto").rglob("*.proto"))
    subprocess.run(
        [*protoc, f"--es_out={generated}", "--es_opt=target=js,import_extension=js", *sources], check=True, timeout=60
    )
    shutil.copy(SOURCE / "client.mjs", FOLDER)
    return FOLDER / "client.mjs"


@pytest.mark.parametrize("protocol", ["connect", "json", "grpc-web"])
async def test_a_script_of_node(script: Path, protocol: str) -> None:
    async with serving(FakeHost()) as server, asyncio.timeout(120):
        ran = await asyncio.create_subprocess_exec("node", script, server.url, protocol, stdout=-1, stderr=-1)
        try:
            out, err = await ran.communicate()
        finally:
            if ran.returncode is None:
                ran.kill()
                await ran.wait()
    assert (ran.returncode, err.decode()) == (0, "")
    assert json.loads(out) == {
        "labels": {"from": protocol},
        "told": ["opened", "started", "one two", "result"],
        "read": "one two",
        "code": "NotFound session_not_found",
    }
