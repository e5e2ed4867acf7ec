"""What clients of OpenSandbox ask, in our words, and what we tell, in theirs."""

import json
from typing import Any

import pytest

from sandlot.gateways.opensandbox import schema
from sandlot.gateways.opensandbox.events import Lines, end
from sandlot.gateways.opensandbox.files import HOME, mode_of, where
from sandlot.gateways.opensandbox.schema import Reader, Refused
from sandlot.gateways.opensandbox.settings import GatewaySettings
from sandlot.model import BUILTIN, CallResult, LimitHit, Resources, Stream
from sandlot.opensandbox.events import EventReader

LEAST: dict[str, Any] = {"image": {"uri": "x"}, "entrypoint": ["a"], "resourceLimits": {}}


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("1", 1), ("2Gi", 2 << 30), ("1.5Ki", 1536), ("3M", 3_000_000), ("7k", 7000)]
)
def test_quantities(text: str, value: float) -> None:
    assert float(schema.quantity("x", text)) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1e9", "1 Gi", "1Gib", "٣", "1" * 30, "Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        schema.quantity("x", text)


def test_a_request_becomes_ours() -> None:
    asked = schema.read_create(
        {
            "image": {"uri": "python:3.12", "auth": None},
            "entrypoint": ["python", "-m", "x"],
            "timeout": 600,
            "resourceLimits": {"cpu": "500m", "memory": "512Mi", "gpu": "0"},
            "env": {"A": "b"},
            "metadata": {"example.com/team": "a_b.c"},
            "secureAccess": False,
            "unknown": {"x": 1},
            "volumes": [{"name": "v", "pvc": {"claimName": "data"}, "mountPath": "/data", "readOnly": True}],
        }
    )
    assert asked.resources == Resources(cpus=0.5, memory_bytes=512 << 20)
    assert (asked.image, asked.entrypoint, asked.timeout_s) == ("python:3.12", ("python", "-m", "x"), 600)
    assert (asked.mounts[0].source, asked.mounts[0].read_only, asked.volumes) == ("data", True, ("data",))
    old = schema.read_create(LEAST | {"resourceLimits": None, "resource_limits": {"cpu": "1"}})
    assert old.resources == Resources(cpus=1.0), "the older spelling"


@pytest.mark.parametrize(
    "change",
    [
        {"image": None},
        {"image": {"uri": ""}},
        {"image": "x"},
        {"snapshotId": "y"},
        {"entrypoint": []},
        {"entrypoint": [1]},
        {"timeout": 59},
        {"timeout": 86_401},
        {"timeout": True},
        {"timeout": "600"},
        {"resourceLimits": {"cpu": "much"}},
        {"resourceLimits": {"gpu": "1"}},
        {"resourceLimits": {"memory": "1"}},
        {"env": {"A=B": "c"}},
        {"env": {"A": 1}},
        {"env": {"OPENSANDBOX_LIFECYCLE": "x"}},
        {"metadata": {"opensandbox.io/image": "x"}},
        {"metadata": {"-a": "x"}},
        {"metadata": {"a": "x y"}},
        {"metadata": {"": "x"}},
        {"networkPolicy": {"defaultAction": "allow"}},
        {"networkPolicy": {"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.example"}]}},
        {"networkPolicy": {"defaultAction": "perhaps"}},
        {"networkPolicy": {"egress": [{"action": "deny"}]}},
        {"credentialProxy": {"enabled": True}},
        {"platform": {"os": "windows", "arch": "amd64"}},
        {"extensions": {"poolRef": "x"}},
        {"lifecycle": {"preStart": {"command": ["x"]}}},
        {"volumes": [{"name": "v", "mountPath": "/data"}]},
        {"volumes": [{"name": "v", "host": {"path": "/x"}, "pvc": {"claimName": "y"}, "mountPath": "/data"}]},
        {"volumes": [{"name": "v", "host": {"path": "/x"}, "mountPath": "/data/../proc"}]},
        {"volumes": [{"name": "V", "host": {"path": "/x"}, "mountPath": "/data"}]},
        {"volumes": [{"name": "v", "pvc": {"claimName": "y"}, "mountPath": "/d", "subPath": "../x"}]},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_what_cannot_be_had_is_refused(change: dict[str, Any]) -> None:
    schema.read_create(LEAST)
    with pytest.raises(Refused):
        schema.read_create(LEAST | change)


@pytest.mark.parametrize("document", [None, [], "x", 1, True])
def test_a_request_is_an_object(document: object) -> None:
    with pytest.raises(Refused):
        schema.read_create(document)


def test_a_policy_that_denies_everything_is_held() -> None:
    schema.read_create(LEAST | {"networkPolicy": {"defaultAction": "deny", "egress": None}})
    schema.read_create(LEAST | {"networkPolicy": {"egress": [{"action": "deny", "target": "a.example"}]}})


