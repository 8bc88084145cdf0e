"""`maxbrod key`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maxbrod.archive.archive import open_for_writing
from maxbrod.cli.main import run
from maxbrod.config import EncryptionConfig, StorageConfig
from maxbrod.errors import RefusedError


class Shell:
    """Runs commands on one archive, each with a key."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.archive, self._capsys = folder, str(folder / "archive"), capsys

    def create(self, name: str) -> Path:
        self("create", str(self.folder / name), archive=False)
        return self.folder / name

    def __call__(self, *words: str, key: Path | None = None, exits: int = 0, archive: bool = True) -> dict[str, Any]:
        place = ["-a", self.archive] if archive else []
        given = [] if key is None else ["--archive-key", str(key)]
        assert run(["key", *words, *place, *given, "--json"]) == exits
        found: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return found

    def add(self, label: str, public: Path, *, key: Path | None = None, exits: int = 0) -> dict[str, Any]:
        return self("add", "--label", label, "--public-key", str(public), key=key, exits=exits)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def labels(document: dict[str, Any]) -> list[str]:
    return [key["label"] for key in document["keys"]]


def test_the_life_of_keys(shell: Shell) -> None:
    ops, vault = shell.create("ops.key"), shell.create("vault.key")
    begun = shell.add("ops", ops.with_name("ops.key.pub"))
    assert labels(begun) == ["ops"]
    assert "one key is all there is" in begun["warnings"][0]
    added = shell.add("vault", vault.with_name("vault.key.pub"), key=ops)
    assert labels(added) == ["ops", "vault"]
    assert not added["warnings"]
    assert shell("rotate", key=vault)["epochs"] == 2
    assert labels(shell("remove", "ops", key=vault)) == ["vault"]
    told = shell("list", key=vault)
    assert [change["change"] for change in told["changes"]] == ["created", "added", "rotated", "removed"]
    assert told["reads_records"]
    assert "none of the keys" in shell("rotate", key=ops, exits=5)["message"]


def test_a_list_needs_no_key(shell: Shell) -> None:
    shell.add("ops", shell.create("ops.key"))
    told = shell("list")
    assert labels(told) == ["ops"]
    assert not told["reads_records"]


def test_a_key_is_named_by_exactly_one_thing_and_a_label(shell: Shell) -> None:
    ops = shell.create("ops.key")
    assert "which key to add" in shell("add", "--label", "x", exits=2)["message"]
    assert "no label" in shell("add", "--public-key", str(ops), exits=2)["message"]


def test_a_passphrase_is_added_from_a_file(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.add("ops", shell.create("ops.key"))
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse battery staple\n")
    secret.chmod(0o600)
    words = ("add", "--label", "safe", "--passphrase-file", str(secret))
    assert labels(shell(*words, key=tmp_path / "ops.key")) == ["ops", "safe"]
    monkeypatch.setenv("MAXBROD_PASSPHRASE", "correct horse battery staple")
    assert shell("list")["reads_records"]


def test_lost_keys_come_back_from_an_export(shell: Shell, tmp_path: Path) -> None:
    ops = shell.create("ops.key")
    shell.add("ops", ops)
    options = StorageConfig(encryption=EncryptionConfig(key_file=ops))
    open_for_writing(shell.archive, options)
    shell("export", str(tmp_path / "exported.json"), key=ops)
    assert shell("import", str(tmp_path / "exported.json"), key=ops, exits=5)["error"] == "RefusedError"
    for document in (Path(shell.archive) / "keys").iterdir():
        document.unlink()
    assert "its keys are lost" in shell("list", key=ops, exits=5)["message"]
    shell("import", str(tmp_path / "exported.json"), key=ops)
    assert labels(shell("list", key=ops)) == ["ops"]


def test_an_archive_that_is_not_encrypted_takes_no_keys(shell: Shell) -> None:
    open_for_writing(shell.archive)
    refused = shell.add("ops", shell.create("ops.key"), exits=5)
    assert "not encrypted" in refused["message"]
    assert "maxbrod copy" in refused["hint"]


def test_a_key_and_a_plain_archive_do_not_go_together(shell: Shell) -> None:
    open_for_writing(shell.archive)
    ops = shell.create("ops.key")
    with pytest.raises(RefusedError, match="is not encrypted: what is written here could be read"):
        open_for_writing(shell.archive, StorageConfig(encryption=EncryptionConfig(key_file=ops)))


def test_every_verb_refuses_an_encrypted_archive_without_its_key(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = shell.create("ops.key")
    open_for_writing(shell.archive, StorageConfig(encryption=EncryptionConfig(key_file=ops)))
    for verb in ("ls", "check", "prune", "compact", "repair", "gc", "state"):
        code = run([verb, "-a", shell.archive, "--json", *(["--older-than", "1d"] if verb == "prune" else [])])
        document = json.loads(capsys.readouterr().out)
        assert code == 5, (verb, document)
        assert "encrypted, and no key is given" in document["message"], verb
        assert "(key, " in document["hint"], verb


def test_a_signing_key_is_made_as_well(shell: Shell, tmp_path: Path) -> None:
    shell("create", str(tmp_path / "sign.pem"), "--signing", archive=False)
    assert (tmp_path / "sign.pem").read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert (tmp_path / "sign.pem.pub").read_text().startswith("-----BEGIN PUBLIC KEY-----")
