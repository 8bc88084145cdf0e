"""The catalog is read and written like every other object: the same patience, certificates and errors."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import decode_rows
from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError, MaxbrodError, UnsupportedFormatError, UsageError
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch, LoseAnswer, ProxyFault, Refuse, Stall, TruncateAnswer
from maxbrod.sandbox.security import CA_FILE, write_certificates
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.remote import RemoteStorage
from maxbrod.storage.stores import open_storage
from support.catalog_places import Archive, s3_archive
from support.catalog_rows import run, segment
from support.clocks import set_time
from support.s3 import loopback_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server
    from maxbrod.storage.interface import Storage, Writer

COMMITS = 11
"""So many that there is a checkpoint with an entry after it."""
FIRST = HttpMatch("PUT", r"_delta_log/0{20}\.json")
COMMIT = HttpMatch("PUT", r"_delta_log/0*12\.json")
ENTRY = HttpMatch("GET", r"_delta_log/0*11\.json")
CHECKPOINT = HttpMatch("GET", r"_delta_log/.*checkpoint\.parquet")
ROWS = HttpMatch("GET", r"segments/part-")
LIST = HttpMatch("GET", r"list-type")


def filled(archive: Archive) -> Archive:
    catalog = archive.create()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("maxbrod.catalog.catalog._CHECKPOINT_EVERY", COMMITS - 1)
        for base in range(COMMITS):
            catalog.commit([segment(base, base + 1), run(f"run-{base:02}", finished_at=base)])
    return archive


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return filled(Archive(str(tmp_path_factory.mktemp("template") / "archive")))


@pytest.fixture
def copied(template: Archive, folder: Archive) -> Archive:
    """An archive in a folder, to be damaged."""
    shutil.copytree(template.url, folder.url)
    return folder


def patient(s3: S3Server, proxy: FaultProxy) -> Archive:
    return s3_archive(s3, s3={"endpoint": proxy.endpoint}, request_timeout_s=2, deadline_s=60)


@pytest.mark.parametrize(
    "fault",
    [
        *(AnswerError(on=on, times=12) for on in (LIST, ENTRY, ROWS)),
        *(TruncateAnswer(on=on, keep_bytes=40, times=1) for on in (LIST, ENTRY, CHECKPOINT, ROWS)),
        *(TruncateAnswer(on=on, keep_bytes=40, times=1, consistent=True) for on in (ENTRY, CHECKPOINT, ROWS)),
        LoseAnswer(on=ENTRY, times=2),
        Stall(on=CHECKPOINT, times=1),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{fault.on.path}",
)
def test_a_fault_that_passes_is_not_noticed_by_those_who_look(
    s3: S3Server, s3_proxy: FaultProxy, fault: ProxyFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_time(monkeypatch, "maxbrod.storage.remote", sleep=lambda _: None)
    filled(s3_archive(s3))
    archive = patient(s3, s3_proxy)
    s3_proxy.add(fault)
    assert len(open_archive(archive.url, archive.config).catalog.runs()) == COMMITS
    assert s3_proxy.fired[fault] == fault.times
    assert open_archive(archive.url, archive.config).catalog.rows().num_rows == COMMITS


def test_a_store_that_is_away_for_a_while_is_waited_for(s3: S3Server, s3_proxy: FaultProxy) -> None:
    filled(s3_archive(s3))
    archive = patient(s3, s3_proxy)
    away = s3_proxy.add(Refuse())
    back = threading.Timer(1.5, s3_proxy.remove, [away])
    back.start()
    try:
        assert archive.open().commit([segment(11, 12)]) == COMMITS + 1
    finally:
        back.join()


@pytest.mark.parametrize("fault", [LoseAnswer(on=FIRST, times=1), Stall(on=FIRST, times=1, carried_out=True)], ids=repr)
def test_a_first_commit_whose_answer_is_late_or_lost_makes_the_archive(
    s3: S3Server, s3_proxy: FaultProxy, fault: ProxyFault
) -> None:
    s3_proxy.add(fault)
    assert patient(s3, s3_proxy).create().version == 0
    assert s3_proxy.fired[fault] == 1
    assert s3_archive(s3).open().version == 0


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(on=COMMIT, times=12),
        AnswerError(on=COMMIT, times=1, carried_out=True),
        Stall(on=COMMIT, times=1, carried_out=True),
    ],
    ids=repr,
)
def test_a_commit_is_carried_out_once_whatever_happens_to_its_answers(
    s3: S3Server, s3_proxy: FaultProxy, fault: ProxyFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_time(monkeypatch, "maxbrod.storage.remote", sleep=lambda _: None)
    filled(s3_archive(s3))
    s3_proxy.add(fault)
    assert patient(s3, s3_proxy).open().commit([segment(11, 12), run("late")]) == COMMITS + 1
    assert s3_proxy.fired[fault] == fault.times
    assert decode_rows(s3_archive(s3).open().rows()) == [segment(base, base + 1) for base in range(12)]


@contextmanager
def tls_relay(s3: S3Server, certificate: Path) -> Iterator[str]:
    """An endpoint with TLS before a server that has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve(connection: socket.socket) -> None:
        with (
            context.wrap_socket(connection, server_side=True) as client,
            socket.create_connection(s3.address) as server,
        ):
            answers = threading.Thread(target=copy, args=(server, client))
            answers.start()
            copy(client, server)
            answers.join()

    with loopback_server(serve) as (host, port):
        yield f"https://{host}:{port}"


