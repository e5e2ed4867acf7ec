"""The scout's patterns and texts under sanitizers, for a moment; `make fuzz` takes its time."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

GUEST = Path(__file__).parents[3] / "guest"
INPUTS = 1500


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("seed", ["1", "2"])
def test_any_pattern_and_any_text(tmp_path: Path, seed: str) -> None:
    program = tmp_path / "fuzz-scout-plain"
    sources = [GUEST / "fuzz" / "fuzz_scout.c", GUEST / "scout" / "automaton.c"]
    flags = ["-std=gnu11", "-O1", "-DPLAIN", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    words = ["gcc", *flags, "-I", GUEST / "scout", "-o", program, *sources, "-pthread"]
    made = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    if made.returncode and "asan" in made.stderr:
        pytest.skip("the sanitizers of gcc are not installed")
    assert made.returncode == 0, made.stderr
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    ran = subprocess.run(
        [program, seed, str(INPUTS)], capture_output=True, text=True, timeout=200, check=False, env=env
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert f"{INPUTS} inputs" in ran.stdout
