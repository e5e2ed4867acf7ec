"""Values of the model cross the wire as they are, in both codecs; what cannot cross is refused in words."""

from typing import Any

import pytest

from sandlot import model
from sandlot.model import (
    AttributesSet,
    Block,
    CallRecord,
    CallRequest,
    CallResult,
    CallState,
    ChangeCounts,
    CodeRequest,
    ExposeRequest,
    FileLines,
    FileReplace,
    FileWatch,
    ForkRequest,
    ImageBlock,
    InvalidArgument,
    LimitHit,
    Line,
    Match,
    Mount,
    NetworkMode,
    NetworkPolicy,
    OnExpiry,
    ProcessLogs,
    ProcessSpec,
    Ready,
    ReadyKind,
    Resources,
    SessionFilter,
    SessionSpec,
    SessionState,
    TemplateConfig,
    TemplateImport,
    TemplateSnapshot,
    TerminalAttach,
    TerminalSize,
    TextBlock,
    ToolRequest,
    ToolResult,
    ToolTier,
    TreeTally,
    Turn,
)
from sandlot.rpc.codec import BINARY, JSON
from sandlot.rpc.convert import from_choice, from_message, is_value, to_choice, to_message
from sandlot.rpc.messages import MESSAGES

BLOCKS: tuple[Block, ...] = (TextBlock("a\0b"), ImageBlock(b"\0\xff", "image/png"))
VALUES = [
    CallRequest("s", ("true",)),
    CallRequest("s", ("a\udc80b", "\u00e9", "\udcff"), cwd="/x\udc99", envs={"A": "b\udc80"}, timeout_s=None),
    CallRequest("s", ("a",), timeout_s=3, terminal=TerminalSize(3, 4), resources=Resources(cpus=1), output_bytes_max=0),
    CallResult("c", 137, 9, LimitHit.OOM, "why", 1.5, 0.1, 0.2, 1 << 40, 5, 6, True, "p"),
    SessionSpec(
        session_id="s",
        labels={"a": "b\n"},
        mounts=(Mount("v", "/data", True),),
        ports=(1, 65535),
        network=NetworkPolicy(NetworkMode.ALLOW_LIST, ("a.example",)),
        on_expiry=OnExpiry.PAUSE,
        starts=False,
        secrets={"K": "v"},
    ),
    SessionFilter(states=frozenset({SessionState.ACTIVE, SessionState.FAILED}), limit=7),
    ForkRequest("s"),
    ForkRequest("s", labels={}),
    ForkRequest("s", labels={"a": "b"}, at="x", count=3),
    ToolRequest("s", "t", {"a": [1, 1 << 70, 0.1, "\ud800", None, {"b": True}]}),
    ToolResult("c", "t", ToolTier.DIRECT, BLOCKS, True, 0),
    AttributesSet("s", "p", values={"user.a": None, "user.b": b"", "user.\udc80": b"\0"}),
    TreeTally(1, 2, 3, 4, 5, [("a\udc80", "b")]),
    Turn("s", 1, 2.0, None, (CallRecord("s", "c", ("a",), CallState.LOST, 1.0),), ChangeCounts(1, 2, 3), 0),
    ProcessSpec("s", ("a",), ready=Ready(ReadyKind.HTTP, 80, "/x"), port=80, restarts_max=0),
    ProcessLogs("s", "p", None, 5),
    ProcessLogs("s", "p", -5, None, follow=True),
    ExposeRequest("s", 80),
    TerminalAttach("s", "t", offset=None),
    TerminalAttach("s", "t"),
    CodeRequest("s", "x = '\0'".replace("\0", "\u2028"), timeout_s=None),
    FileLines("s", "p", count=0, total=True),
    FileReplace("s", "p", old="a\0b", new="\udcfe"),
    FileWatch("s", "p", recursive=False, after=0),
    Line(1, "\0\0" + "00", True),
    Match("/p", 1 << 50, "t", ("b",), ("a", "")),
    TemplateImport("/a", "b"),
    TemplateSnapshot("s", "p", config=TemplateConfig(user="u", envs={"A": ""})),
]


@pytest.mark.parametrize("codec", [BINARY, JSON], ids=["proto", "json"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_as_it_was(value: Any, codec: Any) -> None:
    message = to_message(value)
    assert from_message(codec.decode(codec.encode(message), type(message))) == value


def test_every_message_of_a_value_has_the_fields_of_its_value() -> None:
    """A field that a message lacks is found here, and not by the first who needs it."""
    carried = [name for name, message in MESSAGES.items() if is_value(message)]
    assert len(carried) > 100
    for name in carried:
        kind: Any = getattr(model, name)
        with pytest.raises(AttributeError):
            to_message(kind.__new__(kind))  # it has the shape, and no values


def test_what_is_left_out_has_the_default_of_the_model() -> None:
    asked = JSON.decode(b'{"sessionId": "s", "argv": ["a"], "newField": [{"x": 1}]}', MESSAGES["CallRequest"])
    assert from_message(asked) == CallRequest("s", ("a",))
    assert from_message(MESSAGES["SessionSpec"]()) == SessionSpec()


def test_one_of_several() -> None:
    for value in (TemplateImport("/a", "b"), TemplateSnapshot("s", "p")):
        assert from_choice(to_choice(MESSAGES["TemplateMaking"], value)) == value
    with pytest.raises(InvalidArgument, match="is empty"):
        from_choice(MESSAGES["TemplateMaking"]())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (SessionSpec(labels={"a": "\ud800"}), "no character"),
        (ToolRequest("s", "t", {"a": object()}), "no JSON"),
        (TerminalSize(1, 1), ""),
    ],
)
def test_what_cannot_travel_is_refused(value: object, words: str) -> None:
    if words:
        with pytest.raises(InvalidArgument, match=words):
            to_message(value)
    else:
        to_message(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"onExpiry": "explode"}', "OnExpiry"),
        (b'{"userName": 1, "user": "a\\u0000zz"}', "NUL"),
        (b'{"user": "\\u0000"}', "NUL"),
        (b'{"user": "\\u000041"}', "NUL"),
        (b'{"ports": [0]}', "port"),
        (b'{"timeoutS": "NaN"}', "timeout_s"),
    ],
)
def test_a_message_that_says_nothing_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        from_message(JSON.decode(text, MESSAGES["SessionSpec"]))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidArgument, match="size of TerminalResize is missing"):
        from_message(MESSAGES["TerminalResize"](session_id="s", terminal_id="t"))
