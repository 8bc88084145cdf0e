"""Evidence says what an archive can prove, what was not tested and what is not known; and nothing that is secret."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from maxbrod.archive.archive import Proof, ProofKind, open_archive, open_for_writing, record_proof
from maxbrod.archive.holds import add_hold, release_hold
from maxbrod.catalog.rows import encode_rows
from maxbrod.check.signatures import accepted_keys, check_signatures
from maxbrod.cli.main import run as command
from maxbrod.config import Config, EncryptionConfig, SigningConfig, StorageConfig
from maxbrod.erase.options import EraseOptions
from maxbrod.erase.verb import erase_archive
from maxbrod.errors import EXIT_CORRUPT, EXIT_USAGE
from maxbrod.evidence.html import render_evidence
from maxbrod.evidence.plan import GAP_COLUMNS, Period, evidence_of
from maxbrod.evidence.report import sign_evidence
from maxbrod.evidence.verb import gather_facts
from maxbrod.model import GapReason, now_ms
from maxbrod.signature import create_signing_key
from maxbrod.work.work import Work
from support.archives import Place
from support.catalog_rows import run
from support.keyed_archives import Keyed, batch, without_spark
from support.native_archives import TOPIC, Making
from support.native_logs import data_batch
from support.prunable_archives import DAY_MS, prune, years
from support.signing_keys import public_half

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.evidence.report import EvidenceReport

CANARY = "hunter2-c4n4ry"


def drill(age_days: float, **details: Any) -> Proof:
    at = now_ms() - round(age_days * DAY_MS)
    return Proof(
        kind=ProofKind.DRILL,
        verdict="proven",
        sound=True,
        started_at_ms=at - 5000,
        finished_at_ms=at,
        details={"partitions": 2, "partitions_known": 3, "records": 150, "restore_s": 2.5, **details},
    )


def gathered(archive: Archive, *, since_days: float | None = None, until_days: float = 0) -> EvidenceReport:
    now = now_ms()
    since = None if since_days is None else now - round(since_days * DAY_MS)
    period = Period(since_ms=since, until_ms=now - round(until_days * DAY_MS))
    return evidence_of(gather_facts(archive), period, made_at_ms=now, release="test")


def test_it_has_coverage_runs_gaps_drills_prunes_and_holds_of_the_period(local_place: Place) -> None:
    archive = years(local_place)
    record_proof(archive.storage, drill(1, topics=["orders"]))
    record_proof(archive.storage, drill(6, topics=["users"]))
    hold = add_hold(archive, who="alice", why="audit 4711", topics=("users",))
    release_hold(archive, hold.id, who="bob", why="done")
    prune(archive, older_days=3)
    found = gathered(local_place.open(), since_days=4)
    topics = {topic.topic: topic for topic in found.topics}
    assert topics["orders"].partitions == 2
    assert topics["orders"].gaps["compacted"] == 4
    assert topics["orders"].gaps["pruned"] > 0
    assert topics["orders"].drilled_at_ms is not None
    assert topics["users"].drilled_at_ms is None, "that drill was before the period"
    assert [gap.reason for gap in found.gaps if gap.topic == "orders"] == ["pruned"], "others were recorded before"
    backups = next(entry for entry in found.commands if entry.command == "backup")
    assert (backups.runs, backups.succeeded, backups.failed) == (4, 4, 0)
    assert [(proof.partitions, proof.partitions_known, proof.restore_s) for proof in found.drills] == [(2, 3, 2.5)]
    assert [(entry.who, entry.released_by) for entry in found.holds] == [("alice", "bob")]
    assert [entry.command for entry in found.prunes] == ["prune"]
    assert found.prunes[0].undo_until_ms is not None
    assert any("of 1 topic: users" in line for line in found.not_tested)
    assert any("2 of 3 partitions" in line for line in found.not_tested)
    assert any("no deep check" in line for line in found.not_tested)
    # What happened before the period is none of its business, and later things neither.
    before = gathered(local_place.open(), since_days=8, until_days=5)
    assert [proof.finished_at_ms < found.drills[0].finished_at_ms for proof in before.drills] == [True]
    assert before.prunes == ()
    assert before.holds == ()


def test_what_is_not_known_is_said_to_be_unknown(local_place: Place) -> None:
    archive = years(local_place)
    found = gathered(archive)
    assert any("no drill" in line and "recovery time is not measured" in line for line in found.not_tested)
    assert any("it is not signed" in line for line in found.unknown)
    assert any("copies that were not made" in line for line in found.unknown)
    archive.storage.put("keys/1.json", b"not JSON")
    archive.catalog.commit([replace(run("x"), snapshot=None, statistics={"command": "backup"})])
    found = gathered(archive)
    assert any("keys/1.json" in line for line in found.unknown)
    assert next(entry for entry in found.commands if entry.command == "backup").unknown == 1
    # Only so many proofs are kept: what was before them is unknown.
    for age in range(25):
        record_proof(archive.storage, drill(age / 100))
    assert any("older proofs of kind drill" in line for line in gathered(archive).unknown)
    assert any("older proofs" in line for line in gathered(archive, since_days=3).unknown)


def test_no_secret_and_no_record_is_in_it(tmp_path: Path) -> None:
    """Of documents of other verbs only named fields are taken over."""
    making = Making(str(tmp_path / "archive"))
    making.run({0: [data_batch(0, 3, value=CANARY.encode())]}, packed=False)
    storage, now = making.archive.storage, now_ms()
    statistics = {"command": "backup", "exit_code": 0, "password": CANARY, "findings": [CANARY], "notices": {CANARY: 1}}
    making.archive.catalog.commit([replace(run("run-a"), snapshot=None, finished_at=now, statistics=statistics)])
    ring: dict[str, Any] = {"format": 1, "ring": CANARY, "number": 1, "at_ms": now - 1, "change": "rotated"}
    ring |= {"changed": "ops", "wraps": {"k1": CANARY}}
    ring |= {"recipients": [{"id": "k1", "label": "ops", "kind": "kms", "means": {"arn": CANARY}}]}
    storage.put("keys/1.json", json.dumps(ring).encode())
    record_proof(storage, drill(0.0001, password=CANARY))
    archive = making.archive
    found = gathered(archive)
    assert (found.keys[0].change, found.keys[0].recipients) == ("rotated", ("ops",))
    document = sign_evidence(found, None)
    page = render_evidence(document, gather_facts(archive).proofs)
    assert "orders" in page
    assert CANARY not in page
    assert CANARY not in json.dumps(document)


def test_keys_and_erasures_of_an_encrypted_and_signed_archive_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_spark(monkeypatch)
    sealing, signing = tmp_path / "archive.key", tmp_path / "catalog.key"
    assert command(["key", "create", str(sealing)]) == 0
    create_signing_key(signing)
    keys = StorageConfig(encryption=EncryptionConfig(key_file=sealing), signing=SigningConfig(key_file=signing))
    keyed = Keyed(Making(str(tmp_path / "archive"), keys))
    keyed.backup({0: [batch(0, (b"anne", CANARY.encode()), (b"ben", b"2"))]}, packed=False)
    config = Config(archive=keyed.url, storage=keys)
    with Work(config.model_copy(update={"erase": EraseOptions(topics=(TOPIC,), keys=("anne",))})) as work:
        report = erase_archive(work)
    assert report.records == 1
    archive = open_archive(keyed.url, keys)
    found = gathered(archive)
    assert found.encrypted
    assert [change.change for change in found.keys] == ["created"]
    assert [(one.topics, one.offsets, one.finished) for one in found.erasures] == [((TOPIC,), 1, True)]
    page = render_evidence(sign_evidence(found, None))
    salt = json.loads(bytes(archive.storage.get("erasures/salt.json")))["salt"]
    assert not any(secret in page for secret in (CANARY, salt, "anne", sealing.read_text().strip().splitlines()[-1]))
    # What the erasure has written anew is signed as well, and its digests withstand a forger.
    accepted = accepted_keys([public_half(signing)])
    signature, problems = check_signatures(archive, accepted, pin=tmp_path / "pin")
    assert (problems, signature.weak_slices, signature.unsigned) == ([], 0, ())
    capsys.readouterr()


def test_a_page_shows_every_name_as_text_and_never_as_markup(local_place: Place) -> None:
    evil = "<script>alert(1)</script>\"'&\x1b[31m"
    archive = years(local_place)
    add_hold(archive, who=evil, why=evil, topics=("users",))
    found = gathered(archive)
    topics = tuple(replace(topic, topic=evil, last_seen=evil, recovery_point_ms=2**63 - 1) for topic in found.topics)
    runs = tuple(replace(one, command=evil, run_id=evil) for one in found.runs)
    page = render_evidence(sign_evidence(replace(found, archive=evil, topics=topics, runs=runs, unknown=(evil,)), None))
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert f"{2**63 - 1} ms since 1970" in page


def test_a_verifier_brings_the_key_and_learns_of_every_change(
    local_place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    years(local_place)
    key, folder = tmp_path / "auditing.key", tmp_path / "evidence"
    create_signing_key(key)
    # The archive as a word, as with every verb.
    assert command(["evidence", local_place.url, "--key", str(key), "--report-dir", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "not tested: no drill" in told
    assert "signed evidence: " in told
    data, page = (next(folder.glob(f"*.{kind}")) for kind in ("json", "html"))
    assert "Not known" in page.read_text()
    assert data.stat().st_mode & 0o077 == 0
    public = str(public_half(key))
    assert command(["evidence", "verify", str(data), "--key", public]) == 0
    assert "signed (ed25519, key" in capsys.readouterr().out
    assert command(["evidence", "verify", str(data)]) == EXIT_USAGE, "a signature that nobody checks proves nothing"
    changed = json.loads(data.read_text())
    changed["evidence"]["runs_left_out"] += 1
    data.write_text(json.dumps(changed))
    assert command(["evidence", "verify", str(data), "--key", public]) == EXIT_CORRUPT
    other = tmp_path / "other.key"
    create_signing_key(other)
    assert command(["evidence", "verify", str(data), "--key", str(public_half(other))]) == EXIT_CORRUPT
    capsys.readouterr()
    arguments = ["--archive", local_place.url, "--report-dir", str(folder), "--json"]
    assert command(["evidence", *arguments, "--since", "2020-01-01T00:00Z"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["signature"]["key"] is None
    assert command(["evidence", "verify", document["files"][0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["archive"] == local_place.url
    assert command(["evidence", *arguments, "--since", "2999-01-01T00:00Z"]) == EXIT_USAGE


def test_it_tells_the_claim_of_a_signed_catalog_and_that_it_was_not_verified(tmp_path: Path) -> None:
    key = tmp_path / "key"
    create_signing_key(key)
    archive = open_for_writing(str(tmp_path / "archive"), StorageConfig(signing=SigningConfig(key_file=key)))
    found = gathered(archive)
    assert found.catalog_signature is not None
    assert (found.catalog_signature.signed, found.catalog_signature.version) == (True, 0)
    assert any("check --signature" in line for line in found.unknown)


def test_gaps_of_millions_of_rows_are_added_up_as_columns(local_place: Place) -> None:
    archive = years(local_place)
    facts = gather_facts(archive)
    one = encode_rows(archive.catalog.gaps(set(GapReason))).select(GAP_COLUMNS)
    many = pa.concat_tables([one] * 500_000).combine_chunks()
    period = Period(since_ms=None, until_ms=now_ms() + DAY_MS)
    found = evidence_of(replace(facts, gaps=many), period, made_at_ms=now_ms(), release="test")
    assert [(gap.reason, gap.ranges, gap.offsets) for gap in found.gaps] == [("compacted", 500_000, 2_000_000)]


def test_copies_are_told_with_where_they_went(local_place: Place) -> None:
    archive = years(local_place)
    proof = Proof(
        kind=ProofKind.COPY,
        verdict="complete",
        sound=True,
        started_at_ms=now_ms() - 2000,
        finished_at_ms=now_ms() - 1000,
        details={"target": "s3://elsewhere/kafka", "version": 3, "password": CANARY},
    )
    record_proof(archive.storage, proof)
    found = gathered(archive)
    assert [(copy.target, copy.version, copy.sound) for copy in found.copies] == [("s3://elsewhere/kafka", 3, True)]
    assert "copy" not in {check.kind for check in found.checks}
