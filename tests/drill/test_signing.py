"""Signatures hold for what was signed, by the key that signed it, and for nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from maxbrod.cli.main import run
from maxbrod.drill.html import render
from maxbrod.drill.plan import Sample, draw, drill_request, parse_sample, scratch_name
from maxbrod.drill.report import VERSION, VERSION_FIELD, Key, parse_key, read_key, read_report, signed, verify_document
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError, RefusedError, UsageError
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

SECRET = parse_key(b"0123456789abcdef\n", name="test")
DOCUMENT: dict[str, Any] = {"a": 1, "b": ["ü", None]}


def pem_pair() -> tuple[bytes, bytes]:
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def checked(document: dict[str, Any], key: Key | None) -> str:
    return verify_document(document, key, object_name="test")


def test_a_signature_holds_for_its_key_and_for_no_other() -> None:
    private, public = (parse_key(each, name="test") for each in pem_pair())
    assert checked(signed(DOCUMENT, SECRET), SECRET) == "hmac-sha256"
    assert checked(signed(DOCUMENT, private), public) == "ed25519"
    assert checked(signed(DOCUMENT, None), None) == "sha256"
    others = [parse_key(b"fedcba9876543210", name="test"), parse_key(pem_pair()[1], name="test")]
    for document in (signed(DOCUMENT, SECRET), signed(DOCUMENT, private), signed(DOCUMENT, None)):
        for other in others:
            with pytest.raises(CorruptDataError):
                checked(document, other)


@pytest.mark.parametrize("key", [SECRET, None])
def test_a_change_of_anything_is_never_missed(key: Key | None) -> None:
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


def test_a_page_shows_every_name_as_text_and_never_as_markup() -> None:
    evil = "<script>alert(1)</script>\"'&\x1b[31m"
    partition = {
        "source_topic": evil,
        "target_topic": evil,
        "partition": 0,
        "match": "exact",
        "source_records": 1,
        "target_records": 1,
        "source_digest": "00",
        "equal": False,
        "failure": None,
        "notes": [evil],
    }
    difference = {
        "source_topic": evil,
        "partition": 0,
        "source_offset": 1,
        "target_offset": None,
        "field": "key",
        "source": evil,
        "target": evil,
    }
    covered = {"topic": evil, "partition": 0, "first_offset": 0, "end_offset": 1, "gaps": {evil: 1}, "lacking": 1}
    report = {
        "drill_id": evil,
        "verdict": "differs",
        "exit_code": 3,
        "lacking": 1,
        "archive": evil,
        "run_id": evil,
        "cluster": evil,
        "cluster_id": evil,
        "started_at_ms": 0,
        "finished_at_ms": 1,
        "sample": "all",
        "seed": 7,
        "partitions_known": 1,
        "covered": [{**covered, "outcome": evil}],
        "durations_s": {evil: 1.0},
        "versions": {evil: evil},
        "records": 1,
        "restore": {"warnings": [evil]},
        "comparison": {"partitions": [partition], "differences": [difference]},
        "error": {"message": evil, "hint": evil},
        "failures": [{"where": evil, "offset": 7, "error": evil, "message": evil, "object_name": evil}],
        "leftovers": [evil],
        "remains": [evil],
    }
    page = render(signed({"report": report}, SECRET))
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert page.index("Not proven") < page.index("Archive"), "the verdict stands on top"


def test_samples_are_read_and_drawn() -> None:
    where = [TopicPartition(topic="t", partition=number) for number in range(40)]
    assert parse_sample("all") == Sample()
    assert draw(where, Sample(), 1) == where
    assert len(draw(where, parse_sample("5%"), 1)) == 2
    assert len(draw(where, parse_sample("0.1%"), 1)) == 1
    assert len(draw(where, parse_sample("100"), 1)) == 40
    assert draw(where, Sample(count=9), 3) == draw(list(reversed(where)), Sample(count=9), 3)
    assert draw(where, Sample(count=9), 3) != draw(where, Sample(count=9), 4)
    assert str(parse_sample("12.5%")) == "12.5%"
    for word in ("0", "0%", "101%", "-1", "half", ""):
        with pytest.raises(UsageError):
            parse_sample(word)


def test_scratch_names_are_always_allowed_and_never_meet() -> None:
    names = [f"{'x' * 245}{letter}" for letter in "ab"]
    made = [scratch_name("0" * 16, name) for name in names]
    assert all(len(each) <= 249 and each.startswith(f"maxbrod-drill-{'0' * 16}-") for each in made)
    assert made[0] != made[1]
    request = drill_request("0" * 16, [TopicPartition(topic="t", partition=2)], {"id"}, accept_gaps=False, as_of=None)
    assert request.rename.apply("t") == f"maxbrod-drill-{'0' * 16}-t"
    assert request.configs["retention.ms"] == "-1"


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


def test_a_report_that_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    """Which of both was signed, and which one a reader shows, would be up to the reader."""
    path = tmp_path / "report.json"
    path.write_text('{"report": {"verdict": "failed"}, "report": {"verdict": "passed"}}')
    with pytest.raises(CorruptDataError, match="'report' is repeated"):
        read_report(path)


def test_only_what_is_signed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef\n")
    key.chmod(0o600)
    document = signed({VERSION_FIELD: VERSION, "report": {"verdict": "proven"}}, SECRET)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    assert run(["drill", "verify", str(path), "--key-file", str(key)]) == 0
    assert f"key {SECRET.name}) and unchanged. It says: proven" in capsys.readouterr().out
    path.write_text(json.dumps({**document, "signature": {**document["signature"], "key": "of the auditor"}}))
    assert run(["drill", "verify", str(path), "--key-file", str(key)]) == EXIT_CORRUPT
    told = capsys.readouterr()
    assert "auditor" not in told.out + told.err
