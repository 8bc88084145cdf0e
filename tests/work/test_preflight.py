"""The preflight without Spark: what a worker says, and what becomes of it. `tests/cluster` has a real cluster."""

from __future__ import annotations

import json
import pickle
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config, KafkaConfig, StorageConfig
from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, MaxbrodError, UsageError
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch, Watch
from maxbrod.work import preflight
from maxbrod.work.preflight import check_workers, needs_of, prober
from maxbrod.work.reach import Needs, Place, reach
from maxbrod.work.session import is_local
from support.storages import s3_options

if TYPE_CHECKING:
    from pathlib import Path

    from obstore.store import S3Store

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server

VERSION = metadata.version("maxbrod")
PUT = HttpMatch("PUT")


def place_of(s3: S3Server, proxy: FaultProxy, *, writes: bool = True) -> Place:
    return Place(url="s3://maxbrod-test/kafka", storage=s3_options(s3, s3={"endpoint": proxy.endpoint}), writes=writes)


def found(host: str, *, lacks: tuple[str, ...] = (), errors: tuple[MaxbrodError, ...] = ()) -> dict[str, Any]:
    return {"host": host, "python": "/py", "lacks": list(lacks), "errors": [each.as_dict() for each in errors]}


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local[2,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_only_a_session_on_this_machine_is_not_tested(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_a_local_session_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        master = "local[*]"

    class Session:
        sparkContext = Context()  # noqa: N815 - Spark's own name

    monkeypatch.setattr(preflight, "_run", lambda *_, **__: pytest.fail("a job ran"))
    monkeypatch.setattr(preflight, "open_storage", lambda *_: pytest.fail("the storage was opened"))
    check_workers(Session(), Needs(places=(Place(url="s3://nowhere/x", storage=StorageConfig()),)))


def test_a_worker_that_lacks_a_package_or_has_another_version_says_so() -> None:
    said = json.loads(prober("9.9", ("maxbrod", "no-such-package"), b"not unpickled")(0))
    assert said["lacks"] == [f"maxbrod 9.9 (it has {VERSION})", "no-such-package"]
    assert said["errors"] == []
    whole = json.loads(prober(VERSION, preflight._packages(), pickle.dumps(Needs()))(0))
    assert (whole["lacks"], whole["errors"]) == ([], [])


def test_what_is_missing_is_named_with_every_host() -> None:
    with pytest.raises(EnvironmentMissingError) as caught:
        preflight._judge([found("a", lacks=("maxbrod",)), found("b"), found("c", lacks=("maxbrod", "numba"))])
    assert str(caught.value) == "the Python of the Spark workers on a, c lacks maxbrod, numba (in /py)"
    assert "maxbrod cluster pack" in str(caught.value.hint)


def test_many_hosts_are_counted() -> None:
    with pytest.raises(EnvironmentMissingError, match="on h0, h1, h2, h3, h4 and 3 more lacks"):
        preflight._judge([found(f"h{number}", lacks=("numba",)) for number in range(8)])


def test_what_cannot_be_reached_keeps_its_kind_and_names_the_hosts() -> None:
    denied = AccessDeniedError("no credentials were found", object_name="s3://b/x", hint="give them")
    with pytest.raises(AccessDeniedError) as caught:
        preflight._judge([found("a"), found("b", errors=(denied,)), found("c", errors=(denied,))])
    assert str(caught.value) == "from the Spark workers on b, c: no credentials were found (in s3://b/x)"
    assert str(caught.value.hint).startswith("give them; workers have neither the driver's environment")


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    place = Place(url=str(tmp_path / "archive"), storage=StorageConfig(), witness="probes/1")
    (said,) = reach(Needs(places=(place,)))
    assert said["error"] == UsageError.__name__
    assert "another folder than the driver" in said["message"]
    (tmp_path / "archive/probes").mkdir(parents=True)
    (tmp_path / "archive/probes/1").write_bytes(b"x")
    assert reach(Needs(places=(place,))) == []


def test_an_empty_folder_gets_a_witness_for_the_time_of_the_test_only(tmp_path: Path) -> None:
    needs = Needs(places=(Place(url=str(tmp_path / "new"), storage=StorageConfig()),))
    with preflight._witnessed(needs) as witnessed:
        assert reach(witnessed) == []
        assert witnessed.places[0].witness is not None
    assert [each for each in (tmp_path / "new").rglob("*") if each.is_file()] == []


def test_an_object_of_the_archive_is_the_witness_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog/1").write_bytes(b"x")
    with preflight._witnessed(Needs(places=(Place(url=str(tmp_path), storage=StorageConfig()),))) as witnessed:
        assert witnessed.places[0].witness == "catalog/1"


def test_a_place_that_is_only_read_is_not_written_to(s3: S3Server, s3_proxy: FaultProxy) -> None:
    read_only = s3_proxy.add(AnswerError(on=PUT, status=403, code="AccessDenied"))
    with preflight._witnessed(Needs(places=(place_of(s3, s3_proxy, writes=False),))) as witnessed:
        assert reach(witnessed) == []
    assert s3_proxy.fired[read_only] == 0


def test_a_key_that_may_only_read_is_refused_before_the_first_task_with_host_and_right(
    s3: S3Server, s3_proxy: FaultProxy
) -> None:
    s3_proxy.add(AnswerError(on=PUT, status=403, code="AccessDenied"))
    with preflight._witnessed(Needs(places=(place_of(s3, s3_proxy),))) as witnessed:
        errors = reach(witnessed)
    with pytest.raises(AccessDeniedError, match="from the Spark workers on a, b: ") as caught:
        preflight._judge([{"host": host, "python": "/py", "lacks": [], "errors": errors} for host in "ab"])
    assert "s3:PutObject" in str(caught.value.hint)


def test_every_worker_tries_to_write_and_nothing_is_left(s3: S3Server, s3_proxy: FaultProxy, s3_store: S3Store) -> None:
    writes = s3_proxy.add(Watch(on=PUT))
    with preflight._witnessed(Needs(places=(place_of(s3, s3_proxy),))) as witnessed:
        assert [reach(witnessed) for _ in range(2)] == [[], []]
        assert len(s3_store.list().collect()) == 1
    assert s3_proxy.fired[writes] == 2
    assert s3_store.list().collect() == []


def test_a_key_that_may_write_but_not_delete_is_enough(
    s3: S3Server, s3_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    s3_proxy.add(AnswerError(on=HttpMatch("POST", r"delete"), status=403, code="AccessDenied"))
    s3_proxy.add(AnswerError(on=HttpMatch("DELETE"), status=403, code="AccessDenied"))
    with preflight._witnessed(Needs(places=(place_of(s3, s3_proxy),))) as witnessed:
        assert reach(witnessed) == []
    assert f"/{witnessed.places[0].draft} of the preflight is left to 'maxbrod gc'" in caplog.text


def test_a_broker_that_does_not_answer_is_named() -> None:
    (said,) = reach(Needs(clusters=(KafkaConfig(bootstrap="127.0.0.1:1"),), patience_s=0.1))
    assert said["error"] == "UnavailableError"
    assert "127.0.0.1:1" in json.dumps(said)


def test_a_verb_needs_the_cluster_and_the_archive_of_its_configuration() -> None:
    config = Config(archive="s3://b/x", kafka=KafkaConfig(bootstrap="h:1"), patience=5)
    needs = needs_of(config)
    assert ([each.bootstrap for each in needs.clusters], [each.url for each in needs.places]) == (["h:1"], ["s3://b/x"])
    assert needs_of(Config()) == Needs(patience_s=120.0)
