"""What receivers of webhooks are given to verify what they are told."""

from pathlib import Path

from sandlot.tenants.secret_files import read_secret
from sandlot.webhooks.signing import told_secret

WEBHOOK_SECRET = "webhook.secret"


def webhook_secret(data: Path) -> str:
    """Made when it is first wanted. Raises Unavailable."""
    return told_secret(read_secret(data / WEBHOOK_SECRET))
