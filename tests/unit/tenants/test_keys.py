"""Keys: made, shown once, checked, revoked; and what a file of them survives."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandlot.model import InvalidArgument, NotFound, Scope, TenantLimits, Unavailable
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
    assert not server.is_good(made.info.key_id)
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
