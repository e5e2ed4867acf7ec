"""From the words of a command line to requests, and from errors to words and exit codes."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields

import pytest

from sandlot.cli import ls, main, options
from sandlot.cli.context import Context
from sandlot.cli.parser import parse
from sandlot.cli.screen import printable, show_error
from sandlot.cli.verbs import VERBS, load
from sandlot.model import (
    InvalidArgument,
    LimitReached,
    Mount,
    NetworkMode,
    NetworkPolicy,
    OnExpiry,
    Resources,
    SandlotError,
    SessionNotFound,
    SessionSpec,
    SessionState,
    limits,
)

Shown = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """The program sets up logging for its process, which here is everyone's."""
    before = [(logger, logger.handlers, logger.propagate) for logger in map(logging.getLogger, ("sandlot", "asyncio"))]
    yield
    for logger, handlers, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate


def test_a_session_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "from the environment")
    words = "create --id s --template t --snapshot s/p --storage layers --runtime none --label a=b --label c= --env K=V"
    more = "--user root --cpus 1.5 --memory 512M --swap 0 --disk 2G --pids 10 --open-files 64 --io-weight 50"
    rest = "--timeout 1h --idle 10m --on-expiry pause --request-id r --call-snapshots --no-start --volume v:/v:ro"
    last = "--allow example.org --allow example.com --secret KEY=VALUE --secret TOKEN --port 80 --port 8080 --queue 5s"
    spec = options.session_spec(parse(f"{words} {more} {rest} {last}".split()))
    assert spec == SessionSpec(
        session_id="s",
        template="t",
        snapshot="s/p",
        storage="layers",
        runtime="none",
        labels={"a": "b", "c": ""},
        envs={"K": "V"},
        user="root",
        resources=Resources(1.5, 512 * limits.MIB, 2 * limits.GIB, 10, 64, 0, 50),
        timeout_s=3600,
        on_expiry=OnExpiry.PAUSE,
        idle_timeout_s=600,
        network=NetworkPolicy(NetworkMode.ALLOW_LIST, ("example.org", "example.com")),
        secrets={"KEY": "VALUE", "TOKEN": "from the environment"},
        ports=(80, 8080),
        mounts=(Mount("v", "/v", True),),
        call_snapshots=True,
        starts=False,
        request_id="r",
        queue_timeout_s=5.0,
    )
    # A field that comes later needs an option too.
    usual = SessionSpec()
    same = [field.name for field in fields(spec) if getattr(spec, field.name) == getattr(usual, field.name)]
    assert same == []


def test_a_session_with_nothing() -> None:
    spec = options.session_spec(parse(["create"]))
    assert (spec.session_id, spec.template, spec.storage, spec.runtime) == (None, "builtin", "auto", "auto")
    assert spec.resources.asked() == ()
    assert spec.timeout_s == limits.SESSION_LIFETIME_S


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("run -- ls -la", ["ls", "-la"]),
        ("run ls -la --json", ["ls", "-la", "--json"]),
        ("run -- sh -c x -- --json", ["sh", "-c", "x", "--", "--json"]),
        ("run --cwd / -- --odd", ["--odd"]),
        ("exec s -- ls", ["ls"]),
        ("exec s ls -t", ["ls", "-t"]),
        ("exec s --timeout 3 -- ls", ["ls"]),
        ("exec --timeout 3 s -- ls", ["ls"]),
    ],
)
def test_what_is_ours_and_what_is_the_commands(words: str, command: list[str]) -> None:
    args = parse(words.split())
    assert args.command == command
    assert not args.json
    assert not args.tty


def test_options_for_all_verbs_stand_before_or_behind_the_verb() -> None:
    for words in ("--json --data-dir /d ls", "ls --json --data-dir /d", "--json ls --data-dir /d"):
        args = parse(words.split())
        assert (args.json, args.data_dir, args.debug) == (True, "/d", False)


def test_a_command_of_a_person_has_no_timeout_unless_it_is_given_one() -> None:
    assert options.call_request(parse(["run", "true"]), "s", stdin=False).timeout_s is None
    args = parse(["run", "--timeout", "10m", "true"])
    assert options.call_request(args, "s", stdin=False).timeout_s == 600
    assert options.outliving(options.session_spec(args), 600).timeout_s > 600


