"""Opening: an archive is found, made where there is nothing, and refused where writing could lose data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.catalog.catalog import Catalog
from maxbrod.errors import CorruptDataError, RefusedError, UsageError
from maxbrod.storage.stores import open_storage
from support.storages import s3_options

if TYPE_CHECKING:
    from maxbrod.sandbox.s3 import LyingS3Server
    from maxbrod.storage.interface import Storage
    from support.archives import Place


def test_a_first_opening_for_writing_makes_the_archive_and_the_second_finds_it(place: Place) -> None:
    with pytest.raises(UsageError, match="there is no archive"):
        place.open()
    assert place.create().catalog.version == 0
    assert place.create().catalog.version == 0
    assert place.open().url == place.url
    # Nothing of the probe is left.
    assert not list(place.open().storage.list("probes"))


def test_a_store_that_ignores_conditional_puts_is_refused_unless_there_is_one_writer(lying_s3: LyingS3Server) -> None:
    url, options = f"{lying_s3.url}/archive", s3_options(lying_s3)
    with pytest.raises(RefusedError, match="conditional puts") as caught:
        open_for_writing(url, options)
    assert "--single-writer" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        open_archive(url, options)
    assert open_for_writing(url, options, single_writer=True).catalog.version == 0
    # Reading is not writing, and an archive that exists is no safer.
    assert open_archive(url, options).catalog.version == 0
    with pytest.raises(RefusedError, match="conditional puts"):
        open_for_writing(url, options)


def test_no_archive_is_made_among_objects_of_others(place: Place) -> None:
    open_storage(place.url, place.options).put("readme.txt", b"x")
    with pytest.raises(RefusedError, match="no catalog") as caught:
        place.create()
    assert "readme.txt" in (caught.value.object_name or "")
    assert [found.path for found in open_storage(place.url, place.options).list()] == ["readme.txt"]


@pytest.mark.parametrize(
    "path", ["segments/orders/x/0/1.log", "packs/1.pack", "snapshots/run.json.zst", "catalog/segments/part-0.parquet"]
)
def test_a_lost_catalog_is_called_lost_and_nothing_is_backed_up_over_it(path: str, place: Place) -> None:
    storage = open_storage(place.url, place.options)
    storage.put(path, b"x")
    for verb in (place.open, place.create):
        with pytest.raises(CorruptDataError, match="the catalog of the archive is missing") as caught:
            verb()
        assert path in str(caught.value)
        assert "do not back up" in (caught.value.hint or "")
    assert [found.path for found in storage.list()] == [path]


def test_what_a_killed_first_opening_left_is_in_nobodys_way(local_place: Place) -> None:
    storage = open_storage(local_place.url)
    storage.put("probes/0123", b"first")
    storage.put("catalog/segments/_delta_log/00000000000000000000.json#1", b"{")
    assert local_place.create().catalog.version == 0


def test_whoever_comes_second_in_making_it_finds_it(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Catalog.create

    def create_late(storage: Storage) -> Catalog:
        create(storage)
        return create(storage)

    monkeypatch.setattr(Catalog, "create", create_late)
    assert local_place.create().catalog.version == 0
