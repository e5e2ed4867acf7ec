"""Code by the SDK, in both faces, and by the command line."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client, CodeFailed, CodeStatus, NotFound, Sandbox, Shown
from sandlot.config.settings import Settings

SHOWN = """
class Everything:
    def _repr_html_(self): return '<b>'
    def _repr_markdown_(self): return '# one'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'png'
    def _repr_jpeg_(self): return b'jpeg'
    def _repr_pdf_(self): return b'pdf'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': [1]}
    def _repr_javascript_(self): return 'go()'
    def __repr__(self): return 'everything'
Everything()
"""


def test_both_faces_tell_what_code_did(settings: Settings) -> None:
    with (
        Client(data_dir=settings.data) as client,
        Sandbox.create(client=client, runtime="none", storage="local-disk") as sandbox,
    ):
        heard: list[object] = []
        done = sandbox.run_code(
            "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7",
            on_stdout=heard.append,
            on_stderr=heard.append,
            on_result=heard.append,
        )
        assert (done.ok, done.text, done.stdout, done.stderr, done.count) == (True, "42", "out\n", "err\n", 1)
        assert sorted(str(one) for one in heard) == sorted(str(one) for one in ("out\n", "err\n", *done.results))
        with pytest.raises(CodeFailed, match="ZeroDivisionError: division by zero") as failed:
            sandbox.run_code("1 / 0", check=True, on_error=heard.append)
        assert failed.value.execution.error == heard[-1]

        async def by_the_other() -> str | None:
            return (await AsyncSandbox(sandbox.id, client=client).run_code("_ + 1")).text

        assert asyncio.run(by_the_other()) == "43"
        context = sandbox.code.create_context("bash", cwd="/", envs={"A": "b"})
        assert context.run("pwd; echo $A").stdout == "/\nb\n"
        assert [one.language for one in sandbox.code.contexts()] == ["python", "bash"]
        assert (context.interrupt(), context.restart().execution_count, context.info().language) == (False, 0, "bash")
        context.remove()
        with pytest.raises(NotFound):
            context.info()
        left = sandbox.code.start("print('later')\n7")
        again = sandbox.code.connect(left.id)
        assert (left.wait().text, again.wait().stdout) == ("7", "later\n")
        assert [type(event).__name__ for event in again.events()][-1] == "CodeResult"
        assert sandbox.run_code("import time; time.sleep(60)", timeout=0.3).status is CodeStatus.TIMEOUT


def test_all_forms_are_told(settings: Settings) -> None:
    with (
        Client(data_dir=settings.data) as client,
        Sandbox.create(client=client, runtime="none", storage="local-disk") as sandbox,
    ):
        (shown,) = sandbox.run_code(SHOWN).results
        texts = (shown.text, shown.html, shown.markdown, shown.svg, shown.latex, shown.javascript)
        assert texts == ("everything", "<b>", "# one", "<svg/>", "$x$", "go()")
        assert (shown.png, shown.jpeg, shown.pdf, shown.json) == (b"png", b"jpeg", b"pdf", {"a": [1]})
        assert (shown.chart, shown.table, Shown({}).png) == (None, None, None)
        assert sandbox.run_code("!echo $((1 + 1))\n%cd /\nimport os\nos.getcwd()").stdout == "2\n"
        from_ipython = "from IPython.display import HTML, display\ndisplay(HTML('<i>'))"
        assert [one.html for one in sandbox.run_code(from_ipython, timeout=60).results] == ["<i>"]


def test_the_command_line_runs_code(settings: Settings, tmp_path: Path) -> None:
    def sandlot(*words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "sandlot", *words, "--data-dir", str(settings.data)]
        return subprocess.run(program, input=code, capture_output=True, text=True, cwd=tmp_path, check=False)

    made = sandlot("create", "--runtime", "none", "--storage", "local-disk")
    session = made.stdout.strip()
    try:
        assert sandlot("code", session, code="x = 41\nprint('hi')").stdout == "hi\n"
        failed = sandlot("code", session, code="print(x + 1)\n1 / 0")
        assert (failed.returncode, failed.stdout) == (1, "42\n")
        assert "ZeroDivisionError" in failed.stderr
        script = tmp_path / "picture.py"
        script.write_text("display({'image/png': 'aGk='}, raw=True)")
        told = json.loads(sandlot("code", "--json", session, str(script)).stdout)
        assert (told["count"], told["results"][0]["files"]) == (3, ["picture-1.png"])
        assert (tmp_path / "picture-1.png").read_bytes() == b"hi"
        assert "default-python" in sandlot("code", "--list", session).stdout
    finally:
        sandlot("kill", session)
