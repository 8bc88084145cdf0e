from __future__ import annotations

import pickle

import pytest

from maxbrod import errors
from maxbrod.errors import CorruptDataError, MaxbrodError, StoppedError, UnavailableError

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MaxbrodError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_comes_back_whole_from_a_spark_task(kind: type[MaxbrodError]) -> None:
    """Spark brings task errors to the driver pickled; Exception alone would lose every field."""
    error = kind("broken", operation="read", object_name="x", offset=3, position=4, hint="look")
    back = pickle.loads(pickle.dumps(error))

    assert type(back) is kind
    assert back.as_dict() == error.as_dict()
    assert str(back) == "broken (in x, at offset 3, at byte 4)"


def test_offset_zero_is_said() -> None:
    assert str(CorruptDataError("bad", offset=0, position=0)) == "bad (at offset 0, at byte 0)"


def test_exit_codes_are_the_documented_ones() -> None:
    assert {kind.__name__: kind.exit_code for kind in CLASSES} == {
        "MaxbrodError": 1,
        "UsageError": 2,
        "NoArchiveError": 2,
        "IncompleteError": 3,
        "CorruptDataError": 4,
        "BatchLimitError": 5,
        "TruncatedDataError": 4,
        "RefusedError": 5,
        "FencedError": 5,
        "LogTruncatedError": 5,
        "MisplacedBatchError": 5,
        "OvertakenError": 5,
        "ProducerFencedError": 5,
        "SequenceGapError": 5,
        "TopicGoneError": 5,
        "ObjectExistsError": 5,
        "UnsupportedFormatError": 5,
        "ObjectNotFoundError": 1,
        "AccessDeniedError": 1,
        "ForbiddenError": 1,
        "FrozenObjectError": 1,
        "StorageFullError": 1,
        "OutputError": 1,
        "EnvironmentMissingError": 1,
        "UnavailableError": 1,
        "StoppedError": 3,
    }
    assert [kind for kind in CLASSES if kind.retryable] == [UnavailableError, StoppedError]


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = errors.__doc__ or ""

    assert all(f"{kind.__name__} " in drawn for kind in CLASSES)


def test_a_file_name_that_is_not_utf_8_can_be_printed_and_sent() -> None:
    error = CorruptDataError("damaged", object_name=b"/backups/\xff".decode("utf-8", "surrogateescape"))
    assert str(error) == r"damaged (in /backups/\udcff)"
    assert error.as_dict()["object_name"].encode() == rb"/backups/\udcff"


def test_an_object_that_the_reader_has_just_seen_is_not_named_again() -> None:
    error = UnavailableError("no leader answered", object_name="orders-1", offset=5)
    assert str(error) == "no leader answered (in orders-1, at offset 5)"
    assert error.told_of("orders-1") == "no leader answered (at offset 5)"
    assert error.told_of("orders-11") == str(error)
    assert str(UnavailableError("orders-1 has no leader", object_name="orders-1")) == "orders-1 has no leader"
    # A part of a longer name is another name.
    longer = UnavailableError("orders-11 has no leader", object_name="orders-1")
    assert str(longer) == "orders-11 has no leader (in orders-1)"
