"""A store that is full, or fails, under every verb that looks after an archive: an error, nothing lost, and it goes on.

In process, the store stops before the first, a middle and the last call that changes it. What happens around every one
of them, the kill sweeps of the verbs show. What S3 itself answers is at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.errors import (
    EXIT_FAILED,
    CorruptDataError,
    ObjectNotFoundError,
    UsageError,
)
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch, Latency
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.storage.stores import directory_of
from maxbrod.storage.urls import parse_url
from support.failing_stores import Store, full, gone
from support.histories import History, sparkless
from support.keyed_archives import batch
from support.keyed_archives import without_spark as without_spark_by_key
from support.native_archives import without_spark
from support.native_logs import data_batch
from support.storages import s3_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server

pytestmark = pytest.mark.full

_GAP = 3
"""A gap is told by its offsets and its reason."""
HOLD_ID = "0123456789abcdef"
OLD_S = 90 * 24 * 3600


@dataclass
class Verb:
    words: tuple[str, ...]
    prepare: Callable[[Path], object] = lambda _: None
    """Makes work for it."""
    exits: int = 0
    """How it ends where nothing fails."""


def make(url: str) -> History:
    """Runs of one small segment each, a pack, and a key that was written twice: enough for every verb to have work."""
    history = History(url)
    more: tuple[dict[tuple[str, int], list[bytes]], ...] = (
        {("orders", 1): [data_batch(0, 5)]},
        {("state", 0): [batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))]},
        {},
    )
    for number, added in enumerate(more):
        history.run({("orders", 0): [data_batch(number * 10, 10)], **added}, packed=not number)
    return history


def lose_catalog(folder: Path) -> None:
    shutil.rmtree(folder / "catalog")


def lose_pack(folder: Path) -> None:
    shutil.rmtree(folder / "packs")


def lose_segment(folder: Path) -> None:
    min(folder.glob("segments/**/*.log")).unlink()


def leave_garbage(folder: Path) -> None:
    for number in range(3):
        (folder / f"packs/killed-{number}.log").write_bytes(b"half")
    for path in (*folder.glob("packs/*"), *folder.glob("segments/**/*.log")):
        os.utime(path, (time.time() - OLD_S,) * 2)


def left_behind(folder: Path) -> list[Path]:
    """Garbage of `leave_garbage`."""
    return list(folder.glob("packs/killed-*"))


def prune_first(folder: Path) -> None:
    assert run(["prune", "-a", _url_of(folder), "--older-than", "1d", "--apply", "--json"]) == 0


def hold_first(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("maxbrod.archive.holds.secrets.token_hex", lambda _: HOLD_ID)
        assert run(["hold", "add", "-a", _url_of(folder), "--topic", "orders", "--why", "audit", "--json"]) == 0


VERBS = {
    "compact": Verb(
        ("compact", "--min-segment-count", "2", "--min-segment-size", "1", "--min-segment-age", "0s", "--single-writer")
    ),
    "by key": Verb(("compact", "--by-key", "--single-writer")),
    "prune": Verb(("prune", "--older-than", "1d", "--apply")),
    "undo": Verb(("prune", "--undo", "--apply"), prune_first),
    "hold": Verb(("hold", "add", "--topic", "orders", "--why", "audit")),
    "release": Verb(("hold", "release", HOLD_ID, "--why", "closed"), hold_first),
    "rebuild": Verb(("repair", "--apply", "--single-writer"), lose_catalog),
    "repair": Verb(("repair", "--apply", "--single-writer"), lose_pack, exits=4),
    "check": Verb(("check", "--repair", "--yes"), lose_segment),
    "gc": Verb(("gc", "--delete"), leave_garbage),
}


def _url_of(folder: Path) -> str:
    """The URL of an archive in memory or in a directory."""
    url = f"memory://{folder.name}"
    return url if Path(directory_of(parse_url(url))) == folder else str(folder)


def state(url: str) -> dict[str, Any] | None:
    """All that readers see, now and as of the first run; None: something cannot be read."""
    found = History.__new__(History)
    found.url = url
    try:
        points = [run.run_id for run in found.open().catalog.runs() if run.snapshot is not None]
        return {moment or "now": _joined(found.holding(moment)) for moment in (None, *points[:1])} | {"points": points}
    except (CorruptDataError, ObjectNotFoundError, UsageError):
        return None


def _joined(partitions: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Several slices of a log are as good as one."""
    return {
        where: [
            b"".join(row[2] for row in rows if isinstance(row[2], bytes)),
            [r for r in rows if isinstance(r[2], str)],
        ]
        for where, rows in partitions.items()
    }