def test_filters_pages_and_times() -> None:
    assert schema.read_filter(["a=1&b=2", "c="]) == {"a": "1", "b": "2", "c": ""}
    assert schema.read_page("2", "200") == (2, 200)
    for number, size in (("0", "1"), ("1", "201"), ("x", "1"), ("1", ""), ("-1", "1"), ("1" * 30, "1")):
        with pytest.raises(Refused):
            schema.read_page(number, size)
    assert schema.read_moment("2026-06-15T10:00:00Z") == 1781517600.0
    for text in ("", "tomorrow", "2026-06-15T10:00:00"):
        with pytest.raises(Refused):
            schema.read_moment(text)
    for port in ("0", "65536", "x", "", "\uff11", "999999999"):
        with pytest.raises(Refused):
            schema.read_port(port)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_and_what_was_printed(size: int) -> None:
    printed = "a\n\n\n\nbä\r\n\nlast"
    data, lines, told = printed.encode(), Lines(Stream.STDOUT), b""
    for at in range(0, len(data), size):
        told += lines.feed(data[at : at + size])
    frames = [json.loads(frame) for frame in (told + lines.close()).split(b"\n\n") if frame]
    assert [frame["text"] for frame in frames] == ["a", "\n\n", "\n", "\n", "bä", "\n\n", "last"]
    assert "".join(frame["data"] for frame in frames) == printed, "to the last byte"
    assert all(frame["type"] == "stdout" and frame["timestamp"] for frame in frames)


@pytest.mark.parametrize("size", [1, 3, 70_001])
def test_bytes_that_are_no_text_are_told_as_they_are(size: int) -> None:
    printed = b"\xff\xfe a\nfine \xc3\xa4\n\xe2\x82" + "€".encode() * 50_000 + b"\xf0\x9f" + "é".encode() * 50_000
    lines, told, reader = Lines(Stream.STDOUT), b"", EventReader()
    for at in range(0, len(printed), size):
        told += lines.feed(printed[at : at + size])
    events = [*reader.feed(told + lines.close()), *reader.close()]
    assert b"".join(event.data for event in events) == printed
    assert events[1].text == "fine ä\n"
    assert len(events) > 3, "it comes in pieces"


def test_a_line_without_end_is_told_in_pieces() -> None:
    lines = Lines(Stream.STDERR)
    assert lines.feed(b"x" * 100) == b""
    assert len(lines.feed(b"x" * 70_000)) > 70_000, "memory is bounded"
    assert lines.close() == b""


@pytest.mark.parametrize(
    ("result", "kind", "evalue"),
    [
        (CallResult("c", 0), "execution_complete", None),
        (CallResult("c", 3), "error", "3"),
        (CallResult("c", 124, limit=LimitHit.TIMEOUT), "error", "-1"),
        (CallResult("c", 137, signal=9), "error", "-1"),
        (CallResult("c", 127, reason="no such program"), "error", "127"),
    ],
)
def test_the_end_of_a_command(result: CallResult, kind: str, evalue: str | None) -> None:
    told = json.loads(end(result))
    assert told["type"] == kind
    assert told.get("error", {}).get("evalue") == evalue
    assert told["exitCode"] == result.exit_code


def test_modes_are_digits() -> None:
    assert mode_of(Reader({"mode": 644})) == 0o644
    assert mode_of(Reader({"mode": 0})) is None
    assert mode_of(Reader({})) is None
    for wrong in (8, 99999, -644, 888):
        with pytest.raises(Refused):
            mode_of(Reader({"mode": wrong}))


def test_paths_are_absolute() -> None:
    assert [where(path) for path in ("/a", "a", "~", "~/x", "~x", "../y")] == [
        "/a",
        "/a",
        HOME,
        f"{HOME}/x",
        "/~x",
        "/../y",
    ]


def test_images_are_templates() -> None:
    settings = GatewaySettings(b"s", images={"python": "py", "reg:5000/a/b": "ab", "exact:1": "one"})
    assert [settings.template_of(name) for name in ("python", "python:3.12", "python@sha256:0")] == ["py"] * 3
    assert settings.template_of("reg:5000/a/b:latest") == "ab"
    assert settings.template_of("exact:1") == "one"
    assert settings.template_of("exact:2") == settings.template_of("anything") == BUILTIN


def test_a_token_is_for_one_port_of_one_sandbox() -> None:
    settings, other = GatewaySettings(b"s"), GatewaySettings(b"t")
    token = settings.token("a", 80)
    assert settings.is_token(token, "a", 80)
    assert GatewaySettings(b"s").is_token(token, "a", 80), "the same after a restart"
    for wrong in (settings.token("a", 81), settings.token("b", 80), other.token("a", 80), "", "ä"):
        assert not settings.is_token(wrong, "a", 80)
    assert "s'" not in repr(settings)
