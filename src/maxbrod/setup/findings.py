"""What `maxbrod doctor` has found about one thing: that it is well, doubtful, or missing, and how to get it."""

from __future__ import annotations

from maxbrod.errors import MaxbrodError
from maxbrod.notices import Promise, PromiseState


def well(name: str, text: str) -> Promise:
    return Promise(name=name, state=PromiseState.OK, text=text)


def doubtful(name: str, text: str, hint: str | None) -> Promise:
    return Promise(name=name, state=PromiseState.WARN, text=text, hint=hint)


def failed(name: str, text: str, hint: str | None, exit_code: int) -> Promise:
    return Promise(name=name, state=PromiseState.FAILED, text=text, hint=hint, exit_code=exit_code)


def failed_with(name: str, error: MaxbrodError, text: str = "") -> Promise:
    """`text` is what was tried."""
    return failed(name, f"{text}: {error}" if text else str(error), error.hint, error.exit_code)
