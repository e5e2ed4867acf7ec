"""All that a server is told, from a file, the environment and the command line: one frozen value, checked whole."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandlot.config.addresses import Address, parse_address
from sandlot.config.previews import PreviewDomain, read_domain
from sandlot.config.reading import Reader, Source
from sandlot.config.settings import Settings, read_settings, sources
from sandlot.config.variables import LISTEN
from sandlot.config.webhooks import Network, WebhookUrl, parse_kind, parse_network, parse_url
from sandlot.model import KEYS_FILE, EventKind, InvalidArgument, limits

_T = TypeVar("_T")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path
    key: Path
    client_ca: Path | None  # None: clients need no certificate


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    engine: Settings
    listen: tuple[Address, ...]  # beside the socket of the data directory
    tls: TlsFiles | None  # of the addresses that are no paths
    allowed_hosts: tuple[str, ...]
    connections_max: int
    header_timeout_s: float
    keep_alive_s: float
    drain_s: float
    log_level: str
    log_format: str
    access_log: bool
    metrics: bool
    tracing: bool
    webhooks: tuple[WebhookUrl, ...]
    webhook_events: tuple[EventKind, ...]  # none: all kinds
    webhook_networks: tuple[Network, ...]  # that may be reached although private
    preview_domain: PreviewDomain | None  # None: ports of sessions have no hosts
    preview_public: bool  # ports may be for everybody, if that is asked for


def default_service_config() -> ServiceConfig:
    """What a server has that is told nothing."""
    return load_service({})


def load_service(environment: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None) -> ServiceConfig:
    """`flags` are by the names of variables, and count most. Raises InvalidArgument that names all that is wrong."""
    environment = os.environ if environment is None else environment
    flags = flags or {}
    read = Reader(Source(flags, _as_flag), *sources(environment, flags.get("SANDLOT_CONFIG", "")))
    config = _read(read, environment)
    if config.engine.space_warn > config.engine.space_critical:
        told = f"{read.spelled('SANDLOT_SPACE_WARN')} must not be more than {read.spelled('SANDLOT_SPACE_CRITICAL')}"
        read.wrong.append(f"{told}, {config.engine.space_critical:g}")
    _check_exposed(read, config)
    read.check()
    return config


def _as_flag(name: str) -> str:
    return "--" + name.removeprefix("SANDLOT_").lower().replace("_", "-")


def _read(read: Reader, environment: Mapping[str, str]) -> ServiceConfig:
    level = read.one_of("SANDLOT_LOG_LEVEL", "info", LOG_LEVELS)
    allowed_hosts = tuple(name.lower() for name in read.parts("SANDLOT_ALLOWED_HOSTS", ","))
    return ServiceConfig(
        engine=read_settings(read, environment),
        listen=_addresses(read),
        tls=_tls(read),
        allowed_hosts=allowed_hosts,
        connections_max=read.count(
            "SANDLOT_CONNECTIONS_MAX", limits.SERVER_CONNECTIONS_MAX, 1, limits.SERVER_CONNECTIONS_MAX_MAX
        ),
        header_timeout_s=read.number("SANDLOT_HEADER_TIMEOUT_S", limits.HEADER_TIMEOUT_S, 0.1, 3600),
        keep_alive_s=read.number("SANDLOT_KEEP_ALIVE_S", limits.KEEP_ALIVE_S, 0.1, 86400),
        drain_s=read.number("SANDLOT_DRAIN_S", limits.DRAIN_S, 0, 86400),
        log_level=level,
        log_format=read.one_of("SANDLOT_LOG_FORMAT", "text", ("json",)),
        access_log=read.flag("SANDLOT_ACCESS_LOG", default=False),
        metrics=read.flag("SANDLOT_METRICS", default=True),
        tracing=read.flag("SANDLOT_TRACING", default=False),
        webhooks=_each(read, "SANDLOT_WEBHOOKS", parse_url),
        webhook_events=_each(read, "SANDLOT_WEBHOOK_EVENTS", parse_kind),
        webhook_networks=_each(read, "SANDLOT_WEBHOOK_NETWORKS", parse_network),
        preview_domain=read_domain(read, allowed_hosts),
        preview_public=read.flag("SANDLOT_PREVIEW_PUBLIC", default=False),
    )


def _each(read: Reader, name: str, parse: Callable[[str], _T]) -> tuple[_T, ...]:
    found: list[_T] = []
    for part in read.parts(name, ","):
        try:
            found.append(parse(part.strip()))
        except InvalidArgument as error:
            read.wrong.append(f"{read.spelled(name)}: {error.message}")
    if len(found) > limits.WEBHOOKS_MAX:
        read.wrong.append(f"{read.spelled(name)} must have at most {limits.WEBHOOKS_MAX} parts, not {len(found)}")
    return tuple(dict.fromkeys(found))


def _addresses(read: Reader) -> tuple[Address, ...]:
    name = "SANDLOT_LISTEN"
    if read.text(name) == "none":
        return ()
    found: list[Address] = []
    for part in read.parts(name, ",") or [LISTEN]:
        try:
            found.append(parse_address(part.strip()))
        except InvalidArgument as error:
            read.wrong.append(f"{read.spelled(name)}: {error.message}")
    return tuple(found)


def _tls(read: Reader) -> TlsFiles | None:
    names = ("SANDLOT_TLS_CERTIFICATE", "SANDLOT_TLS_KEY", "SANDLOT_TLS_CLIENT_CA")
    certificate, key, client_ca = (Path(text).absolute() if (text := read.text(name)) else None for name in names)
    for name, path in zip(names, (certificate, key, client_ca), strict=True):
        if path is not None and not os.access(path, os.R_OK):
            read.refuse(name, "be a file that can be read")
    if certificate and key:
        return TlsFiles(certificate, key, client_ca)
    if certificate or key or client_ca:
        read.wrong.append(f"{names[0]} and {names[1]} must be given together")
    return None


def has_keys(data: Path) -> bool:
    return (data / KEYS_FILE).exists()


def _check_exposed(read: Reader, config: ServiceConfig) -> None:
    """Without keys, whoever can reach the server may do everything: so nobody but this machine does."""
    if has_keys(config.engine.data):
        return
    exposed = [address for address in config.listen if not address.is_loopback]
    if exposed:
        told = ", ".join(map(str, exposed))
        read.wrong.append(
            f"{read.spelled('SANDLOT_LISTEN')}: {told} can be reached from other machines, and there are no keys that "
            "would keep others out; make one with `sandlot key create`, or listen on 127.0.0.1, on [::1] or on "
            "unix:/PATH, and let an SSH tunnel lead there"
        )
