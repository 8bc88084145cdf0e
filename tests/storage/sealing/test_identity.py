"""What a ring can be opened with: key files, text, passphrases, KMS, and a program."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from maxbrod.config import EncryptionConfig, StorageConfig
from maxbrod.errors import CorruptDataError, EnvironmentMissingError, RefusedError, UnavailableError, UsageError
from maxbrod.storage.sealing.identity import (
    Identity,
    create_key_files,
    new_identity,
    parse_identity,
    read_key_file,
    recipients_of,
    stretch,
    unlock,
)
from maxbrod.storage.sealing.rings import Ring, create_ring

PASSPHRASE = "correct horse battery staple"
WRAPPER = """
import sys
verb, label = sys.argv[1:]
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(bytes(byte ^ 0x5A for byte in data))
"""


def ring_for(options: EncryptionConfig) -> Ring:
    return create_ring(recipients_of(options))


def wrapper(tmp_path: Path, text: str = WRAPPER) -> tuple[str, ...]:
    (tmp_path / "wrapper.py").write_text(text)
    return sys.executable, str(tmp_path / "wrapper.py")


def test_a_key_file_is_private_and_holds_both_halves(tmp_path: Path) -> None:
    made = create_key_files(tmp_path / "ops.key", "ops")
    assert stat.S_IMODE((tmp_path / "ops.key").stat().st_mode) == 0o600
    private, public = read_key_file(tmp_path / "ops.key"), read_key_file(tmp_path / "ops.key.pub")
    assert private.private is not None
    assert public == Identity(public=private.public)
    begun = ring_for(EncryptionConfig(key_file=tmp_path / "ops.key.pub"))
    assert [recipient.label for recipient in begun.recipients] == ["ops"]
    assert made["id"] == private.id == public.id
    assert private.private_text not in (tmp_path / "ops.key.pub").read_text()


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    create_key_files(tmp_path / "ops.key", None)
    before = (tmp_path / "ops.key").read_bytes()
    with pytest.raises(RefusedError, match="there is a file already"):
        create_key_files(tmp_path / "ops.key", None)
    assert (tmp_path / "ops.key").read_bytes() == before


def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    create_key_files(tmp_path / "ops.key", None)
    (tmp_path / "ops.key").chmod(0o644)
    with pytest.raises(RefusedError, match="others may read"):
        read_key_file(tmp_path / "ops.key")


def _mistyped(text: str) -> list[str]:
    last = "a" if text[-1] != "a" else "b"
    return [text[:-1], text[:-1] + last, text.replace("private", "public")]


def test_a_mistyped_key_is_refused_and_never_shown() -> None:
    for wrong in _mistyped(new_identity().private_text):
        with pytest.raises(UsageError, match="a letter of it is wrong") as caught:
            parse_identity(wrong, name="here")
        assert wrong[20:] not in repr(caught.value.as_dict())


def test_any_one_of_several_opens(tmp_path: Path) -> None:
    create_key_files(tmp_path / "a.key", None)
    options = EncryptionConfig(key_file=tmp_path / "a.key", passphrase=SecretStr(PASSPHRASE), command=wrapper(tmp_path))
    ring = ring_for(options)
    assert len(ring.recipients) == 3
    for alone in (
        EncryptionConfig(key_file=tmp_path / "a.key"),
        EncryptionConfig(passphrase=SecretStr(PASSPHRASE)),
        EncryptionConfig(command=wrapper(tmp_path)),
        EncryptionConfig(secret_key=SecretStr(read_key_file(tmp_path / "a.key").private_text)),
    ):
        assert unlock(ring, alone, name="ring").reads_records
    public = EncryptionConfig(public_keys=(read_key_file(tmp_path / "a.key").public_text,))
    assert not unlock(ring, public, name="ring").reads_records


def test_a_wrong_key_is_a_refusal_that_names_both(tmp_path: Path) -> None:
    mine, other = new_identity(), new_identity()
    ring = ring_for(EncryptionConfig(public_keys=(mine.public_text,)))
    with pytest.raises(RefusedError, match=other.id) as caught:
        unlock(ring, EncryptionConfig(secret_key=SecretStr(other.private_text)), name="ring")
    assert mine.id in (caught.value.hint or "")
    with pytest.raises(RefusedError):
        unlock(ring, EncryptionConfig(passphrase=SecretStr(PASSPHRASE)), name="ring")


def test_a_wrong_passphrase_opens_nothing() -> None:
    ring = ring_for(EncryptionConfig(passphrase=SecretStr(PASSPHRASE)))
    with pytest.raises(RefusedError, match="none of the keys"):
        unlock(ring, EncryptionConfig(passphrase=SecretStr(PASSPHRASE + "!")), name="ring")


def test_a_short_passphrase_is_refused() -> None:
    with pytest.raises(UsageError, match="fewer than 12"):
        ring_for(EncryptionConfig(passphrase=SecretStr("short")))


def test_settings_of_argon2_that_would_exhaust_the_machine_are_refused() -> None:
    means = {"salt": "00" * 16, "iterations": 3, "lanes": 4, "memory_kib": 1 << 40}
    with pytest.raises(CorruptDataError, match="impossible settings"):
        stretch(b"x", means)


def test_a_program_that_does_not_wrap_is_refused(tmp_path: Path) -> None:
    same = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    with pytest.raises(RefusedError, match="does not wrap"):
        ring_for(EncryptionConfig(command=wrapper(tmp_path, same)))


def test_a_program_that_fails_is_named_and_its_output_is_not_shown(tmp_path: Path) -> None:
    ring = ring_for(EncryptionConfig(command=wrapper(tmp_path)))
    failing = wrapper(tmp_path, "import sys; print('SECRET'); sys.exit(3)")
    with pytest.raises(RefusedError, match="ended with 3") as caught:
        unlock(ring, EncryptionConfig(command=failing), name="ring")
    assert "SECRET" not in repr(caught.value.as_dict())
    with pytest.raises(EnvironmentMissingError, match="cannot be run"):
        unlock(ring, EncryptionConfig(command=("/nowhere/wrapper",)), name="ring")


def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ring_for(EncryptionConfig(command=wrapper(tmp_path)))
    monkeypatch.setattr("maxbrod.storage.sealing.identity._COMMAND_S", 0.2)
    with pytest.raises(UnavailableError, match="did not unwrap the key in"):
        unlock(ring, EncryptionConfig(command=wrapper(tmp_path, "import time; time.sleep(60)")), name="ring")


def test_the_environment_gives_keys_unless_the_file_does(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = new_identity()
    monkeypatch.setenv("MAXBROD_KEY", identity.private_text)
    assert StorageConfig().encryption.secret_key == SecretStr(identity.private_text)
    assert identity.private_text not in repr(StorageConfig())
    own = StorageConfig.model_validate({"encryption": {"key_file": "/x"}}).encryption
    assert own == EncryptionConfig(key_file=Path("/x"))
