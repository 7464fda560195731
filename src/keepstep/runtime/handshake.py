"""How two ends of a connection prove to each other that they hold the job's secret."""

from __future__ import annotations

import hashlib
import hmac
import os

from keepstep.runtime.protocol import ProtocolError

NONCE_BYTES = 16
MAC_BYTES = 32
REFUSAL = b"\0" * MAC_BYTES  # a server's answer to a wrong proof; silence means that it died


class AuthenticationError(ProtocolError):
    """The other end does not hold this job's secret, or a frame was altered on its way."""


def new_secret() -> str:
    """Return a fresh per-job secret, 64 hexadecimal digits."""
    return os.urandom(32).hex()


def derive_key(secret: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the key of one connection."""
    seed = b"keepstep" + client_nonce + server_nonce
    return hmac.digest(secret.encode(), seed, hashlib.sha256)


def proof(key: bytes, role: bytes) -> bytes:
    """Return what an end sends to show that it derived the same key."""
    return hmac.digest(key, b"proof of " + role, "sha256")
