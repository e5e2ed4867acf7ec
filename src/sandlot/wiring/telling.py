"""What receivers of webhooks are given to verify what they are told."""

from pathlib import Path

from sandlot.contracts import Events, Host
from sandlot.host.admission import Queue
from sandlot.model import Scope, TenantLimits
from sandlot.tenants.host import TenantHost, as_host
from sandlot.tenants.room import Room
from sandlot.tenants.secret_files import read_secret
from sandlot.webhooks.signing import secret_of, told_secret

WEBHOOK_SECRET = "webhook.secret"


def webhook_secret(data: Path, tenant: str = "") -> str:
    """Made when it is first wanted. Raises Unavailable."""
    return told_secret(secret_of(read_secret(data / WEBHOOK_SECRET), tenant))


def events_of(host: Host, tenant: str) -> Events:
    """What a tenant hears of a host."""
    return as_host(TenantHost(host, tenant, Scope.READ, Room(tenant, TenantLimits, Queue())))