def test_the_authority_in_ca_file_is_enough_for_the_catalog(s3: S3Server, tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls", [])
    with tls_relay(s3, tmp_path / "tls" / "server.pem") as endpoint:
        trusting = s3_archive(s3, s3={"endpoint": endpoint}, ca_file=str(tmp_path / "tls" / CA_FILE))
        filled(trusting)
        assert trusting.open().rows().num_rows == COMMITS
        with pytest.raises(UsageError, match="not trusted: no known authority") as caught:
            s3_archive(s3, s3={"endpoint": endpoint}).open()
    assert "storage.ca_file" in (caught.value.hint or "")
    assert not caught.value.retryable


ENTRY_NAME = f"_delta_log/{11:020}.json"
DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("which", ["entry", "checkpoint", "rows"])
def test_damage_in_the_catalog_is_told_with_the_name_of_the_object(copied: Archive, which: str, damage: str) -> None:
    table = Path(copied.url) / "catalog/segments"
    (checkpoint,) = table.glob("_delta_log/*.checkpoint.parquet")
    active = copied.table().file_uris()[0]
    # What a checkpoint says can be told without it for as long as the entries before it are there.
    for entry in table.glob("_delta_log/*.json") if which == "checkpoint" and damage == "missing" else ():
        if entry.name < checkpoint.name:
            entry.unlink()
    # A last entry that is missing cannot be told from one that was never written.
    victim = {
        "entry": table / "_delta_log" / f"{(10 if damage == 'missing' else 11):020}.json",
        "checkpoint": checkpoint,
        "rows": Path(re.sub(r"^file://", "", active)),
    }[which]
    if which == "entry" and damage == "missing":
        checkpoint.unlink()
    DAMAGE[damage](victim)
    with pytest.raises(CorruptDataError) as caught:
        copied.open().rows()
    named = f"{0:020}.json" if which == "checkpoint" and damage == "missing" else victim.name
    assert named in (caught.value.object_name or "")
    assert not caught.value.retryable
    assert "do not back up" in (caught.value.hint or "")


def test_a_log_that_names_files_elsewhere_is_damage(copied: Archive) -> None:
    entry = Path(copied.url) / "catalog/segments" / ENTRY_NAME
    entry.write_text(re.sub(r'"path":"part-', '"path":"../../../part-', entry.read_text()))
    with pytest.raises(MaxbrodError) as caught:
        copied.open().rows()
    assert isinstance(caught.value, CorruptDataError)
    assert "_delta_log" in (caught.value.object_name or "")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ('{"add": 5}', CorruptDataError),
        ('{"metaData": {"id": "x"}}', CorruptDataError),
        ("[1]", CorruptDataError),
        ('{"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}', UnsupportedFormatError),
    ],
)
def test_an_entry_that_makes_no_sense_is_damage_and_one_of_the_future_is_refused(
    copied: Archive, action: str, expected: type[MaxbrodError]
) -> None:
    (Path(copied.url) / "catalog/segments" / ENTRY_NAME).write_text(action)
    with pytest.raises(expected) as caught:
        copied.open()
    assert "_delta_log" in (caught.value.object_name or "")
    assert "checkpoint" not in (caught.value.object_name or "")
    assert "maxbrod-catalog-" not in str(caught.value)


