"""What a server is told: a file, the environment and the command line, as one value that is checked whole."""

import dataclasses
import os
import re
from pathlib import Path

import pytest

from sandlot.config.addresses import Address, parse_address
from sandlot.config.service import ServiceConfig, TlsFiles, default_service_config, load_service
from sandlot.config.settings import load
from sandlot.config.variables import ENGINE, SERVER
from sandlot.model import InvalidArgument, limits

DOCUMENT = Path(__file__).parents[3] / "docs" / "operating" / "serve.md"


def at(config: ServiceConfig, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def test_defaults_are_those_of_the_documented_table() -> None:
    config = default_service_config()
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    fields = {field.name for field in dataclasses.fields(ServiceConfig)} - {"engine"}
    documented = dict(rows)
    assert len(rows) == len(documented) >= 19 + len(fields)
    assert fields <= documented.keys(), "every field of the server stands in the table"
    home = {"/var/lib/sandlot", str(Path.home() / ".local/share/sandlot")}
    assert str(config.engine.data) in home
    assert {path: shown(at(config, path)) for path in documented if path != "engine.data"} == {
        path: default for path, default in documented.items() if path != "engine.data"
    }


def test_a_flag_counts_more_than_a_variable_and_a_variable_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sandlot.toml"
    file.write_text('warm_pool = 1\nsessions_max = 11\nturns_kept = 111\nstorage = "layers"\nmetrics = false\n')
    environment = {"SANDLOT_CONFIG": str(file), "SANDLOT_SESSIONS_MAX": "22", "SANDLOT_TURNS_KEPT": "222"}
    config = load_service(environment, {"SANDLOT_TURNS_KEPT": "333"})
    engine = config.engine
    assert (engine.warm_pool, engine.sessions_max, engine.turns_kept) == (1, 22, 333)
    assert (engine.storage, config.metrics) == ("layers", False)
    assert load(environment).sessions_max == 22, "an engine without a server reads the same file"
    assert load_service({}, {"SANDLOT_CONFIG": str(file)}).engine.sessions_max == 11


def test_lists_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sandlot.toml"
    file.write_text(
        'listen = ["127.0.0.1:1", "unix:/run/s.sock"]\nmounts = ["/srv", "/data=rw"]\nallowed_hosts = "A,b"\n'
    )
    config = load_service({}, {"SANDLOT_CONFIG": str(file)})
    assert config.listen == (Address("127.0.0.1", 1), Address(path="/run/s.sock"))
    assert [(mount.path, mount.writable) for mount in config.engine.mounts] == [("/srv", False), ("/data", True)]
    assert config.allowed_hosts == ("a", "b")


def test_every_mistake_is_told_at_once_and_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "sandlot.toml"
    file.write_text('warm_pool = "many"\n')
    environment = {"SANDLOT_DRAIN_S": "soon", "SANDLOT_SPACE_WARN": "0.99", "SANDLOT_TLS_KEY": "/nowhere/key.pem"}
    with pytest.raises(InvalidArgument) as refused:
        load_service(environment, {"SANDLOT_CONFIG": str(file), "SANDLOT_LISTEN": "0.0.0.0:80,127.0.0.1"})
    told = refused.value.message
    for part in (
        f"warm_pool in {file} must",
        "SANDLOT_DRAIN_S must",
        "SANDLOT_SPACE_WARN must not be more than SANDLOT_SPACE_CRITICAL",
        "SANDLOT_TLS_KEY must be a file that can be read",
        "must be given together",
        "--listen: 0.0.0.0:80 can be reached from other machines",
        "--listen: '127.0.0.1' is no address with a port",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("warm_pol = 1\nsessions_max = 1\nother = 2", "warm_pol in .* is no setting; other in"),
        ("[engine]\nwarm_pool = 1", "engine in .* is a table"),
        ("warm_pool = ", "is not TOML"),
        ("config = 'x'", "config in .* is no setting"),
    ],
)
def test_a_file_with_something_else_in_it_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "sandlot.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        load_service({"SANDLOT_CONFIG": str(file)})


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load_service({"SANDLOT_CONFIG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("127.0.0.1:8700", True),
        ("127.3.2.1:1", True),
        ("localhost:0", True),
        ("[::1]:8700", True),
        ("unix:/run/sandlot.sock", True),
        ("0.0.0.0:8700", False),
        ("[::]:8700", False),
        ("10.0.0.1:8700", False),
    ],
)
def test_addresses(text: str, is_loopback: bool) -> None:
    address = parse_address(text)
    assert address.is_loopback is is_loopback
    assert str(address) == text.replace("localhost", "127.0.0.1")
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "8700", ":8700", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.1:80", "example.org:80"),
        *("unix:relative", "unix:/" + "x" * 107, "[::1]", "127.0.0.1:8700\n", "::1:80", "unix:/a\0b"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_address(text)


def test_nobody_outside_is_listened_to_without_keys() -> None:
    for text in ("0.0.0.0:8700", "[::]:8700", "192.0.2.1:8700", "127.0.0.1:1,0.0.0.0:2"):
        with pytest.raises(InvalidArgument, match="can be reached from other machines, and there are no keys"):
            load_service({"SANDLOT_LISTEN": text})
    assert load_service({"SANDLOT_LISTEN": "none"}).listen == ()


def test_certificates_come_with_their_key(tmp_path: Path) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).touch()
    both = {"SANDLOT_TLS_CERTIFICATE": str(tmp_path / "cert"), "SANDLOT_TLS_KEY": str(tmp_path / "key")}
    assert load_service(both).tls == TlsFiles(tmp_path / "cert", tmp_path / "key", None)
    client_ca = {"SANDLOT_TLS_CLIENT_CA": str(tmp_path / "ca")}
    assert load_service(both | client_ca).tls == TlsFiles(tmp_path / "cert", tmp_path / "key", tmp_path / "ca")
    with pytest.raises(InvalidArgument, match="must be given together"):
        load_service(client_ca)


def test_every_variable_can_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "sandlot.toml").write_text("\n".join(f'{v.key} = ""' for v in (*ENGINE, *SERVER)))
    assert load_service({"SANDLOT_CONFIG": str(tmp_path / "sandlot.toml")}) == default_service_config()


def test_limits_that_every_session_has() -> None:
    engine = load_service(
        {
            "SANDLOT_DEFAULT_DISK": "10g",
            "SANDLOT_TOOL_TIMEOUT_S": "30",
            "SANDLOT_CALL_SNAPSHOTS": "on",
            "SANDLOT_ADVERTISE_ADDRESS": "sandlot.example",
        }
    ).engine
    assert engine.resources.disk_bytes == 10 * limits.GIB
    assert (engine.tool_timeout_s, engine.call_snapshots, engine.advertise_address) == (30, True, "sandlot.example")
    with pytest.raises(InvalidArgument, match="SANDLOT_ADVERTISE_ADDRESS"):
        load_service({"SANDLOT_ADVERTISE_ADDRESS": "a b"})


def test_nothing_of_it_can_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        default_service_config().drain_s = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert os.environ.get("SANDLOT_LISTEN") is None
