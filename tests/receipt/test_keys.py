"""Keys: made once, whole, for their owner only; others' are trusted when they are put there."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from keepstep.receipt.errors import KeyFileError
from keepstep.receipt.keys import (
    config_folder,
    default_key,
    key_id,
    new_key,
    public_text,
    trusted_folder,
    trusted_keys,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "config" / "keepstep"


@pytest.mark.parametrize("configured", ["", "relative/config"])
def test_keys_lie_in_the_users_configuration(configured: str, tmp_path: Path) -> None:
    assert config_folder({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "keepstep"
    home = Path.home() / ".config" / "keepstep"
    assert config_folder({"XDG_CONFIG_HOME": configured}) == home


def test_the_first_use_makes_a_key_for_its_owner_only(folder: Path) -> None:
    key = default_key(folder)
    path = folder / "receipt.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {entry.name for entry in folder.iterdir()} == {"receipt.key", "receipt.pub"}
    assert (folder / "receipt.pub").read_text() == public_text(key.public)
    assert default_key(folder).id == key.id == key_id(key.public)


def test_many_first_uses_at_once_agree_on_one_key(folder: Path) -> None:
    with ThreadPoolExecutor(8) as several:
        ids = {key.id for key in several.map(lambda _: default_key(folder), range(32))}
    assert len(ids) == 1
    assert trusted_keys(folder=folder).keys() == ids


def test_a_private_key_is_not_in_what_is_printed(folder: Path) -> None:
    key = default_key(folder)
    assert repr(key) == f"SigningKey(id={key.id!r})"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_use_is_refused(mode: int, folder: Path) -> None:
    default_key(folder)
    (folder / "receipt.key").chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        default_key(folder)
    with pytest.raises(KeyFileError, match="chmod 600"):
        trusted_keys(folder=folder)


@pytest.mark.parametrize("content", [b"", b"no key", b"\xff\x00"])
def test_a_file_that_is_no_key_is_named(content: bytes, folder: Path, tmp_path: Path) -> None:
    default_key(folder)
    (folder / "receipt.key").write_bytes(content)
    with pytest.raises(KeyFileError, match=r"receipt\.key: no private key"):
        default_key(folder)
    file = tmp_path / "other.pub"
    file.write_bytes(content)
    with pytest.raises(KeyFileError, match=r"other\.pub: no public key"):
        trusted_keys(file)


def test_a_key_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "other.pub"
    file.write_bytes(
        other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(KeyFileError, match="wanted ed25519"):
        trusted_keys(file)
    default_key(folder)
    private = folder / "receipt.key"
    private.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(KeyFileError, match="wanted ed25519"):
        default_key(folder)


def test_a_private_key_is_not_taken_for_a_public_one(folder: Path) -> None:
    default_key(folder)
    with pytest.raises(KeyFileError, match="no public key"):
        trusted_keys(folder / "receipt.key")


def test_what_is_trusted_is_ones_own_and_what_was_put_there(folder: Path) -> None:
    assert trusted_keys(folder=folder) == {}
    assert not folder.exists(), "looking makes no key"
    own, other = default_key(folder), new_key()
    trusted_folder(folder).mkdir()
    (trusted_folder(folder) / "other.pub").write_text(public_text(other.public))
    (trusted_folder(folder) / "notes.txt").write_text("not a key")
    assert trusted_keys(folder=folder).keys() == {own.id, other.id}
    only = trusted_keys(trusted_folder(folder) / "other.pub", folder)
    assert only.keys() == {other.id}


def test_other_tools_read_the_public_key(folder: Path) -> None:
    text = public_text(default_key(folder).public)
    key = serialization.load_pem_public_key(text.encode())
    assert isinstance(key, ed25519.Ed25519PublicKey)


def test_what_is_no_file_is_no_key(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path / "none", "nothing is there"),
    ):
        with pytest.raises(KeyFileError, match=said):
            trusted_keys(path)
