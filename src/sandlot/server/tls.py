"""Certificates of a server."""

import ssl

from sandlot.config.service import TlsFiles
from sandlot.model import InvalidArgument


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises InvalidArgument for what is no certificate, or has another key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{files.certificate} and {files.key} are no certificate with its key: {_words(error)}",
            next_step="give both in PEM, the key without a password",
        ) from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{files.client_ca} holds no certificates in PEM: {_words(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "it is not PEM"
