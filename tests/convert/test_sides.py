from __future__ import annotations

from pathlib import Path

import pytest

from maxbrod.config import StorageConfig
from maxbrod.convert.sides import NativeTarget
from maxbrod.errors import UsageError
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.kafka.format import Compression, CompressionMode
from maxbrod.transfer.task import native_compression


def test_the_level_of_a_codec_reaches_our_own_layout() -> None:
    assert native_compression(WriteOptions(codec="zstd", level=9)) == Compression(mode=CompressionMode.ZSTD, level=9)
    assert native_compression(WriteOptions()) == Compression()


def test_a_codec_that_our_own_layout_lacks_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'gzip' is unknown"):
        NativeTarget(str(tmp_path / "copy"), StorageConfig(), WriteOptions(codec="gzip"), run_id="run")
    assert not (tmp_path / "copy").exists()
