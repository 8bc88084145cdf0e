"""Texts as obstore writes them, for what no server here will say."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError

from maxbrod.errors import AccessDeniedError, MaxbrodError, StorageFullError, UnavailableError
from maxbrod.storage.failures import translate

METADATA = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.2ms - "
SIGNED = "Error performing GET https://me.blob.core.windows.net/c/x?sv=2025&sig=geheim in 1ms - "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (METADATA + "HTTP error: error sending request\n\nDebug: HttpError {\n kind: Connect,", AccessDeniedError),
        (METADATA + "HTTP error: error sending request\n\nDebug: HttpError {\n kind: Timeout,", UnavailableError),
        (METADATA + "Server returned non-2xx status code: 503 Service Unavailable: ", UnavailableError),
        (METADATA + "Server returned non-2xx status code: 404 Not Found: ", AccessDeniedError),
        (SIGNED + "Server returned non-2xx status code: 403 Forbidden: geheim", AccessDeniedError),
        (SIGNED + "Server returned non-2xx status code: 507 Insufficient Storage: geheim", StorageFullError),
        (SIGNED + "Server returned non-2xx status code: 418 I'm a teapot: geheim", MaxbrodError),
        (SIGNED + "something that nobody has seen before, geheim", MaxbrodError),
    ],
)
def test_the_kind_of_failure_is_found_and_nothing_else_is_passed_on(text: str, expected: type[MaxbrodError]) -> None:
    error = translate(GenericError(text), "get", "az://c/x")
    assert type(error) is expected
    assert error.operation == "get"
    assert "geheim" not in str(error.as_dict())
    assert "http" not in str(error.as_dict())
