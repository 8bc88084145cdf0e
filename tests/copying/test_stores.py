"""Copies between a real S3 and folders, in any direction; other programs read the catalog of a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.catalog import Catalog
from maxbrod.check.run import check_archive
from maxbrod.storage.stores import open_storage
from support.copies import copy, run_of_topics, three_topics
from support.native_archives import look
from support.native_logs import data_batch
from support.storages import delta_table, s3_options

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.s3 import S3Server


def test_a_copy_goes_from_a_folder_to_s3_and_back_and_on(tmp_path: Path, s3: S3Server) -> None:
    options, bucket = s3_options(s3), f"s3://{s3.bucket}/copy"
    making = three_topics(tmp_path / "a")
    # Larger than a part of an upload.
    making.run({0: [data_batch(number * 40, 40, value=b"x" * 60_000) for number in range(8)]}, topic="large")
    assert copy(tmp_path / "a", bucket, storage=options, read_back=True).exit_code == 0
    run_of_topics(making, {"c": 3})
    assert copy(tmp_path / "a", bucket, storage=options).objects == 1
    assert copy(bucket, tmp_path / "b", storage=options).exit_code == 0
    assert look(bucket, options) == look(tmp_path / "a") == look(tmp_path / "b")
    assert check_archive(open_archive(bucket, options)).exit_code == 0
    # Nobody but us wrote its checkpoint: others must be able to read it.
    catalog = Catalog.open(open_storage(bucket, options))
    assert delta_table(bucket, options).version() == catalog.version
    assert delta_table(bucket, options).to_pyarrow_table().num_rows == sum(file.rows for file in catalog.table.files)


def test_chosen_topics_go_from_one_prefix_of_s3_to_another(tmp_path: Path, s3: S3Server) -> None:
    options, first, second = s3_options(s3), f"s3://{s3.bucket}/a", f"s3://{s3.bucket}/b"
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", first, storage=options)
    assert copy(first, second, storage=options, topics=["b", "orders"]).exit_code == 0
    wanted = {where: log for where, log in look(tmp_path / "a").logs.items() if where[0] in {"b", "orders"}}
    assert look(second, options).logs == wanted
