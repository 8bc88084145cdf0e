"""The dashboard as a server: TLS, what it needs to start, and that it leaves the archive as it was."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.sandbox.security import write_certificates
from maxbrod.serve.report import ServeReport
from maxbrod.serve.verb import Served, serve
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.shown_archives import ShownArchive


@contextmanager
def serving(url: str, **options: Any) -> Iterator[tuple[Served, list[ServeReport]]]:
    """The dashboard in a thread, and its report once it has ended."""
    config = Config.model_validate({"archive": url, "serve": {"listen": "127.0.0.1:0", **options}})
    ready, told, reports = threading.Event(), list[Served](), list[ServeReport]()

    def on_ready(served: Served) -> None:
        told.append(served)
        ready.set()

    with Work(config) as work:
        thread = threading.Thread(target=lambda: reports.append(serve(work, on_ready)))
        thread.start()
        try:
            assert ready.wait(30)
            yield told[0], reports
        finally:
            work.stop.set()
            thread.join(30)
    assert not thread.is_alive()


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_over_tls_the_archives_are_read_with_the_token_and_by_nobody_without(
    shown: ShownArchive, tmp_path: Path
) -> None:
    tls = tmp_path / "tls"
    write_certificates(tls, [])
    token = tmp_path / "token"
    token.write_text("a-token-of-many-letters")
    token.chmod(0o600)
    files = {"tls_cert": tls / "server.pem", "token_file": token}
    trusting = ssl.create_default_context(cafile=str(tls / "ca.pem"))
    with serving(shown.url, **files) as (served, reports):
        assert served.address.startswith("https://127.0.0.1:")
        assert served.secret_address is None, "who has the file needs no address"
        assert get(served.address, trusting)[0] == 401
        status, page = get(served.address, trusting, Authorization="Bearer a-token-of-many-letters")
        assert status == 200
        assert "shop" in page
        assert get(f"{served.address}healthz", trusting)[0] == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(served.address)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            get(served.address.replace("https", "http"))
    (report,) = reports
    assert report.exit_code == 0
    assert (report.requests, report.refused) == (3, 1)


def test_looking_at_everything_leaves_the_archive_as_it_was(shown: ShownArchive, tmp_path: Path) -> None:
    def contents() -> dict[str, tuple[int, int]]:
        return {info.path: (info.size, info.modified_ms) for info in shown.archive.storage.list()}

    before = contents()
    with serving(shown.url, token=False) as (served, _):
        for _ in range(200):
            if get(f"{served.address}archives/shop")[0] == 200:
                break
            threading.Event().wait(0.05)
        for path in ("", "/topic?name=orders", "/records?name=orders", "/restore?topics=orders&plan=1", "/holds"):
            assert get(f"{served.address}archives/shop{path}")[0] == 200, path
        assert get(f"{served.address}archives/shop/retention?older_than=1d&compacted_too=1")[0] == 200
    assert contents() == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--listen", "0.0.0.0:0"], 5, "could read the archives and the token"),
        (["--listen", "0.0.0.0:0", "--no-token"], 5, "could read the archives"),
        (["--listen", "somewhere"], 2, "is not an address with a port"),
        (["--token-file", "/nowhere/token"], 2, "the token cannot be read"),
        (["--tls-cert", "/nowhere/cert"], 2, "TLS cannot be used"),
    ],
)
def test_what_would_be_unsafe_or_wrong_does_not_start(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listen = [] if "--listen" in words else ["--listen", "127.0.0.1:0"]
    assert run(["serve", str(tmp_path), *words, *listen]) == code
    assert said in " ".join(capsys.readouterr().err.split())
