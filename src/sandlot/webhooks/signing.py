"""Signatures as Standard Webhooks has them (standardwebhooks.com), so that any of its libraries verifies them."""

import base64
import hashlib
import hmac

_PREFIX = "whsec_"


def told_secret(secret: bytes) -> str:
    """As receivers are given it."""
    return _PREFIX + base64.b64encode(secret).decode()


def secret_of(secret: bytes, tenant: str) -> bytes:
    """What the receivers of one tenant verify with: it follows from the operator's, and tells nothing of it."""
    return hmac.digest(secret, f"webhooks of tenant\0{tenant}".encode(), hashlib.sha256) if tenant else secret


def headers(secret: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
