"""One engine for all tests of a module, and the program that attacks from inside."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.attack.arena import load_program
from tests.security.stage import Stage


@pytest.fixture(scope="session")
def attempt_program() -> bytes:
    """guest/attack/attempt.c, compiled."""
    return load_program()


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
