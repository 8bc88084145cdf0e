"""The checksum, against its published check value and a bit-by-bit one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.layouts.kbs.kernels import combine, crc64
from support import plain_kbs as plain


def test_the_check_value_of_crc_64_xz_comes_out() -> None:
    assert crc64(b"123456789") == plain.crc64(b"123456789") == 0x995DC9BBDF1939FA
    assert crc64(b"") == 0


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_parts_give_the_checksum_of_the_whole(first: bytes, second: bytes) -> None:
    whole = plain.crc64(first + second)

    assert crc64(first + second) == whole
    assert crc64(second, crc64(first)) == whole
    assert combine(crc64(first), crc64(second), len(second)) == whole
