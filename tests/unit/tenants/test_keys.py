"""Keys: made, shown once, checked, revoked; and what a file of them survives."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandlot.model import InvalidArgument, NotFound, Scope, TenantLimits, Unavailable, token_of_key
from sandlot.tenants.keys import KeyStore


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path)


def test_a_key_is_good_for_whom_it_was_made(keys: KeyStore) -> None:
    assert not keys.has_keys()
    made = keys.create("ci", "team-a", Scope.USE)
    assert keys.has_keys()
    assert keys.check(made.secret) == made.info
    assert (made.info.tenant, made.info.scope, made.info.expires) == ("team-a", Scope.USE, None)
    for wrong in (
        "",
        "x",
        made.secret[:-1],
        made.secret + "x",
        f"sl_{made.info.key_id}_",
        made.secret.upper(),
        "ä\udc80",
    ):
        assert keys.check(wrong) is None
    assert made.secret not in repr(made)


def test_nobody_keeps_the_secret(keys: KeyStore, tmp_path: Path) -> None:
    made = keys.create("ci", "team-a", Scope.USE)
    (file,) = tmp_path.glob("keys.json")
    assert made.secret.rpartition("_")[2] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_revoked_key_is_none(keys: KeyStore, tmp_path: Path) -> None:
    made, other = keys.create("ci", "a", Scope.USE), keys.create("ci", "b", Scope.USE)
    server = KeyStore(tmp_path)
    assert server.check(made.secret) is not None
    with pytest.raises(InvalidArgument, match="2 keys"):
        keys.revoke("ci")
    assert keys.revoke(made.info.key_id).revoked is not None
    assert server.check(made.secret) is None, "another program sees it"
    assert not server.is_good(made.info)
    assert server.check(other.secret) is not None
    assert keys.revoke("ci").key_id == other.info.key_id, "one that is good has the name alone"
    with pytest.raises(NotFound):
        keys.revoke("nobody")


def test_a_key_has_an_end(keys: KeyStore) -> None:
    made = keys.create("ci", "a", Scope.READ, lifetime_s=0.05)
    assert made.info.expires is not None
    time.sleep(0.06)
    assert keys.check(made.secret) is None
    assert [info.key_id for info in keys.list()] == [made.info.key_id], "it is still told of"


@pytest.mark.parametrize(
    ("name", "tenant", "scope", "lifetime_s"),
    [
        ("", "a", Scope.USE, None),
        ("x" * 65, "a", Scope.USE, None),
        ("a\n", "a", Scope.USE, None),
        ("x", "A", Scope.USE, None),
        ("x", "a.b", Scope.USE, None),
        ("x", "-a", Scope.USE, None),
        ("x", "", Scope.USE, None),
        ("x", "a", Scope.OPERATE, None),
        ("x", "a", Scope.USE, 0.0),
        ("x", "a", Scope.USE, 1e12),
    ],
)
def test_a_wrong_request_makes_nothing(
    keys: KeyStore, name: str, tenant: str, scope: Scope, lifetime_s: float | None
) -> None:
    with pytest.raises(InvalidArgument):
        keys.create(name, tenant, scope, lifetime_s)
    assert not keys.has_keys()


def test_programs_at_once_lose_no_key(tmp_path: Path) -> None:
    def make(number: int) -> str:
        return KeyStore(tmp_path).create(f"k{number}", "a", Scope.USE).secret

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(24)))
    keys = KeyStore(tmp_path)
    assert len(keys.list()) == 24
    assert all(keys.check(secret) for secret in made)


def test_a_file_that_cannot_be_read_lets_nobody_in(keys: KeyStore, tmp_path: Path) -> None:
    made = keys.create("ci", "a", Scope.USE)
    whole = (tmp_path / "keys.json").read_text()
    for broken in ("", "{", "[]", json.dumps({"keys": [{}], "limits": {}}), whole[:-5]):
        (tmp_path / "keys.json").write_text(broken)
        with pytest.raises(Unavailable):
            keys.check(made.secret)
        with pytest.raises(Unavailable):
            keys.create("x", "a", Scope.USE)
    (tmp_path / "keys.json").write_text(whole)
    assert keys.check(made.secret) is not None


def test_limits_are_of_a_tenant(keys: KeyStore, tmp_path: Path) -> None:
    keys.set_limits("a", TenantLimits(sessions=3, requests_per_s=2.5))
    assert KeyStore(tmp_path).limits("a") == TenantLimits(3, 2.5)
    assert keys.limits("b") == TenantLimits()


def test_scopes_hold_those_below() -> None:
    assert Scope.OPERATE.holds(Scope.USE)
    assert Scope.USE.holds(Scope.READ)
    assert not Scope.READ.holds(Scope.USE)


def test_a_token_is_made_of_a_key_and_reaches_one_session(keys: KeyStore, tmp_path: Path) -> None:
    """By whoever has the key, without asking, or on the machine of the server; both are the same."""
    made = keys.create("ci", "team-a", Scope.USE)
    expires = time.time() + 600
    token = token_of_key(made.secret, "work", expires)
    assert token == keys.token("ci", "work", expires, Scope.USE)
    found = KeyStore(tmp_path).check(token)
    assert found is not None
    assert (found.key_id, found.tenant, found.session, found.scope) == (
        made.info.key_id,
        "team-a",
        "work",
        Scope.USE,
    )
    assert found.expires == int(expires)
    reading = keys.check(token_of_key(made.secret, "work", expires, Scope.READ))
    assert reading is not None
    assert reading.scope is Scope.READ
    looking = keys.create("l", "team-a", Scope.READ)
    narrowed = keys.check(token_of_key(looking.secret, "work", expires))
    assert narrowed is not None
    assert narrowed.scope is Scope.READ, "no more than its key"
    assert keys.is_good(found)
    keys.revoke("ci")
    assert keys.check(token) is None
    assert not keys.is_good(found)


def test_a_token_that_was_changed_is_none(keys: KeyStore) -> None:
    made, other = keys.create("ci", "a", Scope.USE), keys.create("o", "b", Scope.USE)
    token = token_of_key(made.secret, "work", time.time() + 600)
    prefix, key_id, told, signature = token.split("_")
    elsewhere = token_of_key(made.secret, "other", time.time() + 600).split("_")[2]
    for wrong in (
        token[:-1],
        token + "0",
        token.upper(),
        f"{prefix}_{key_id}_{elsewhere}_{signature}",
        f"{prefix}_{other.info.key_id}_{told}_{signature}",
        f"{prefix}_nobody_{told}_{signature}",
        f"{prefix}_{key_id}_{told}_",
        f"{prefix}_{key_id}__{signature}",
        f"{prefix}_{key_id}_{'a' * 5000}_{signature}",
        f"{prefix}_{key_id}_ä_\udc80",
        token_of_key(made.secret, "work", time.time() - 1),
        token_of_key("sl_nobody_secret", "work", time.time() + 600),
    ):
        assert keys.check(wrong) is None, wrong
    assert keys.check(token) is not None


def test_without_the_secret_a_file_of_keys_makes_no_tokens(keys: KeyStore, tmp_path: Path) -> None:
    made = keys.create("ci", "a", Scope.USE)
    token = token_of_key(made.secret, "work", time.time() + 600)
    (tmp_path / "keys.secret").write_bytes(bytes(32))
    stolen = KeyStore(tmp_path)
    assert stolen.token("ci", "work", time.time() + 600, Scope.USE) != token
    assert stolen.check(token) is None
    assert stolen.check(made.secret) is not None, "keys are not of it"
    assert (tmp_path / "keys.secret").stat().st_mode & 0o777 == 0o600


def test_whoever_shows_something_has_a_word(keys: KeyStore) -> None:
    made = keys.create("ci", "a", Scope.USE)
    token = keys.check(token_of_key(made.secret, "work", time.time() + 600))
    assert token is not None
    for info in (made.info, token):
        assert keys.of_whom(info.who) == info
    for wrong in ("", "x", f"{made.info.key_id}~", f"{made.info.key_id}~operate~99999999999~x", f"{token.who}~x"):
        assert keys.of_whom(wrong) is None
    keys.revoke("ci")
    assert keys.of_whom(token.who) is None


def test_a_wrong_token_is_not_made(keys: KeyStore) -> None:
    made = keys.create("ci", "a", Scope.USE)
    for session_id, scope in (("../x", Scope.USE), ("", Scope.USE), ("work", Scope.OPERATE)):
        with pytest.raises(InvalidArgument):
            token_of_key(made.secret, session_id, time.time() + 600, scope)
    with pytest.raises(InvalidArgument):
        token_of_key("no key", "work", time.time() + 600)
    with pytest.raises(NotFound):
        keys.token("nobody", "work", time.time() + 600, Scope.USE)
