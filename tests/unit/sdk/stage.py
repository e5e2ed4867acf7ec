"""Where tests of the SDK play: a data directory of their own, and programs of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandlot import Client, Sandbox

NAMESPACES = pytest.param("namespaces", marks=pytest.mark.root)
RUNTIMES = ["none", NAMESPACES]
PROGRAM_S = 30.0
# Every program of these begins with it. `none` is there for everyone, and quick to start.
BEGIN = """
import asyncio, atexit, os, sys, threading, time
from sandlot import *

def make(**more):
    return Sandbox.create(runtime="none", **more)

def say(*words):
    print(*(str(word).strip() for word in words), flush=True)

"""


@contextmanager
def directory(path: Path, templates: Path) -> Generator[Path]:
    """An empty data directory, removed at the end."""
    path.mkdir(mode=0o700, parents=True)
    (path / "templates").symlink_to(templates)
    try:
        yield path
    finally:
        (path / "templates").unlink()
        shutil.rmtree(path)


@contextmanager
def opened(data: Path) -> Generator[Client]:
    """A client of a data directory, whose sandboxes are gone at the end."""
    with Client(data_dir=data) as client:
        try:
            yield client
        finally:
            for info in Sandbox.list(client=client):
                Sandbox(info.session_id, client=client).kill()


def environment(data: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    keeper = os.environ.get("SANDLOT_KEEPER")
    return {**kept, "SANDLOT_DATA_DIR": str(data)} | ({"SANDLOT_KEEPER": keeper} if keeper else {})


def program(data: Path, text: str, name: str = "program.py") -> list[str]:
    """A command line that runs a text in a process of its own. In a file, for whoever starts it again with `spawn`."""
    script = data.with_name(name)
    script.write_text(BEGIN + text)
    return [sys.executable, "-W", "default", str(script)]


def run_program(data: Path, text: str, name: str = "program.py") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(data, text, name), env=environment(data), capture_output=True, text=True, timeout=PROGRAM_S
    )
