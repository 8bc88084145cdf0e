"""What crashes leave on disks: torn tails, zeros, files that are gone, copies that disagree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.log_directories import fatal, offsets, put_checkpoint, put_log, put_watermark, raw, run, survey
from support.native_logs import data_batch

if TYPE_CHECKING:
    from pathlib import Path


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_cut_at_any_byte_is_good_until_its_last_whole_batch(tmp_path: Path, data: st.DataObject) -> None:
    batches = run(0, 4)
    log = b"".join(batches)
    cut = data.draw(st.integers(0, len(log)))
    put_log(tmp_path, [log[:cut]])
    found = survey(tmp_path)
    whole = next(count for count in range(4, -1, -1) if sum(map(len, batches[:count])) <= cut)
    assert raw(tmp_path, found) == b"".join(batches[:whole])
    # A tail of zeros could as well have been laid out beforehand.
    assert bool(found.faults) == any(log[sum(map(len, batches[:whole])) : cut])
    assert not fatal(found)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_never_gets_through(tmp_path: Path, data: st.DataObject) -> None:
    batches = run(0, 4)
    log = bytearray(b"".join(batches))
    # Offset and epoch stand before what the checksum covers.
    at = data.draw(st.integers(0, len(log) - 1).filter(lambda at: at % len(batches[0]) >= 16))
    log[at] ^= data.draw(st.integers(1, 255))
    put_log(tmp_path, [bytes(log)])
    whole = at // len(batches[0])
    assert raw(tmp_path, survey(tmp_path)) == b"".join(batches[:whole])


def test_zeros_that_a_broker_laid_out_beforehand_are_no_damage(tmp_path: Path) -> None:
    put_log(tmp_path, [*run(0, 2), bytes(1 << 16)])
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(20))
    assert not found.faults


def test_a_torn_tail_below_the_high_watermark_is_told_as_a_loss(tmp_path: Path) -> None:
    log = run(0, 3)
    put_log(tmp_path, [*log[:2], log[2][:-1]])
    put_watermark(tmp_path, 30)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(20))
    assert any("committed up to 30" in told for told in fatal(found))


def test_a_file_that_is_gone_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 2))
    put_log(tmp_path, run(40, 2), base=40)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == [*range(20), *range(40, 60)]
    assert [(each.base_offset, each.end_offset, each.reason) for each in found.gaps] == [(20, 40, "unexplained")]
    assert "offsets 20 to 39" in fatal(found)[0]


def test_damage_within_the_log_is_told_and_later_files_are_read(tmp_path: Path) -> None:
    log = run(0, 2)
    put_log(tmp_path, [log[0], log[1][:-1] + b"\xff"])
    put_log(tmp_path, run(20, 2), base=20)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == [*range(10), *range(20, 40)]
    assert found.gaps[0].reason == "corrupt"
    assert len(fatal(found)) == 1


def test_damage_of_the_first_file_is_told(tmp_path: Path) -> None:
    put_log(tmp_path, [b"\xff" * 100])
    put_log(tmp_path, run(20, 2), base=20)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(20, 40))
    assert "offsets 0 to 19" in fatal(found)[0]


@pytest.mark.parametrize("lost", ["gone", "damaged", "first"])
def test_what_one_copy_lost_is_taken_from_another(tmp_path: Path, lost: str) -> None:
    whole = run(0, 6)
    put_log(tmp_path / "a", whole[:2])
    put_log(tmp_path / "a", whole[2:4], base=20)
    put_log(tmp_path / "a", whole[4:], base=40)
    put_log(tmp_path / "b", whole[:5])
    if lost == "gone":
        (tmp_path / "a" / "orders-0" / f"{20:020}.log").unlink()
    elif lost == "damaged":
        put_log(tmp_path / "a", [whole[2], whole[3][:-1] + b"\xff"], base=20)
    else:
        put_log(tmp_path / "a", [b"\xff" * 100])
    found = survey(tmp_path)
    assert raw(tmp_path, found) == b"".join(whole)
    assert not fatal(found)
    assert any("are taken from b/" in fault.message for fault in found.faults)


def test_of_copies_that_agree_the_longest_is_taken(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 5), ("c", 4)):
        put_log(tmp_path / name, run(0, count))
    found = survey(tmp_path)
    assert not found.faults
    assert offsets(tmp_path, found) == list(range(50))


def test_of_copies_that_diverge_the_latest_epoch_is_taken_and_the_other_told(tmp_path: Path) -> None:
    put_log(tmp_path / "a", [*run(0, 2, epoch=1), *run(20, 4, epoch=1)])
    put_log(tmp_path / "b", [*run(0, 2, epoch=1), *run(20, 1, epoch=2)])
    found = survey(tmp_path)
    assert raw(tmp_path, found) == b"".join([*run(0, 2, epoch=1), *run(20, 1, epoch=2)])
    (fault,) = found.faults
    assert (fault.path, fault.offset, fault.fatal) == ("a/orders-0", 20, False)


def test_divergence_below_a_high_watermark_is_told_as_a_loss(tmp_path: Path) -> None:
    put_log(tmp_path / "a", run(0, 6, epoch=1))
    put_log(tmp_path / "b", [*run(0, 2, epoch=1), *run(20, 1, epoch=2)])
    put_watermark(tmp_path / "a", 60)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(30))
    assert len(fatal(found)) == 1


def test_a_diverged_copy_never_fills_a_hole(tmp_path: Path) -> None:
    put_log(tmp_path / "a", run(0, 2, epoch=1))
    put_log(tmp_path / "a", run(40, 2, epoch=3), base=40)
    put_checkpoint(tmp_path / "a" / "orders-0" / "leader-epoch-checkpoint", ["1 0", "3 20"])
    put_log(tmp_path / "b", run(0, 6, epoch=1))
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == [*range(20), *range(40, 60)]
    assert any("offsets 20 to 39" in told for told in fatal(found))


def test_the_highest_watermark_of_copies_that_agree_counts(tmp_path: Path) -> None:
    put_log(tmp_path / "a", run(0, 5))
    put_log(tmp_path / "b", run(0, 4))
    put_watermark(tmp_path / "a", 10)
    put_watermark(tmp_path / "b", 40)
    assert offsets(tmp_path, survey(tmp_path)) == list(range(40))


def test_what_is_left_of_an_older_topic_of_the_name_is_never_mixed_in(tmp_path: Path) -> None:
    put_log(tmp_path / "a", run(0, 9))
    newer = put_log(tmp_path / "b", run(0, 1, epoch=0))
    for name, number in (("a", 1), ("b", 2)):
        topic_id = f"AAAAAAAAAAAAAAAAAAAAA{'AQ'[number - 1]}"
        (tmp_path / name / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    stamp = newer.stat().st_mtime + 100
    os.utime(newer, (stamp, stamp))
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(10))
    assert any("another topic of this name" in fault.message for fault in found.faults)


@pytest.mark.parametrize("text", ["1\n0\n", "0\nx\n", "0\n2\norders 0 5\n", "0\n1\norders 0 -5\n", "\0" * 50])
def test_a_damaged_checkpoint_is_told_and_passed_over(tmp_path: Path, text: str) -> None:
    put_log(tmp_path, run(0, 2))
    (tmp_path / "replication-offset-checkpoint").write_text(text)
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_text(text)
    (tmp_path / "orders-0" / "partition.metadata").write_text(text)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(20))
    assert len(found.faults) == 3
    assert not fatal(found)


def test_a_batch_that_is_out_of_order_ends_the_log(tmp_path: Path) -> None:
    put_log(tmp_path, [data_batch(0, 5), data_batch(3, 5), data_batch(8, 1)])
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(5))
    assert "does not follow" in found.faults[0].message
