"""Every program in `examples/` does what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each prints at its end, which it can only print when all before it worked.
ENDS = {
    "agent_loop.py": '== turn 3 is kept\n\ndef add(a, b):\n    """The sum."""\n    return a + b\n\n',
    "notebook.py": "[3] error 'three' is not in list\n[4] ok 3.15\nlargest 3.4\n",
    "web_app.py": "<h1>second</h1>\n200 2 processes, one of them alive\nstopped, and nothing is left\n",
    "orchestrator.py": "fail: exit code 3\nthe answer is 45\nrefused: start_failed\nnothing is left\n",
}


def test_every_example_is_known_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ENDS)


@pytest.mark.root
@pytest.mark.parametrize("name", ENDS)
def test_an_example_runs(name: str, data_dir: Path) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, "SANDLOT_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(ENDS[name]), ran.stdout