def test_what_is_kept_of_the_output() -> None:
    def kept(*words: str) -> int:
        return options.call_request(parse(["run", *words, "true"]), "s", stdin=False).output_bytes_max

    assert kept() == limits.GIB
    assert kept("--json") == limits.CALL_OUTPUT_BYTES
    assert kept("--output-max", "5K") == 5 * limits.KIB


def test_a_shell_is_given_a_session_or_makes_one() -> None:
    args = parse(["shell"])
    assert (args.session, args.command) == (None, None)
    args = parse(["shell", "one", "--user", "root"])
    assert (args.session, args.user, args.command) == ("one", "root", None)
    args = parse(["shell", "--cwd", "/", "one", "--", "top", "-d", "1"])
    assert (args.session, args.cwd, args.command) == ("one", "/", ["top", "-d", "1"])
    assert parse(["shell", "--", "top"]).session is None


@pytest.mark.parametrize(
    "option", ["--id x", "--memory 1G", "--label a=b", "--runtime none", "--secret A=B", "--port 1"]
)
def test_what_only_a_new_session_takes_is_not_ignored(option: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{option.split()[0]} is for a new session"):
        options.refuse_session_options(parse(["shell", "one", *option.split()]))


def test_what_a_command_takes_too_is_taken() -> None:
    options.refuse_session_options(parse(["shell", "one", "--env", "A=B", "--user", "root", "--cwd", "/"]))


def test_a_query() -> None:
    asked = ls.query(
        parse(["ls", "--label", "a=b", "--state", "active", "--state", "failed", "--limit", "5", "--after", "7"])
    )
    assert asked.labels == {"a": "b"}
    assert asked.states == {SessionState.ACTIVE, SessionState.FAILED}
    assert (asked.limit, asked.after) == (5, "7")
    with pytest.raises(InvalidArgument, match="'bored' is not a state"):
        ls.query(parse(["ls", "--state", "bored"]))


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("template build --file F DIR NAME", {"action": "build", "words": ["DIR", "NAME"], "file": "F"}),
        ("template build DIR --file F NAME", {"action": "build", "words": ["DIR", "NAME"], "file": "F"}),
        ("ps ID --json NAME", {"id": "ID", "process": "NAME", "json": True}),
        ("key create --json NAME", {"action": "create", "name": "NAME", "json": True}),
        ("run --label a=b ls --json", {"command": ["ls", "--json"], "json": False}),
    ],
)
def test_options_may_stand_among_words_but_not_within_a_command(words: str, kept: dict[str, object]) -> None:
    found = vars(parse(words.split()))
    assert {name: found[name] for name in kept} == kept


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("frobnicate", "invalid choice: 'frobnicate'"),
        ("ls --frobnicate", "unrecognized arguments: --frobnicate"),
        ("ls -- x", "ls takes no command"),
        ("exec", "required: ID"),
        ("run", "there is no command to run"),
        ("run --", "there is no command to run"),
        ("run --memory 5X -- true", "'5X' is not a size"),
        ("run --timeout 0 -- true", "timeout_s must lie between"),
        ("create --id ../x", "is not allowed"),
        ("create --label x", "has no key and value"),
        ("create --wait soon", "--wait: 'soon' is not a duration"),
        ("exec ../x -- true", "is not allowed"),
        ("exec s --detach -t -- true", "--detach does not go with"),
        ("create --port 0", "port must lie between"),
        ("create --port http", "'http' is not a whole number"),
        ("create --secret NOT_IN_THE_ENVIRONMENT", "there is no 'NOT_IN_THE_ENVIRONMENT' in the environment"),
        ("create --secret =x", "--secret has no key"),
        ("shell one", "shell needs a terminal"),
        ("shell", "shell needs a terminal"),
        ("shell one bash", "unrecognized arguments: bash"),
        ("completion", "required: SHELL"),
        ("completion tcsh", "invalid choice: 'tcsh'"),
        ("kill", "give session ids, or --all"),
        ("kill x --all", "give session ids, or --all"),
    ],
)
def test_wrong_requests_are_refused_before_an_engine_is_opened(words: str, told: str, capsys: Shown) -> None:
    assert main.main(["--data-dir", "/proc/none", *words.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err.splitlines()[0]
    assert shown.err.startswith("sandlot: ")
    assert "Traceback" not in shown.err


def test_wrong_requests_as_a_document(capsys: Shown) -> None:
    for words in (["--json", "frobnicate"], ["create", "--label", "x", "--json"]):
        assert main.main(words) == 2
        shown = capsys.readouterr()
        assert shown.err == ""
        error = json.loads(shown.out)["error"]
        assert error["code"] == "invalid_argument"
        assert set(error) == {"code", "message", "next_step", "retryable", "context"}


def test_errors_in_words(capsys: Shown) -> None:
    show_error(LimitReached("too \x1b[31mmuch", next_step="ask for less", limit="x"), as_json=False)
    assert capsys.readouterr().err == "sandlot: too \\x1b[31mmuch\n  → ask for less\n"
    show_error(SessionNotFound("there is no session x"), as_json=False)
    assert capsys.readouterr().err == "sandlot: there is no session x\n"


def test_an_error_as_a_document(capsys: Shown) -> None:
    show_error(LimitReached("too much", next_step="ask for less", limit="x"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "code": "limit_reached",
            "message": "too much",
            "next_step": "ask for less",
            "retryable": False,
            "context": {"limit": "x"},
        }
    }


def raising(error: BaseException) -> Callable[[Context], object]:
    async def run(context: Context) -> int:
        del context
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [(SandlotError("x"), 125), (InvalidArgument("x"), 2), (ZeroDivisionError("x"), 70), (BrokenPipeError(), 141)],
)
def test_exit_codes(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Shown) -> None:
    monkeypatch.setattr(ls, "run", raising(error))
    assert main.main(["ls"]) == code
    assert "Traceback" not in capsys.readouterr().err
    main.main(["ls", "--debug"])
    assert ("Traceback" in capsys.readouterr().err) is (code != 141)


STARTED = """
import sys
from sandlot.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = {"asyncio", "uvloop", "rich", "sqlite3"}
print(*sorted(name for name in sys.modules if name in heavy or name.startswith("sandlot.host")), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        ("--version", ""),
        ("--help", ""),
        ("frobnicate", ""),
        ("ls --help", "asyncio"),
        ("completion bash", "asyncio uvloop"),
    ],
)
def test_who_asks_for_help_does_not_wait_for_the_engine(words: str, loaded: str) -> None:
    ran = subprocess.run([sys.executable, "-c", STARTED, *words.split()], capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines()[-1] == loaded


def test_version_and_help(capsys: Shown) -> None:
    with pytest.raises(SystemExit, match="0"):
        main.main(["--version"])
    assert capsys.readouterr().out.startswith("sandlot 0.")
    for verb in VERBS:
        with pytest.raises(SystemExit, match="0"):
            main.main([verb, "--help"])
        assert f"usage: sandlot {verb}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main.main([])
    told = capsys.readouterr().out
    for verb, line in VERBS.items():
        assert verb in told
        assert line.split(",")[0].split(":")[0] in " ".join(told.split())


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_told_in_the_first_sentence_of_its_module(verb: str) -> None:
    assert (load(verb).__doc__ or "").split(".")[0].replace("\n", " ") == VERBS[verb]


def test_what_the_engine_logs_is_one_line(capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(context: Context) -> int:
        del context
        logging.getLogger("sandlot.host").error("a task failed", exc_info=ZeroDivisionError("x"))
        logging.getLogger("asyncio").error("something of the loop")
        return 0

    monkeypatch.setattr(ls, "run", run)
    assert main.main(["ls"]) == 0
    assert capsys.readouterr().err == "sandlot: a task failed\n"
    main.main(["ls", "--debug"])
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "something of the loop" in told


def test_text_of_others_is_harmless() -> None:
    assert printable("a\x1b]0;x\x07\n\udcff é €") == "a\\x1b]0;x\\x07\\n\\udcff é €"
