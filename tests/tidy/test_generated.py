"""What `make gen` writes is what is there, and the generator notices when its sources change."""

import ast
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from tools import gen_opensandbox, gen_sync, gen_wire

RUFF = Path(sys.executable).with_name("ruff")
pytestmark = pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed beside this Python")

KILL = "    @in_portal\n    async def kill(self) -> bool:"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy that can be changed."""
    for name in gen_sync.SOURCES:
        shutil.copy(gen_sync.SDK / f"{name}.py", tmp_path)
    return tmp_path


def edit(sources: Path, name: str, old: str, new: str) -> None:
    text = (sources / name).read_text()
    assert text.count(old) >= 1, f"{name} has no {old!r} any more: the test has to be changed, too"
    (sources / name).write_text(text.replace(old, new, 1))


def method(text: str, owner: str, name: str) -> ast.FunctionDef:
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == owner]
    return next(node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == name)


def test_the_sync_face_is_current() -> None:
    assert gen_sync.generate() == gen_sync.TARGET.read_text(), "run `make gen`"


def test_the_sync_client_of_opensandbox_is_current() -> None:
    assert gen_opensandbox.generate() == gen_opensandbox.TARGET.read_text(), "run `make gen`"


@pytest.mark.skipif(
    not gen_wire.PLUGIN.exists() or importlib.util.find_spec("grpc_tools") is None,
    reason="protoc and protoc-gen-py are not installed beside this Python",
)
def test_the_messages_of_the_wire_are_current() -> None:
    there = {name: (gen_wire.TARGET / name).read_text() for name in gen_wire.files_of(gen_wire.TARGET)}
    assert gen_wire.generate() == there, "run `make gen`"


def test_a_copy_of_the_sources_gives_the_same(sources: Path) -> None:
    assert gen_sync.generate(sources) == gen_sync.TARGET.read_text()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("files.py", "parents: bool = True", "parents: bool = False"),
        ("files.py", "mode: int = 0o755", "mode: int = 0o700"),
        ("sandbox.py", "detach: bool = False", "detach: bool = False, name: str = ''"),
        ("sandbox.py", "End everything in it and", "End everything in this one and"),
        ("commands.py", "-> list[CallRecord]:", "-> tuple[CallRecord, ...]:"),
    ],
    ids=["default", "mode", "argument", "docstring", "result"],
)
def test_a_change_is_noticed(name: str, old: str, new: str, sources: Path) -> None:
    edit(sources, name, old, new)
    assert gen_sync.generate(sources) != gen_sync.TARGET.read_text()


def test_a_new_method_is_carried_over(sources: Path) -> None:
    new = '''    @in_portal
    async def pause(self, seconds: float, *, mode: int = 0o700) -> SessionInfo:
        """Stop for a while."""
        return await (await self._client.host()).get(self._id)

'''
    edit(sources, "sandbox.py", KILL, new + KILL)
    text = gen_sync.generate(sources)
    found = method(text, "Sandbox", "pause")
    assert ast.unparse(found.args) == "self, seconds: float, *, mode: int=448"
    assert "mode: int = 0o700" in text, "modes are written as people write them"
    assert ast.get_docstring(found) == "Stop for a while."
    assert ast.unparse(found.body[1]) == "return self._inner.client.portal.run(self._inner.pause(seconds, mode=mode))"


def test_what_it_cannot_carry_over_is_refused(sources: Path) -> None:
    edit(sources, "sandbox.py", "async def kill(self) -> bool:", "async def kill(self, **more: str) -> bool:")
    with pytest.raises(AssertionError, match="passes them on"):
        gen_sync.generate(sources)


def test_check_tells_by_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gen_sync.py", "--check"])
    assert gen_sync.main() == 0
    stale = tmp_path / "src" / "sync.py"
    stale.parent.mkdir()
    stale.write_text("old")
    monkeypatch.setattr(gen_sync, "TARGET", stale)
    monkeypatch.setattr(gen_sync, "ROOT", tmp_path)
    assert gen_sync.main() == 1
    assert stale.read_text() == "old", "--check writes nothing"
