"""A log that begins within a batch: what stands before its beginning is left out, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.cuts import begin_at
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.model import Codec
from support.old_messages import message, wrapper
from support.plain_batches import Record
from support.record_examples import record_lists, to_arrow, to_records

PRODUCER = {"producer_id": 7, "producer_epoch": 3, "leader_epoch": 5, "transactional": True}


def numbered(first: int, end: int) -> list[Record]:
    return [
        Record(offset=each, timestamp=1_000 + each, key=None, value=b"%d" % each, headers=[])
        for each in range(first, end)
    ]


@given(record_lists(size_max=20), st.sampled_from(list(Codec)), st.data())
def test_records_before_the_beginning_are_left_out_and_others_keep_everything(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    log = encode(to_arrow(records, **PRODUCER), codec=codec)
    offset = data.draw(st.integers(records[0].offset, records[-1].offset + 1))
    found, headers = begin_at(log, walk(log), offset)
    kept = [each for each in records if each.offset >= offset]
    whole = walk(found)
    if offset > records[-1].offset:
        assert (found is log, len(headers)) == (True, len(whole)), "the log does not begin within it"
        return
    assert to_records(decode(found)) == kept
    assert len(headers) == len(whole) == 1
    assert headers["base_offset"][0] == kept[0].offset
    assert (headers.codec_at(0), headers["producer_id"][0], headers["leader_epoch"][0]) == (codec, 7, 5)
    assert headers.transactional.all()


def test_the_batches_behind_the_first_stay_byte_for_byte() -> None:
    first, second = encode(to_arrow(numbered(0, 10))), encode(to_arrow(numbered(10, 20)))
    log = np.concatenate([first, second])
    found, headers = begin_at(log, walk(log), 7)
    assert found[headers.position[1] :].tobytes() == second.tobytes()
    assert [each.offset for each in to_records(decode(found))] == list(range(7, 20))


def test_the_sequence_goes_on_with_the_offsets() -> None:
    log = encode(to_arrow(numbered(0, 10), producer_id=7, producer_epoch=0, sequence=list(range(100, 110))))
    _, headers = begin_at(log, walk(log), 4)
    assert headers["base_sequence"][0] == 104


@pytest.mark.parametrize("offset", [-1, 0, 9, 10, 20, 25])
def test_a_log_that_begins_with_a_batch_or_elsewhere_is_the_same_bytes(offset: int) -> None:
    log = encode(to_arrow(numbered(10, 20)))
    found, _ = begin_at(log, walk(log), offset)
    assert found is log


def test_a_batch_that_compaction_left_nothing_of_from_there_on_goes() -> None:
    holed = encode(to_arrow([*numbered(0, 5)])).copy()
    headers = walk(holed)
    headers.fields["last_offset_delta"][0] = 9
    found, left = begin_at(holed, headers, 7)
    assert (len(found), len(left)) == (0, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_message_becomes_a_batch_of_the_records_that_are_left(magic: int) -> None:
    records = numbered(10, 20) if magic else [replace(each, timestamp=-1) for each in numbered(10, 20)]
    log = np.frombuffer(wrapper(magic, Codec.GZIP, records) + message(magic, replace(records[0], offset=20)), np.uint8)
    for offset in (5, 10):
        assert begin_at(log, walk(log), offset)[0] is log
    found, headers = begin_at(log, walk(log), 14)
    assert [each.offset for each in to_records(decode(found))] == list(range(14, 21))
    assert headers["magic"].tolist() == [2, magic]


def test_a_batch_that_cannot_be_read_stays_as_it_is() -> None:
    log = encode(to_arrow(numbered(0, 10)), codec=Codec.LZ4).copy()
    log[70:80] = 0
    headers = walk(log, check_crc=False)
    found, same = begin_at(log, headers, 5)
    assert (found is log, same is headers) == (True, True)


def test_a_log_that_begins_with_a_batch_loads_no_compiled_code() -> None:
    program = (
        "import sys, numpy as np\n"
        "from maxbrod.batch.cuts import begin_at\n"
        "from maxbrod.batch.headers import walk\n"
        f"log = np.frombuffer(bytes.fromhex('{encode(to_arrow(numbered(10, 20))).tobytes().hex()}'), np.uint8)\n"
        "for offset in (-1, 0, 10, 20):\n"
        "    begin_at(log, walk(log), offset)\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
