"""Templates from snapshots and from build files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.vessels import DEFAULT_USER
from sandlot.model import (
    CallRequest,
    InvalidArgument,
    Ready,
    ReadyKind,
    SessionFilter,
    SessionSpec,
    SnapshotNotFound,
    SnapshotRequest,
    Start,
    TemplateImport,
    TemplateInfo,
    TemplateNotFound,
    TemplateRequest,
    TemplateSnapshot,
)
from sandlot.sdk.building import build, parse
from tests.archives import Image, busybox_tar, entry, tar
from tests.conftest import run

pytestmark = pytest.mark.root

FILE = """
ARG SUFFIX=none
FROM base
# A comment.
ENV GREETING="hello there" PLACE=/srv/app
WORKDIR $PLACE
COPY data ./data/
COPY one.txt renamed.txt
RUN echo "$GREETING ${SUFFIX}" \\
    > said && chmod 640 said
RUN ["/bin/sh", "-c", "rm /doomed && id -u > who"]
USER app
LABEL by=tests
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["cat said"]
"""


async def make(host: SandboxHostService, request: TemplateRequest) -> TemplateInfo:
    async with host.make_template(request) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return event
    raise AssertionError("nothing was made")


@pytest.fixture
async def base(host: SandboxHostService, tmp_path: Path) -> TemplateInfo:
    image = Image([busybox_tar(), tar(entry("doomed", b"x"), entry("kept", b"x" * 5000))], {"Env": ["PATH=/bin"]})
    return await make(host, TemplateImport(str(image.write_layout(tmp_path / "layout")), "base"))


async def said(host: SandboxHostService, template: str, command: str) -> str:
    session = await host.create(SessionSpec(template=template))
    ran = await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", command)))
    await host.destroy(session.session_id)
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def test_a_snapshot_becomes_a_template(host: SandboxHostService, base: TemplateInfo) -> None:
    session = await host.create(SessionSpec(template="base", envs={"SECRET": "s"}))
    command = "rm /doomed; echo new > /new; ln /new /twin; chmod 4711 /new; mkdir /etc/deep; echo more >> /etc/group"
    await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", command)))
    await host.create_snapshot(SnapshotRequest(session.session_id, "done"))
    await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", "echo later > /new")))
    made = await make(host, TemplateSnapshot(session.session_id, "done", "mine:1"))
    with pytest.raises(SnapshotNotFound):
        await make(host, TemplateSnapshot(session.session_id, "gone", "other"))
    await host.destroy(session.session_id)
    shown = await said(host, "mine:1", "cat /new; stat -c '%h %a' /new; ls /doomed 2>&1 | cat; cat /etc/group; env")
    assert shown.splitlines()[:3] == ["new", "2 4711", "ls: /doomed: No such file or directory"]
    assert "\nmore\n" in shown
    assert "SECRET" not in shown, "what a session was given is not part of its files"
    imports = host._settings.data / "imports"  # pyright: ignore[reportPrivateUsage]
    twins = [os.lstat(imports / one.digest[7:] / "root" / "bin" / "busybox") for one in (base, made)]
    assert twins[0].st_ino == twins[1].st_ino, "what did not change is there once"
    await host.remove_template("base")
    assert await said(host, "mine:1", "cat /kept") == "x" * 5000


async def test_a_build_file(host: SandboxHostService, base: TemplateInfo, tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "data" / "deep").mkdir(parents=True)
    (context / "data" / "deep" / "file").write_text("deep")
    (context / "one.txt").write_text("one")
    (context / "one.txt").chmod(0o755)
    (context / "Dockerfile").write_text(FILE)
    lines: list[str] = []
    made = await build(host, context, "built:1", None, {"SUFFIX": "world"}, lines.append)
    assert (made.user, made.cwd, made.labels) == ("app", "/srv/app", {"by": "tests"})
    assert (made.entrypoint, made.command) == (("/bin/sh", "-c"), ("cat said",))
    shown = await said(
        host, "built:1", "pwd; cat data/deep/file renamed.txt who; stat -c %a renamed.txt said; ls /doomed; id -u"
    )
    assert shown.split() == ["/srv/app", "deepone0", "755", "640", "1000"]
    assert not (await host.list(SessionFilter())).sessions
    assert "  as before" not in lines
    lines.clear()
    again = await build(host, context, "built:2", None, {"SUFFIX": "world"}, lines.append)
    assert again.digest == made.digest
    assert lines.count("  as before") == 4
    lines.clear()
    (context / "one.txt").write_text("two")
    await build(host, context, "built:3", None, {"SUFFIX": "world"}, lines.append)
    assert lines.count("  as before") == 1, "what comes before the change is not done again, what comes after is"


async def test_what_is_copied_and_whose_it_is(host: SandboxHostService, base: TemplateInfo, tmp_path: Path) -> None:
    context = tmp_path / "context"
    for name in ("a/keep.txt", "a/drop.log", "a/b/keep.log", "node_modules/x", "c"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name)
    (context / ".dockerignore").write_text("# not these\n**/*.log\n!a/b/*.log\nnode_modules\nDockerfile\n")
    (context / "Dockerfile").write_text("FROM base\nCOPY --chown=app:apps --chmod=640 a /a\nCOPY . /all\n")
    await build(host, context, "copied:1", None, {}, None)
    shown = await said(host, "copied:1", "find /a /all -type f; stat -c '%a %U %G' /a/b/keep.log /a /all/c")
    files, *owned = shown.strip().rsplit("\n", 3)
    assert sorted(files.split()) == sorted(
        ["/a/keep.txt", "/a/b/keep.log", "/all/a/keep.txt", "/all/a/b/keep.log", "/all/c", "/all/.dockerignore"]
    )
    assert owned == ["640 app apps", "640 app apps", "644 root root"]


async def test_a_build_file_with_a_start_command(host: SandboxHostService, base: TemplateInfo, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        'FROM base\nREADY --timeout=5 log "it is up"\nRUN echo up > /word\nCMD echo it is $(cat /word); cat /dev/zero\n'
    )
    made = await build(host, tmp_path, "starts:1", None, {}, None)
    ready = Ready(ReadyKind.LOG, 0, "it is up")
    assert made.start == Start(("/bin/sh", "-c", "echo it is $(cat /word); cat /dev/zero"), ready, 5.0)
    # What is built on it inherits the command, and nothing is started meanwhile: it would never be ready.
    (tmp_path / "Dockerfile").write_text("FROM starts:1\nRUN rm /word\nSTART echo another\nREADY running\n")
    other = await build(host, tmp_path, "starts:2", None, {}, None)
    assert other.start == Start(("/bin/sh", "-c", "echo another"))
    session = await host.create(SessionSpec(template="starts:2"))
    calls = await host.calls(session.session_id)
    assert [call.argv[-1] for call in calls] == ["echo another"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RUN true", "begins with FROM"),
        ("FROM base\nADD x y", "line 2: 'ADD'"),
        ("FROM base\nRUN exit 3", "line 2: .* failed with 3"),
        ("FROM base\nCOPY ../secret /x", "line 2: .*outside"),
        ("FROM base\nCOPY link /x", "line 2: .*outside"),
        ("FROM base\nCOPY gone /x", "line 2: there is no gone"),
        ("FROM base\nCOPY --link a b", "does not take --link"),
        ("FROM base\nCOPY --chown=nobody-here Dockerfile /x", "cannot be given to nobody-here"),
        ("FROM base\nREADY soon", "line 2: 'soon' is no readiness"),
        ("FROM base\nRUN a \\", "middle of a line"),
        ("", "begins with FROM"),
    ],
)
async def test_what_cannot_be_built(
    host: SandboxHostService, base: TemplateInfo, tmp_path: Path, text: str, reason: str
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (tmp_path / "secret").write_text("of the host")
    (context / "link").symlink_to(tmp_path / "secret")
    (context / "Dockerfile").write_text(text)
    with pytest.raises(InvalidArgument, match=reason):
        await build(host, context, "built", None, {}, None)
    assert not (await host.list(SessionFilter())).sessions
    with pytest.raises(TemplateNotFound):
        await host.get_template("built")


async def test_a_build_file_from_the_built_in_template(
    host: SandboxHostService, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--make-roots"):
        pytest.skip("it copies all of the machine's /usr, which can take minutes: `make roots`")
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "Dockerfile").write_text(
        "FROM builtin\nCOPY one.txt /srv/one.txt\nRUN echo two >> /srv/one.txt\nWORKDIR /srv\n"
    )
    made = await build(host, tmp_path, "mine", None, {}, None)
    told = await host.get_template("builtin")
    assert (made.user, told.user, told.names) == ("0", DEFAULT_USER, ("builtin",))
    assert await said(host, "mine", "pwd; cat one.txt; id -un") == "/srv\nonetwo\nroot\n"
    lines: list[str] = []
    await build(host, tmp_path, "again", None, {}, lines.append)
    assert lines.count("  as before") == 2


def test_lines_are_put_together() -> None:
    found = parse("from x\nrun a \\\n# in between\n  b\n")
    assert [(one.line, str(one)) for one in found] == [(1, "FROM x"), (2, "RUN a b")]


def test_the_command_line_builds(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(busybox_tar())
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN echo built > /mark\nCMD cat /mark\n")

    def sandlot(*words: str) -> str:
        line = [sys.executable, "-m", "sandlot", "--data-dir", str(settings.data), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done
        return done.stdout

    sandlot("template", "import", str(tmp_path / "root.tar"), "base")
    assert json.loads(sandlot("template", "build", str(tmp_path), "app:1", "--json"))["names"] == ["app:1"]
    assert sandlot("run", "--template", "app:1", "--", "/bin/cat", "/mark") == "built\n"
    assert sandlot("run", "--template", "app:1") == "built\n", "what the image says"
    session = sandlot("create", "--template", "app:1").strip()
    sandlot("snapshot", session, "here")
    sandlot("template", "create", "copy", "--from", f"{session}/here", "--start", "echo hi", "--ready", "log hi")
    assert "/bin/sh -c 'echo hi'; ready: log hi, within 60 s" in sandlot("template", "show", "copy")
    sandlot("kill", session)
    assert "copy:latest" in sandlot("template", "ls")
