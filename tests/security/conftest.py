"""One engine for all tests of a module, and the program that attacks from inside."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.stage import Stage
from tests.security.syscalls import numbers


@pytest.fixture(scope="session")
def attempt_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """attempt.c, compiled."""
    known = numbers()
    if not known or not shutil.which("gcc"):
        pytest.skip("needs gcc and the kernel's headers for x86_64")
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "names.h").write_text("".join(f'{{"{name}", {number}}},\n' for name, number in known.items()))
    source = Path(__file__).parent / "attempt.c"
    subprocess.run(
        ["gcc", "-O1", "-Wall", "-Werror", "-static", f"-I{folder}", "-o", folder / "attempt", source], check=True
    )
    program = (folder / "attempt").read_bytes()
    shutil.rmtree(folder)
    return program


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Iterator[Stage]:
    data = tmp_path_factory.mktemp("engine") / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    mark = secrets.token_hex(16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_MARK", mark)
        with Stage(data, mark) as live:
            yield live
    (data / "templates").unlink()
    shutil.rmtree(data.parent)
