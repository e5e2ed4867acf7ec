"""What `deploy/` asks for in a container is one list, is what the doctor asks for, and is enough to run a session."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.cli.rights import NEEDED
from sandlot.cli.verbs import VERBS
from sandlot.config.variables import VARIABLES
from tests.serving import environment

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
KUBERNETES = (ROOT / "deploy" / "kubernetes.yaml").read_text()
PAGE = (ROOT / "docs" / "operating" / "docker-kubernetes-ci.md").read_text()
PAGES = {"/readyz", "/healthz"}
# As container engines make it: parts of /proc can only be read, and there is another process 1.
CONTAINED = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
READ_ONLY = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"


def of_docker(text: str) -> list[str]:
    return [f"CAP_{name}" for name in re.findall(r"--cap-add=([A-Z_]+)", text)]


def entry(with_mount: bool = True) -> list[str]:
    """The words of the Dockerfile, without the program that takes up orphans, which need not be installed here."""
    (text,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.M)
    words: list[str] = json.loads(text)
    assert words[:4] == ["tini", "--", "sh", "-c"]
    return words[2:] if with_mount else ["sandlot"]


def test_both_ask_for_what_the_doctor_asks_for() -> None:
    (added,) = re.findall(r"add: \[([A-Z_, ]+)\]", KUBERNETES)
    of_kubernetes = [f"CAP_{name}" for name in added.split(", ")]
    assert of_docker(DOCKERFILE) == of_docker(PAGE) == of_kubernetes == list(NEEDED.values())
    assert "--cap-drop=ALL" in DOCKERFILE
    assert "drop: [ALL]" in KUBERNETES


def test_what_they_name_is_there() -> None:
    asked = re.findall(r"127\.0\.0\.1:8700(/[a-z]+)", DOCKERFILE + KUBERNETES)
    assert set(asked) == PAGES
    (command,) = re.findall(r'^CMD \["(\w+)"\]$', DOCKERFILE, re.M)
    assert command in VERBS
    known = {variable.name for variable in VARIABLES}
    named = set(re.findall(r"SANDLOT_[A-Z_]+", DOCKERFILE + KUBERNETES + PAGE))
    assert named - known == set()
    assert len(named) >= 3
    for text in (DOCKERFILE, KUBERNETES):
        assert "/var/lib/sandlot" in text
        assert "/sys/fs/cgroup" in text
        for page in re.findall(r"docs/[a-z/-]+\.md", text):
            assert (ROOT / page).is_file(), page


@pytest.mark.root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("with_mount", [True, False])
def test_it_is_enough_for_a_session(data_dir: Path, *, with_mount: bool) -> None:
    """Without the mount of the entry it is not, which is why it is there."""
    for tool in ("unshare", "setpriv"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed here")
    rights = ",".join("+" + name.removeprefix("CAP_").lower() for name in of_docker(DOCKERFILE))
    narrowed = ["setpriv", f"--bounding-set=-all,{rights}", "--inh-caps=-all"]
    script = f'{READ_ONLY} && exec "$@"'
    run = ["run", "--runtime", "namespaces", "--storage", "layers", "--", "id", "-u"]
    words = [*CONTAINED, "sh", "-c", script, "sh", *narrowed, *entry(with_mount), *run]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    asked = environment(SANDLOT_DATA_DIR=str(data_dir), PATH=path)
    ran = subprocess.run(words, env=asked, capture_output=True, text=True, timeout=120)
    if with_mount:
        assert (ran.returncode, ran.stdout) == (0, "1000\n"), ran.stderr
    else:
        assert ran.returncode == 125
        assert "mount /proc" in ran.stderr
