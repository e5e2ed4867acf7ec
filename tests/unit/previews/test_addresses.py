"""What names a port names one port, and what does not name one exactly names none."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import InvalidArgument, check_session_id
from sandlot.previews.addresses import (
    PreviewAddress,
    is_below,
    label_of,
    path_of,
    read_host,
    read_label,
    read_path,
)

DOMAIN = "previews.test"
IDS = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,40}", fullmatch=True).filter(lambda text: ".." not in text)
PORTS = st.integers(1, 65535)


@given(IDS, PORTS)
def test_every_id_has_a_label_of_its_own_and_is_read_back(session_id: str, port: int) -> None:
    address = PreviewAddress(session_id, port)
    label = label_of(address)
    if not label:
        assert len(f"{port}-e-{session_id}") + sum(not c.isalnum() or c.isupper() for c in session_id) > 63
        return
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", label), "a label of DNS"
    assert label[2:4] != "--", "reserved"
    assert read_label(label) == address
    assert read_host(f"{label}.{DOMAIN}:8700", DOMAIN) == address


@given(st.text(string.ascii_letters + string.digits + "-._~%", max_size=70))
def test_a_label_that_is_read_is_the_one_that_is_written(text: str) -> None:
    address = read_label(text)
    if address is not None:
        assert label_of(address) == text
        check_session_id(address.session_id)


@given(st.binary(max_size=80))
def test_noise_names_nothing_and_never_breaks_us(noise: bytes) -> None:
    host = noise.decode("latin-1")
    read_host(host, DOMAIN)
    is_below(host, DOMAIN)
    found = read_path(b"/preview/" + noise)
    if found is not None:
        address, prefix, rest = found
        assert prefix + rest == b"/preview/" + noise
        assert prefix == path_of(address).encode()[:-1]


@given(IDS, PORTS, st.text(string.ascii_letters + "/%?&=-._", max_size=40))
def test_a_path_is_read_as_it_was_sent(session_id: str, port: int, rest: str) -> None:
    address = PreviewAddress(session_id, port)
    found = read_path(path_of(address).encode() + rest.encode())
    assert found == (address, path_of(address).encode()[:-1], b"/" + rest.encode())


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("3000-s-abc.previews.test", PreviewAddress("s-abc", 3000)),
        ("3000-s-abc.previews.test:80", PreviewAddress("s-abc", 3000)),
        ("49983-i0123456789abcdefghij.previews.test", PreviewAddress("i0123456789abcdefghij", 49983)),  # E2B's form
        ("1-a.previews.test", PreviewAddress("a", 1)),
        ("3000-e-tenant-ht-dwork.previews.test", PreviewAddress("tenant-t.work", 3000)),
        ("3000-e-e-hx.previews.test", PreviewAddress("e-x", 3000)),
        ("3000-e-x.previews.test", None),  # would be the id `x`, which has another label
        ("3000-e--cax.previews.test", PreviewAddress("Ax", 3000)),
        ("0-s.previews.test", None),
        ("00-s.previews.test", None),
        ("03000-s.previews.test", None),
        ("65535-s.previews.test", PreviewAddress("s", 65535)),
        ("65536-s.previews.test", None),
        ("99999-s.previews.test", None),
        ("-1-s.previews.test", None),
        ("+1-s.previews.test", None),
        ("\u0663-s.previews.test", None),
        ("3000-S-ABC.previews.test", None),
        ("3000-s-abc.Previews.test", None),
        ("3000-s-abc.previews.test.", None),
        ("a.3000-s-abc.previews.test", None),
        ("3000-s-abc.a.previews.test", None),
        ("3000-s..previews.test", None),
        ("3000-.previews.test", None),
        ("3000-s-.previews.test", None),
        ("3000.previews.test", None),
        ("s-abc.previews.test", None),
        ("previews.test", None),
        (".previews.test", None),
        ("3000-s-abc.previews.test.evil.test", None),
        ("3000-s-abc.evil-previews.test", None),
        ("3000-s-abc.previews.test@evil.test", None),
        ("3000-s-abc.previews.test:0", None),
        ("3000-s-abc.previews.test:x", None),
        ("3000-s-abc.previews.test:80:80", None),
        ("3000-s\0.previews.test", None),
        ("3000-s%2e.previews.test", None),
        ("3000-" + "a" * 64 + ".previews.test", None),
        ("", None),
    ],
)
def test_hosts(host: str, told: PreviewAddress | None) -> None:
    assert read_host(host, DOMAIN) == told


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("3000-s.previews.test", True),
        ("anything.at.all.previews.test:80", True),
        ("PREVIEWS.TEST", True),
        ("x.Previews.Test.", True),
        ("previews.test.evil.test", False),
        ("evil-previews.test", False),
        ("localhost", False),
        ("127.0.0.1:80", False),
        ("[::1]:80", False),
        ("", False),
    ],
)
def test_whatever_is_below_the_domain_is_for_previews(host: str, is_it: bool) -> None:
    assert is_below(host, DOMAIN) is is_it
    assert not is_below(host, ""), "without a domain there are none"


@pytest.mark.parametrize(
    "path",
    [
        b"/preview/",
        b"/preview/s",
        b"/preview/s/",
        b"/preview//3000/",
        b"/preview/../3000/",
        b"/preview/s/0/",
        b"/preview/s/03000/",
        b"/preview/s/65536/",
        b"/preview/s%2f/3000/",
        b"/preview/a..b/3000/",
        b"/preview/s/3000%2f/",
        b"/preview/s/3000\xff/",
        b"/previews/s/3000/",
        b"/Preview/s/3000/",
        b"preview/s/3000/",
    ],
)
def test_paths_that_name_no_port(path: bytes) -> None:
    assert read_path(path) is None


def test_an_id_that_is_refused_everywhere_is_refused_here() -> None:
    with pytest.raises(InvalidArgument):
        check_session_id("a..b")
    assert read_label("3000-e-a-d-db") is None