def test_a_name_that_claims_a_version_far_ahead_is_damage_and_costs_nothing(copied: Archive) -> None:
    (Path(copied.url) / "catalog/segments/_delta_log" / f"{'9' * 20}.json").write_text("{}")
    with pytest.raises(CorruptDataError, match="missing") as caught:
        copied.open()
    assert f"{COMMITS + 1:020}.json" in (caught.value.object_name or "")


class Cold(LocalStorage):
    """A storage whose objects cannot be read at once, as those of GLACIER."""

    def create(self, path: str) -> Writer:
        raise AssertionError(f"{path} would have to be thawed")

    def at_hand(self) -> Storage:
        return open_storage(self.url)


def test_the_catalog_is_in_no_cold_storage_class(tmp_path: Path) -> None:
    storage = Cold(tmp_path)
    Catalog.create(storage).commit([segment(0, 1)])
    assert Catalog.open(storage).commit([segment(1, 2)]) == 2
    section = {"s3": {"storage_class": "GLACIER", "region": "r", "access_key_id": "a", "secret_access_key": "b"}}
    cloud = open_storage("s3://bucket", StorageConfig.model_validate(section))
    assert isinstance(cloud, RemoteStorage)
    assert "Storage-Class" in cloud.marked("id")
    hot = cloud.at_hand()
    assert isinstance(hot, RemoteStorage)
    assert "Storage-Class" not in hot.marked("id")


def without_checksum(entry: Path) -> None:
    """As a store leaves it that lost the notes of the commit, or somebody who changed the entry by hand."""
    text = re.sub(rb', ?"maxbrod.crc32c": ?"[0-9a-f]{8}"', b"", entry.read_bytes())
    entry.write_bytes(text)


@pytest.mark.parametrize("version", [1, COMMITS - 1, COMMITS])
def test_an_entry_without_its_checksum_is_damage(template: Archive, tmp_path: Path, version: int) -> None:
    shutil.copytree(template.url, tmp_path / "archive")
    log = tmp_path / "archive/catalog/segments/_delta_log"
    if version < COMMITS - 1:
        for later in (
            *log.glob("*.checkpoint.parquet"),
            *log.glob("_last*"),
            *log.glob("0*[02-9].json"),
            log / f"{COMMITS:020}.json",
        ):
            if later.name != f"{0:020}.json":
                later.unlink()
    without_checksum(log / f"{version:020}.json")
    with pytest.raises(CorruptDataError, match="has no checksum") as found:
        Catalog.open(open_storage(str(tmp_path / "archive")))
    assert f"{version:020}.json" in (found.value.object_name or "")


def test_an_archive_of_an_older_release_has_checksums_from_its_first_one_on(tmp_path: Path) -> None:
    catalog = Catalog.create(open_storage(str(tmp_path)))
    for base in range(3):
        catalog.commit([segment(base, base + 1)])
    entries = sorted((tmp_path / "catalog/segments/_delta_log").glob("*.json"))
    for entry in entries:
        entry.write_bytes(entry.read_bytes().replace(b'"maxbrod.format": "1.2"', b'"maxbrod.format": "1.1"'))
        without_checksum(entry)
    Catalog.open(open_storage(str(tmp_path))).commit([segment(3, 4)])
    Catalog.open(open_storage(str(tmp_path))).commit([segment(4, 5)])
    assert Catalog.open(open_storage(str(tmp_path))).format_version == "1.1"
    without_checksum(entries[-1].with_name(f"{5:020}.json"))
    with pytest.raises(CorruptDataError, match="has no checksum"):
        Catalog.open(open_storage(str(tmp_path)))
