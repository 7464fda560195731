"""Keys: one's own, made on first use, and those of others that are trusted.

They lie in the folder ``keepstep`` of the user's configuration: ``receipt.key`` (private, readable
by its owner only), ``receipt.pub`` (to give away), and the public keys of others in ``trusted``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from keepstep.receipt.errors import KeyFileError

PublicKey = Ed25519PublicKey

_PRIVATE = "receipt.key"
_PUBLIC = "receipt.pub"
_TRUSTED = "trusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key; its text form shows the id only."""

    id: str
    private: Ed25519PrivateKey

    def sign(self, data: bytes) -> bytes:
        """Return the signature of ``data``."""
        return self.private.sign(data)

    @property
    def public(self) -> PublicKey:
        """The half that others verify with."""
        return self.private.public_key()

    def __repr__(self) -> str:
        return f"SigningKey(id={self.id!r})"


def config_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where keys lie; it need not exist."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    return base / "keepstep"


_LARGEST = 64 * 1024  # bytes of a key file that are read; one of ours has 113


def key_id(key: PublicKey) -> str:
    """Return the name of a key: SHA-256 of its 32 bytes, as hexadecimal digits."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def public_text(key: PublicKey) -> str:
    """Return a public key as a PEM file, which ``--key`` and other tools read."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def new_key() -> SigningKey:
    """Return a new key that lies nowhere yet."""
    return _named(Ed25519PrivateKey.generate())


def default_key(folder: Path | None = None) -> SigningKey:
    """Return one's own key; make it when there is none.

    Args:
        folder: Where it lies; the user's configuration unless told otherwise.

    Raises:
        KeyFileError: The file is no key, or others can read it.
        OSError: It cannot be read or written.
    """
    folder = config_folder() if folder is None else folder
    path = folder / _PRIVATE
    if not path.exists():
        _make(folder, path)
    key = _read_private(path)
    public = folder / _PUBLIC
    if not public.exists():
        _write(public, public_text(key.public).encode(), mode=0o644, replace=True)
    return key


def trusted_keys(only: Path | None = None, folder: Path | None = None) -> dict[str, PublicKey]:
    """Return the keys that a receipt may be signed with, by their id.

    Args:
        only: Trust the key in this file and no other.
        folder: Where one's own key and the folder ``trusted`` lie.

    Raises:
        KeyFileError: A file that is to be trusted holds no public key of this kind.
        OSError: A file cannot be read.
    """
    if only is not None:
        keys = [_read_public(only)]
    else:
        folder = config_folder() if folder is None else folder
        own = folder / _PRIVATE
        keys = [_read_private(own).public] if own.exists() else []
        keys += [_read_public(path) for path in sorted((folder / _TRUSTED).glob("*.pub"))]
    return {key_id(key): key for key in keys}


def trusted_folder(folder: Path | None = None) -> Path:
    """Return where the public keys of others (files ``*.pub``) are put to be trusted."""
    return (config_folder() if folder is None else folder) / _TRUSTED


def _named(private: Ed25519PrivateKey) -> SigningKey:
    return SigningKey(id=key_id(private.public_key()), private=private)


def _make(folder: Path, path: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = new_key().private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(path, data, mode=0o600, replace=False)


def _write(path: Path, data: bytes, *, mode: int, replace: bool) -> None:
    """Write a file whole. Without ``replace`` the one that is there first stays: its key counts."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _read_private(path: Path) -> SigningKey:
    if path.stat().st_mode & 0o077:
        raise KeyFileError(
            f"{path}: others can read this private key or write it; wanted: only its owner. "
            f"If nobody else had it: chmod 600 {path}; otherwise remove it, and a new one is made"
        )
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise KeyFileError(f"{path}: no private key: {_first_line(error)}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: a key of another kind; wanted ed25519")
    return _named(key)


def _read_public(path: Path) -> PublicKey:
    if not path.is_file():
        seen = "it is no regular file" if path.exists() else "nothing is there"
        raise KeyFileError(f"{path}: {seen}; wanted the PEM file of a public key")
    try:
        with path.open("rb") as file:
            key = serialization.load_pem_public_key(file.read(_LARGEST))
    except (ValueError, TypeError) as error:
        raise KeyFileError(
            f"{path}: no public key: {_first_line(error)}; wanted the PEM file that "
            "`keepstep receipt key` prints where the receipt was made"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path}: a key of another kind; wanted ed25519")
    return key


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
