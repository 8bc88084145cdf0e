"""Signatures hold for what was signed, by the key that signed it, and for nothing else."""

from __future__ import annotations

import shutil
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from maxbrod.errors import CorruptDataError, RefusedError, UsageError
from maxbrod.signature import (
    SigningKey,
    canonical,
    create_signing_key,
    parse_key,
    read_key,
    signed,
    verify_document,
)
from support.signing_keys import SECRET, key_pair, pem_pair, public_half

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENT: dict[str, Any] = {"a": 1, "b": ["ü", None]}


def checked(document: dict[str, Any], key: SigningKey | None) -> str:
    return verify_document(document, key, object_name="test")


def test_a_signature_holds_for_its_key_and_for_no_other() -> None:
    private, public = key_pair()
    assert checked(signed(DOCUMENT, SECRET), SECRET) == "hmac-sha256"
    assert checked(signed(DOCUMENT, private), public) == "ed25519"
    assert checked(signed(DOCUMENT, None), None) == "sha256"
    others = [parse_key(b"fedcba9876543210", name="test"), parse_key(pem_pair()[1], name="test")]
    for document in (signed(DOCUMENT, SECRET), signed(DOCUMENT, private), signed(DOCUMENT, None)):
        for other in others:
            with pytest.raises(CorruptDataError):
                checked(document, other)


@pytest.mark.parametrize("key", [SECRET, None])
def test_a_change_of_anything_is_never_missed(key: SigningKey | None) -> None:
    made = signed(DOCUMENT, key)
    for changed in (
        {**made, "a": 2},
        {**made, "c": None},
        {name: value for name, value in made.items() if name != "b"},
        {**made, "signature": {**made["signature"], "value": "00"}},
        {**made, "signature": None},
        {**made, "signature": {**made["signature"], "algorithm": "rot13"}},
    ):
        with pytest.raises(CorruptDataError):
            checked(changed, key)


def test_a_signature_that_was_taken_away_is_never_taken_for_a_good_one() -> None:
    """Whoever gives a key wants to know that it signed."""
    with pytest.raises(CorruptDataError, match="not signed"):
        checked(signed({**DOCUMENT, "a": 9}, None), SECRET)
    with pytest.raises(UsageError, match="no key is given"):
        checked(signed(DOCUMENT, SECRET), None)


def test_what_is_no_key_is_refused_and_never_shown(tmp_path: Path) -> None:
    rsa = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for data in (b"", b"short", b"-----BEGIN PRIVATE KEY-----\nnonsense", rsa):
        with pytest.raises(UsageError) as caught:
            parse_key(data, name="test")
        assert not data or data.decode() not in str(caught.value)
    with pytest.raises(UsageError):
        read_key(tmp_path / "missing")
    with pytest.raises(UsageError):
        signed(DOCUMENT, parse_key(pem_pair()[1], name="test"))
    assert "0123456789abcdef" not in repr(SECRET)


def test_a_signature_with_anything_else_in_it_is_refused() -> None:
    """It does not sign itself: what a forger adds there would be shown beside "signed"."""
    for key in (SECRET, None):
        made = signed(DOCUMENT, key)
        for changed in (
            {**made["signature"], "signer": "the auditor"},
            {name: value for name, value in made["signature"].items() if name != "key"},
            {**made["signature"], "key": "another"},
            {**made["signature"], "value": "\u00fc" * 64},
        ):
            with pytest.raises(CorruptDataError):
                checked({**made, "signature": changed}, key)


def test_no_public_key_of_any_form_is_taken_for_a_secret() -> None:
    """Whoever knows it could sign: anybody."""
    key = Ed25519PrivateKey.generate().public_key()
    rsa = generate_private_key(65537, 2048).public_key()
    forms = [
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        rsa.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        rsa.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b'{"kty": "OKP", "crv": "Ed25519", "x": "AAAAAAAAAAAAAAAAAAAAAAAA"}',
    ]
    for data in forms:
        with pytest.raises(UsageError, match="not a signing key"):
            parse_key(data, name="test")


def test_a_key_that_others_may_read_signs_nothing(tmp_path: Path) -> None:
    private, public = pem_pair()
    for name, data in (("private", private), ("secret", b"0123456789abcdef"), ("public", public)):
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o644)
    assert read_key(tmp_path / "public").public is not None
    for name in ("private", "secret"):
        with pytest.raises(RefusedError) as caught:
            read_key(tmp_path / name)
        assert "chmod 600" in (caught.value.hint or "")
        (tmp_path / name).chmod(0o600)
        assert read_key(tmp_path / name).name


def test_a_created_key_signs_what_its_public_half_verifies_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "catalog.key"
    made = create_signing_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    public = read_key(public_half(path))
    assert public.private is None
    assert checked(signed(DOCUMENT, read_key(path)), public) == "ed25519"
    assert public.name == made.name
    before = path.read_bytes()
    with pytest.raises(RefusedError, match="already"):
        create_signing_key(path)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(RefusedError, match="already"):
        create_signing_key(path)
    assert not path.exists(), "no private key stays without its public half"
    with pytest.raises(UsageError, match="cannot be written"):
        create_signing_key(tmp_path / "missing" / "key")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_verifies_what_is_signed_here(tmp_path: Path) -> None:
    """Another program agrees on keys, canonical form and signature."""
    create_signing_key(tmp_path / "key")
    document = signed(DOCUMENT, read_key(tmp_path / "key"))
    (tmp_path / "text").write_bytes(canonical(DOCUMENT))
    (tmp_path / "value").write_bytes(bytes.fromhex(document["signature"]["value"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "key.pub", "-rawin", "-in", "text"]
    found = subprocess.run([*command, "-sigfile", "value"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Signature Verified Successfully" in found.stdout, found.stderr
