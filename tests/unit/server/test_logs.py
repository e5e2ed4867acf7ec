"""What is logged: lines and documents, with the request they are of, and without secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from sandlot.server.logs import REQUEST, configure
from sandlot.server.redaction import HIDDEN, redact

KEY = "sk-" + "abcdefghij0123456789"


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """As they were."""
    names = ("", "sandlot", "uvicorn", "asyncio")
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    handlers = [(logger, logger.handlers, logger.propagate) for logger, _ in before]
    yield
    for logger, level in before:
        logger.setLevel(level)
    for logger, had, propagate in handlers:
        logger.handlers, logger.propagate = had, propagate


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ('x="token=abc def" y', "abc"),
        ("got 'bearer abcdef123456' of it", "abcdef123456"),
        ("--api-key=hunter2 --x=1", "hunter2"),
        ('{"SANDLOT_API_KEY": "hunter2", "x": 1}', "hunter2"),
        ("{'db_password': 'it''s'}", "it"),
        ('{"token": "with \\" a quote"}', "a quote"),
        ("clone https://me:hunter2@git.example/x.git", "hunter2"),
        (f"the key {KEY} was refused", KEY),
        ("AKIA" + "ABCDEFGHIJKLMNOP", "ABCDEFGHIJKLMNOP"),
        ("ghp_" + "a1" * 18, "a1a1"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "c2ln"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("Set-Cookie: id=1234; Path=/", "1234"),
        ("AWS_SECRET_ACCESS_KEY=abc/def", "abc/def"),
    ],
)
def test_secrets_are_hidden(text: str, secret: str) -> None:
    told = redact(text)
    assert secret not in told
    assert HIDDEN in told


@pytest.mark.parametrize(
    "text",
    [
        "session s-1 was created",
        "12 tokens were counted",
        "GET /readyz 200",
        "a key of the file",
        "https://a.example/b",
    ],
)
def test_the_rest_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_hiding_takes_no_time_with_hostile_text() -> None:
    redact("a-" * 8000 + "=" + "token" * 3000 + "\\" * 8000)


def test_a_document_names_its_request_and_has_no_secret() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    token = REQUEST.set("r-1")
    try:
        raise ValueError(f"token={KEY}")
    except ValueError:
        extra = {"path": "/x?api_key=hunter2", "password": "hunter2", "status": 500}
        logging.getLogger("sandlot.server").exception("failed with %s", f"Bearer {KEY}", extra=extra)
    finally:
        REQUEST.reset(token)
    logging.getLogger("sandlot.server").debug("not this")
    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert (document["level"], document["request"], document["status"]) == ("error", "r-1", 500)
    assert document["password"] == HIDDEN
    assert "ValueError" in document["exception"]
    assert KEY not in line
    assert "hunter2" not in line


def test_a_line_is_for_people() -> None:
    stream = io.StringIO()
    configure("debug", "text", stream)
    logging.getLogger("sandlot.server").debug("it is %s", "so", extra={"path": "a b", "secret": KEY})
    assert stream.getvalue().endswith(f'debug   it is so path="a b" secret={HIDDEN}\n')
