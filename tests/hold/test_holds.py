"""What is held stays, whoever wants it to go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.holds import active_holds, add_hold, read_holds, release_hold
from maxbrod.cli.main import run
from maxbrod.errors import CorruptDataError, UnavailableError, UsageError
from maxbrod.model import now_ms
from support.prunable_archives import DAY_MS, commit, data, part, points, prune, segments, years

if TYPE_CHECKING:
    from support.archives import Place


def test_a_held_topic_is_not_pruned_until_it_is_released(place: Place) -> None:
    archive = years(place)
    hold = add_hold(archive, who="the auditor", why="case 4711", topics=["ord*"])
    report = prune(archive, older_days=5, topic_bytes_max=0)
    assert report.going.segments == 0
    assert {each.reason for each in report.items if each.topic == "orders"} == {
        f"hold {hold.id} of the auditor: case 4711",
        "the newest of its partition",
    }
    release_hold(archive, hold.id[:6], who="me", why="closed")
    assert prune(archive, older_days=5).going.segments == 10
    (found,) = read_holds(place.open().storage)
    assert found.released is not None
    assert (found.who, found.why, found.released.who, found.released.why) == (
        *("the auditor", "case 4711", "me", "closed"),
    )


def test_a_time_range_holds_the_segments_that_may_have_it(local_place: Place) -> None:
    archive = years(local_place)
    add_hold(
        archive,
        who="me",
        why="audit",
        topics=["orders"],
        since_ms=now_ms() - round(7.7 * DAY_MS),
        until_ms=now_ms() - round(6.3 * DAY_MS),
    )
    prune(archive, older_days=5)
    # Around it everything goes.
    assert segments(archive, "orders")[:3] == [(20, 30), (30, 40), (50, 60)]


@pytest.mark.parametrize(("since_days", "until_days"), [(2.0, 1.0), (90.0, 80.0)])
def test_a_time_range_holds_a_segment_whose_timestamps_contradict_each_other(
    local_place: Place, since_days: float, until_days: float
) -> None:
    archive = local_place.create()
    odd = data("orders", 0, 5, age_days=40, max_timestamp=-1)
    commit(archive, "run-1", [odd, data("orders", 5, 9, age_days=0)], {part("orders"): 9})
    since_ms, until_ms = (now_ms() - round(days * DAY_MS) for days in (since_days, until_days))
    add_hold(archive, who="me", why="audit", topics=["orders"], since_ms=since_ms, until_ms=until_ms)
    prune(archive, older_days=10)
    assert segments(archive, "orders") == [(0, 5), (5, 9)]


def test_a_held_run_stays_with_all_that_it_saw(local_place: Place) -> None:
    archive = years(local_place)
    add_hold(archive, who="me", why="audit", run="run-3")
    from maxbrod.prune.runs import RunPolicy  # noqa: PLC0415

    prune(archive, older_days=3, runs=RunPolicy(last=1))
    assert [each.run_id for each in points(archive)] == ["run-3", "run-9"]
    assert segments(archive, "orders")[:5] == [(0, 10), (10, 20), (20, 30), (30, 40), (70, 80)]


def test_a_hold_that_is_added_after_the_plan_overtakes_the_prune(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, other = years(local_place), local_place.open()
    original = archive.catalog.commit
    met: list[Any] = []

    def hold_first(*arguments: Any, **options: Any) -> int:
        if not met:
            met.append(add_hold(other, who="me", why="at the last moment", topics=["orders"]))
        return original(*arguments, **options)

    monkeypatch.setattr(archive.catalog, "commit", hold_first)
    report = prune(archive, older_days=5)
    assert (report.going.segments, report.run_id) == (0, None)
    assert segments(local_place.open(), "orders")[0] == (0, 10)
    assert list(archive.storage.list("prunes")) == []


def test_a_damaged_hold_stops_every_prune(local_place: Place) -> None:
    archive = years(local_place)
    hold = add_hold(archive, who="me", why="audit", topics=["orders"])
    path = f"holds/{hold.id}.json"
    archive.storage.replace(path, bytes(archive.storage.get(path)).replace(b"orders", b"others"))
    with pytest.raises(CorruptDataError, match="checksum"):
        prune(archive, older_days=5)
    assert segments(archive, "orders")[0] == (0, 10)


def test_holds_survive_the_loss_of_the_catalog(local_place: Place) -> None:
    archive = years(local_place)
    add_hold(archive, who="me", why="audit", topics=["orders"])
    archive.storage.delete([each.path for each in archive.storage.list("catalog")])
    assert [each.why for each in read_holds(archive.storage)] == ["audit"]


def test_what_cannot_be_held_is_refused(local_place: Place) -> None:
    archive = years(local_place)
    for wrong in ({"run": "nothing"}, {"since_ms": 5, "until_ms": 5}, {"topics": ["/(/"]}):
        with pytest.raises(UsageError):
            add_hold(archive, who="me", why="audit", **wrong)
    with pytest.raises(UsageError, match="no holds"):
        release_hold(archive, "abc", who="me", why="x")
    assert active_holds(archive).active == ()


def test_the_command(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    years(local_place)

    def told(*words: str, exits: int = 0) -> Any:
        assert run(["hold", *words, *local_place.arguments, "--json"]) == exits
        return json.loads(capsys.readouterr().out)

    assert told("add", "--why", "x", exits=2)["error"] == "UsageError"
    assert "--why is missing" in told("add", "--topic", "orders", exits=2)["message"]
    added = told("add", "--topic", "orders", "--since", "2026-01-01T00:00:00Z", "--why", "audit", "--who", "me")
    assert [each["id"] for each in told("list")["holds"]] == [added["id"]]
    assert told("release", added["id"], "--why", "done", "--who", "me")["released"]["why"] == "done"
    assert told("list")["holds"] == []
    assert len(told("list", "--all")["holds"]) == 1
    assert run(["hold", "list", *local_place.arguments, "--all"]) == 0
    assert "0 holds are in force" in capsys.readouterr().out


def test_a_store_that_fails_after_the_hold_was_stored_or_released_leaves_it_so_and_the_error_says_so(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = years(local_place)

    def failing(*_: Any, **__: Any) -> int:
        raise UnavailableError("the store answers 503", hint="try again")

    monkeypatch.setattr(archive.catalog, "commit", failing)
    with pytest.raises(UnavailableError) as failed:
        add_hold(archive, who="me", why="audit", topics=["orders"])
    (hold,) = read_holds(archive.storage)
    assert f"hold {hold.id} is in force" in (failed.value.hint or "")
    assert prune(local_place.open(), older_days=5).going.segments == 0
    with pytest.raises(UnavailableError) as failed:
        release_hold(archive, hold.id, who="me", why="closed")
    assert f"hold {hold.id} is released" in (failed.value.hint or "")
    with pytest.raises(UsageError, match="was released before, by me: closed"):
        release_hold(local_place.open(), hold.id, who="me", why="closed")
    assert prune(local_place.open(), older_days=5).going.segments == 10
