from __future__ import annotations

import pytest

from maxbrod.config import S3Config, StorageConfig
from maxbrod.errors import UsageError
from maxbrod.storage.sides import sides_of

S3 = StorageConfig(s3=S3Config(endpoint="http://one:1", region="eu-1"), deadline_s=5)
SHARED = StorageConfig(deadline_s=5)


def test_the_options_of_a_store_do_not_stand_in_the_way_of_a_directory() -> None:
    assert sides_of(S3, ("s3://bucket/a", "/backups"), ({}, {})) == (S3, SHARED)
    assert sides_of(S3, ("/backups", "s3://bucket/a"), ({}, {})) == (SHARED, S3)


def test_each_side_has_options_of_its_own() -> None:
    source, target = sides_of(
        S3, ("s3://a/x", "s3://b/x"), ({"s3.endpoint": "http://old:1"}, {"s3.path_style": "false", "deadline_s": "7"})
    )
    assert (source.s3.endpoint, source.s3.region, source.deadline_s) == ("http://old:1", "eu-1", 5)
    assert (target.s3.endpoint, target.s3.path_style, target.deadline_s) == ("http://one:1", False, 7)


def test_secrets_stay_as_they_are_where_other_options_are_set() -> None:
    keys = S3Config.model_validate({"access_key_id": "k", "secret_access_key": "s"})
    source, _ = sides_of(StorageConfig(s3=keys), ("s3://a/x", "/b"), ({"s3.region": "eu-2"}, {}))
    assert source.s3.secret_access_key is not None
    assert source.s3.secret_access_key.get_secret_value() == "s"


def test_options_of_a_cloud_in_which_neither_side_is_are_refused() -> None:
    with pytest.raises(UsageError, match="s3 are for s3://, and neither side"):
        sides_of(S3, ("/a", "gs://b/x"), ({}, {}))


@pytest.mark.parametrize(
    ("name", "said"),
    [("s3.endpoin", "endpoin"), ("s4.endpoint", "s4"), ("shared.x", "shared")],
)
def test_a_mistyped_option_is_named(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sides_of(SHARED, ("s3://a/x", "/b"), ({name: "1"}, {}))


def test_options_of_another_cloud_for_one_side_are_left_to_its_opening() -> None:
    source, _ = sides_of(SHARED, ("/a", "/b"), ({"s3.endpoint": "http://x:1"}, {}))
    assert source.s3.endpoint == "http://x:1"