def call(url: str, verb: Verb, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """The exit code, and what the command says."""
    capsys.readouterr()
    with sparkless():
        code = run([*verb.words[:1], *verb.words[1:], "-a", url, "--json", *more])
    return code, capsys.readouterr().out


@pytest.fixture
def folder(memory_url: str) -> Path:
    return Path(directory_of(parse_url(memory_url)))


@pytest.mark.parametrize("name", VERBS)
def test_a_store_that_fails_costs_nothing_and_the_next_call_completes_the_work(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, url = VERBS[name], _url_of(folder)
    without_spark(monkeypatch)
    without_spark_by_key(monkeypatch)
    make(url)
    verb.prepare(folder)
    template = Path(shutil.copytree(folder, tmp_path / "template"))
    before = state(url)
    # Undisturbed: how many changes there are, and what they lead to.
    counted = Store(1 << 30, full, everything=True)
    with counted.failing():
        assert call(url, verb, capsys)[0] == verb.exits
    after = state(url)
    for fault, everything, share in ((full, False, 0), (gone, True, 0.5), (full, False, 1)):
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        store = Store(round((counted.changes - 1) * share), fault, everything=everything)
        with store.failing():
            code, said = call(url, verb, capsys)
        seen, where = state(url), (fault, share, said)
        assert store.met or not everything, where
        if code == verb.exits:
            # It failed in what is only tidied up after the work, or met no failure.
            assert seen == after, where
            assert not left_behind(folder), where
        else:
            assert code == EXIT_FAILED, where
            assert seen in (before, after), where
            assert fault().message in said, where
        again, said = call(url, verb, capsys)
        assert again == verb.exits or seen == after, said
        assert state(url) == after, where
        assert not left_behind(folder), where


FAULTS = {
    "compact": (HttpMatch("PUT", r"archive/segments/"),),
    "by key": (
        HttpMatch("GET", r"archive/segments/.*\.log"),
        HttpMatch("PUT", r"archive/packs/"),
        HttpMatch("PUT", r"_delta_log/"),
    ),
    "prune": (HttpMatch("PUT", r"_delta_log/"),),
    "undo": (HttpMatch("GET", r"archive/prunes/"), HttpMatch("PUT", r"_delta_log/")),
    "hold": (HttpMatch("PUT", r"archive/holds/"), HttpMatch("PUT", r"_delta_log/")),
    "release": (HttpMatch("PUT", r"archive/holds/"),),
    "rebuild": (HttpMatch("PUT", r"\.parquet"),),
    "check": (HttpMatch("GET", r"prefix=archive(/|%2F)segments"), HttpMatch("PUT", r"_delta_log/")),
    "gc": (HttpMatch("POST"),),
}
"""Each step of a verb that asks S3 for something that no other step asks for."""


@pytest.mark.parametrize("name", FAULTS)
def test_s3_that_answers_503_fails_the_call_and_s3_that_is_slow_does_not(
    name: str,
    s3: S3Server,
    s3_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb, folder = VERBS[name], s3.object_path("archive")
    without_spark(monkeypatch)
    without_spark_by_key(monkeypatch)
    make(str(folder))
    verb.prepare(folder)
    before = state(str(folder))
    undisturbed = str(shutil.copytree(folder, tmp_path / "undisturbed"))
    assert call(undisturbed, verb, capsys)[0] == verb.exits
    config = tmp_path / "maxbrod.json"
    storage = s3_section(s3, s3={"endpoint": s3_proxy.endpoint}, request_timeout_s=2, deadline_s=1)
    config.write_text(json.dumps({"storage": storage}))
    for match in FAULTS[name]:
        with s3_proxy.fault(AnswerError(on=match, status=503)) as fault:
            code, said = call(f"{s3.url}/archive", verb, capsys, "--config", str(config))
            assert s3_proxy.fired[fault] >= 1, said
        assert (code, state(str(folder))) == (EXIT_FAILED, before), (match, said)
        assert "503" in said
    with s3_proxy.fault(Latency(request_s=0.05)):
        code, said = call(f"{s3.url}/archive", verb, capsys, "--config", str(config))
    assert code == verb.exits, said
    assert state(str(folder)) == state(undisturbed)
