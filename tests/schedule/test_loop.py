"""The loop, in a thread, with real verbs on a real archive: failures, restarts, reloads, messages, two schedulers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from maxbrod.errors import RefusedError, UsageError
from maxbrod.schedule import verb
from maxbrod.schedule.state import ScheduleLease
from maxbrod.storage.stores import open_storage
from support.message_servers import web_server
from support.native_archives import Making
from support.native_logs import data_batch
from support.schedulers import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

GOOD = {"verb": "check", "every": "1s"}


@pytest.fixture
def archive(tmp_path: Path) -> str:
    making = Making(str(tmp_path / "archive"))
    making.run({0: [data_batch(0, 3)]})
    return making.url


def file_of(folder: Path, **document: Any) -> Path:
    file = folder / "maxbrod.yaml"
    file.write_text(
        yaml.safe_dump({"archive": str(folder / "archive"), "run": {"takeover": "2s", "metrics_port": 0}, **document})
    )
    return file


def test_a_job_that_fails_stops_no_other(tmp_path: Path, archive: str) -> None:
    missing = {**GOOD, "archive": str(tmp_path / "nothing")}
    with running(file_of(tmp_path, jobs={"good": GOOD, "bad": missing})) as scheduler:
        scheduler.wait(lambda: len(scheduler.runs("good")) > 2 and len(scheduler.runs("bad")) > 2)
    assert {name: set(scheduler.runs(name)) for name in ("good", "bad")} == {"good": {0}, "bad": {2}}
    state = scheduler.state()
    assert state.jobs["bad"].failures == len(scheduler.runs("bad"))
    assert state.jobs["bad"].last is not None
    assert "there is no archive" in str(state.jobs["bad"].last.error)


def test_no_slot_is_taken_twice_over_a_restart(tmp_path: Path, archive: str) -> None:
    file = file_of(tmp_path, jobs={"good": GOOD})
    slots = []
    for _ in range(3):
        with running(file) as scheduler:
            scheduler.wait(lambda: len(scheduler.ended) > 1)
        slots += [slot for _, _, slot in scheduler.ended]
        # The lease was given back: the next one need not wait.
        assert scheduler.state().instance is None
    assert len(slots) == len(set(slots))


def test_a_job_that_is_due_once_a_day_does_not_begin_again_after_a_restart(tmp_path: Path, archive: str) -> None:
    file = file_of(tmp_path, jobs={"good": GOOD, "rare": {"verb": "check", "every": "300d"}})
    for count in (1, 0):
        with running(file) as scheduler:
            scheduler.wait(lambda: len(scheduler.runs("good")) > 1)
        assert len(scheduler.runs("rare")) == count


def test_a_wrong_file_keeps_the_old_one_in_force_and_a_right_one_is_obeyed(tmp_path: Path, archive: str) -> None:
    file = file_of(tmp_path, jobs={"good": GOOD})
    right = file.read_text()
    with running(file) as scheduler:
        scheduler.wait(lambda: len(scheduler.runs("good")) > 0)
        file.write_text("jobs: {good: {verb: nonsense, every: 1s}}\n")
        scheduler.reload()
        scheduler.wait(lambda: any("old one stays" in reason for reason in scheduler.reasons()))
        before = len(scheduler.runs("good"))
        scheduler.wait(lambda: len(scheduler.runs("good")) > before)
        file.write_text(right.replace("good:", "other:"))
        scheduler.reload()
        scheduler.wait(lambda: len(scheduler.runs("other")) > 0 and not scheduler.reasons())
        assert list(scheduler.state().jobs) == ["other"]


def test_another_archive_is_not_taken_over_by_reading_the_file_again(tmp_path: Path, archive: str) -> None:
    file = file_of(tmp_path, jobs={"good": GOOD})
    with running(file) as scheduler:
        scheduler.wait(lambda: len(scheduler.ended) > 0)
        file.write_text(file.read_text().replace(archive, str(tmp_path / "other")))
        scheduler.reload()
        scheduler.wait(lambda: any("another one" in reason for reason in scheduler.reasons()))
    assert not (tmp_path / "other").exists()
    file.write_text(file.read_text().replace(str(tmp_path / "other"), archive))


def test_readiness_tells_which_job_is_not_well_and_liveness_does_not_care(tmp_path: Path, archive: str) -> None:
    copy = tmp_path / "copy"
    with running(file_of(tmp_path, jobs={"job": {**GOOD, "archive": str(copy)}})) as scheduler:
        scheduler.wait(lambda: any("the job job ended with 2" in reason for reason in scheduler.reasons()))
        assert scheduler.ask("/healthz")[0] == 200
        shutil.copytree(archive, copy)
        scheduler.wait(lambda: not scheduler.reasons())
        text = scheduler.ask("/metrics")[1]
    assert 'maxbrod_job_last_exit_code{name="job",verb="check"} 0.0' in text
    assert "maxbrod_scheduler_leads 1.0" in text


def test_of_two_schedulers_one_works_and_the_other_stands_by_until_it_ends(tmp_path: Path, archive: str) -> None:
    (tmp_path / "second").mkdir()
    document = {"archive": archive, "jobs": {"good": GOOD}}
    with running(file_of(tmp_path / "second", **document)) as second:
        with running(file_of(tmp_path, jobs={"good": GOOD})) as first:
            first.wait(lambda: bool(first.ended or second.ended))
            works, waits = (first, second) if first.ended else (second, first)
            works.wait(lambda: len(works.ended) > 2)
            assert waits.ended == []
            assert any("standing by" in reason for reason in waits.reasons())
        if works is first:
            second.wait(lambda: len(second.ended) > 1)
    slots = [slot for _, _, slot in (*first.ended, *second.ended)]
    assert len(slots) == len(set(slots))


def test_a_scheduler_that_has_lost_its_lease_begins_nothing_more(
    tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(file_of(tmp_path, jobs={"good": GOOD})) as scheduler:
        scheduler.wait(lambda: len(scheduler.ended) > 0)
        thief = ScheduleLease(open_storage(archive), takeover_s=0)
        found = thief.take()
        assert found is not None
        scheduler.wait(lambda: thief.take() is not None and thief.save(found))
        scheduler.wait(lambda: any("standing by" in reason for reason in scheduler.reasons()))
        taken = scheduler.state()
        assert taken.instance == thief.instance


def test_people_hear_of_failures_once_and_that_all_is_well_again(tmp_path: Path, archive: str) -> None:
    copy = tmp_path / "copy"
    with web_server() as web:
        messages = {
            "after_failures": 2,
            "group_for": 0,
            "apart": 0,
            "webhooks": [{"url": f"{web.url}/token-word"}, {"url": f"{web.url}/slack", "style": "slack"}],
        }
        jobs = {"good": GOOD, "bad": {**GOOD, "archive": str(copy)}}
        with running(file_of(tmp_path, jobs=jobs, messages=messages)) as scheduler:
            scheduler.wait(lambda: len(scheduler.runs("bad")) > 4)
            assert [request.path for request in web.requests].count("/token-word") == 1
            shutil.copytree(archive, copy)
            scheduler.wait(lambda: web.paths.count("/token-word") == 2 and web.paths.count("/slack") == 2)
        told = [request.document for request in web.requests if request.path == "/token-word"]
    assert [(item["all_well"], [news["job"] for news in item["news"]]) for item in told] == [
        (False, ["bad"]),
        (True, ["bad"]),
    ]
    assert told[0]["news"][0]["failures"] == 2
    assert scheduler.state().jobs["bad"].told is None
    assert "token-word" not in scheduler.state().__repr__()


def test_what_was_told_is_remembered_over_a_restart(tmp_path: Path, archive: str) -> None:
    with web_server() as web:
        messages = {"group_for": 0, "apart": 0, "webhooks": [{"url": web.url}]}
        file = file_of(tmp_path, jobs={"bad": {**GOOD, "archive": str(tmp_path / "no")}}, messages=messages)
        for _ in range(2):
            with running(file) as scheduler:
                scheduler.wait(lambda: len(scheduler.ended) > 1 and len(web.requests) > 0)
    assert len(web.requests) == 1


def test_a_dead_mans_switch_is_told_of_start_success_and_failure(tmp_path: Path, archive: str) -> None:
    with web_server() as web:
        jobs = {
            "good": {**GOOD, "ping": f"{web.url}/good"},
            "bad": {**GOOD, "archive": str(tmp_path / "no"), "ping": f"{web.url}/bad"},
        }
        with running(file_of(tmp_path, jobs=jobs)) as scheduler:
            scheduler.wait(lambda: {"/good", "/bad/fail"} <= set(web.paths))
    assert web.paths.index("/good/start") < web.paths.index("/good")
    assert web.paths.index("/bad/start") < web.paths.index("/bad/fail")
    assert "/bad" not in web.paths
    assert "/good/fail" not in web.paths


def test_a_follower_that_ends_is_started_again_later_each_time(
    tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    def pause(ends: int, *_: float) -> float:
        pauses.append(ends)
        return 0.01

    monkeypatch.setattr(verb, "pause_after", pause)
    # A place with somebody else's files: a backup refuses it at once.
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    follower = {"verb": "backup", "archive": str(tmp_path / "taken"), "options": {"follow": True}}
    kafka = {"bootstrap": "127.0.0.1:1"}
    document = {"jobs": {"live": follower, "good": GOOD}, "kafka": kafka, "patience": 1}
    with running(file_of(tmp_path, **document)) as scheduler:
        scheduler.wait(lambda: len(scheduler.runs("live")) > 2 and len(scheduler.runs("good")) > 0)
    assert pauses[:3] == [2, 3, 4]
    assert set(scheduler.runs("live")) == {5}


def test_a_schedule_without_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no jobs"), running(file_of(tmp_path)):
        pass


def test_a_store_that_ignores_conditional_puts_is_refused(
    tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "probe_conditional_puts", lambda _: False)
    with pytest.raises(RefusedError, match="conditional puts"), running(file_of(tmp_path, jobs={"good": GOOD})):
        pass
    document = {"jobs": {"good": GOOD}, "run": {"single_writer": True, "takeover": "2s"}}
    with running(file_of(tmp_path, **document)) as scheduler:
        scheduler.wait(lambda: len(scheduler.ended) > 0)


def test_a_job_that_is_not_enabled_does_not_run(tmp_path: Path, archive: str) -> None:
    with running(file_of(tmp_path, jobs={"good": GOOD, "off": {**GOOD, "enabled": False}})) as scheduler:
        scheduler.wait(lambda: len(scheduler.runs("good")) > 2)
    assert scheduler.runs("off") == []
