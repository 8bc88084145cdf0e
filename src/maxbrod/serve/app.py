"""The dashboard as an ASGI application: addresses, pages and errors. It knows neither sockets nor a terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from maxbrod import __version__
from maxbrod.errors import MaxbrodError, NoArchiveError, UsageError
from maxbrod.model import now_ms
from maxbrod.serve import answers
from maxbrod.serve.door import HEALTH, LOGIN, STATIC, TOKEN, WRONG_S, Entrance, Guard
from maxbrod.serve.pages import records as record_pages
from maxbrod.serve.pages import retention as retention_pages
from maxbrod.serve.pages.frame import SECTIONS, STATES, link
from maxbrod.serve.pages.records import visible
from maxbrod.serve.pages.runs import runs_view
from maxbrod.serve.pages.topics import SORTS
from maxbrod.serve.pages.wall import in_order_of_concern, summarise_wall
from maxbrod.text import counted, human_age, human_bytes, human_count, human_time

if TYPE_CHECKING:
    from starlette.requests import Request

    from maxbrod.serve.shelf import Edition, Shelf, Volume

    Page = Callable[[Request, Volume, Edition], Response]

_LOG: Final = logging.getLogger(__name__)
_PACKAGE: Final = "maxbrod.serve"
_AGAIN_S: Final = 3
"""After this time a browser asks again for what is being read."""
_LOGIN_BYTES_MAX: Final = 8192
_STATIC_TYPES: Final = {"style.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


def environment() -> Environment:
    """The templates. Everything is escaped, and a name that a page does not have is an error."""
    made = Environment(
        loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "age": human_age,
        "bytes": human_bytes,
        "count": human_count,
        "time": human_time,
        "day": partial(human_time, to="day"),
        "visible": visible,
    }
    made.globals |= {
        "counted": counted,
        "link": link,
        "sections": SECTIONS,
        "states": {str(state): found for state, found in STATES.items()},
        "version": __version__,
    }
    return made


class Dashboard:
    """The pages of a shelf."""

    def __init__(self, shelf: Shelf, entrance: Entrance, *, wrong_s: float = WRONG_S) -> None:
        """`wrong_s`: how long a wrong token waits for its answer."""
        self.shelf, self.entrance = shelf, entrance
        self._templates = environment()
        pages: Mapping[str, Page] = {
            "": self.overview,
            "/topics": self.topics,
            "/topic": self.topic,
            "/history": self.history,
            "/records": self.records,
            "/records.json": self.records_json,
            "/runs": self.runs,
            "/run": self.run,
            "/jobs": self.jobs,
            "/restore": self.restore,
            "/retention": self.retention,
            "/drills": self.drills,
            "/replication": self.replication,
            "/growth": self.growth,
            "/holds": self.holds,
        }
        routes = [
            Route("/", self.wall),
            Route(HEALTH, self.health),
            Route(LOGIN, self.login, methods=["GET", "HEAD", "POST"]),
            Route(STATIC + "{name}", self.static),
            *(Route(f"/archives/{{slug}}{path}", self._of_archive(page)) for path, page in pages.items()),
        ]
        handlers: Mapping[Any, Any] = {HTTPException: self._http_error, Exception: self._failure}
        self.guard = Guard(Starlette(routes=routes, exception_handlers=handlers), entrance, wrong_s)

    # What every page has

    def _show(
        self,
        template: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **given: Any,  # noqa: ANN401 - of the template
    ) -> Response:
        shared = {
            "volumes": list(self.shelf.volumes.values()),
            "volume": None,
            "edition": None,
            "section": None,
            "stranger": False,
            "now": now_ms(),
        }
        text = self._templates.get_template(template).render(**{**shared, **given})
        return HTMLResponse(text, status, headers)

    def _of_archive(self, page: Page) -> Callable[[Request], Response]:
        """A page of the archive that the address names. Not a coroutine, so that it runs in a thread."""

        def answer(request: Request) -> Response:
            volume = self.shelf.volumes.get(request.path_params["slug"])
            if volume is None:
                raise HTTPException(404, "there is no such archive here")
            edition = volume.edition
            if edition is None:
                again = {"refresh": str(_AGAIN_S)}
                return self._show("reading.html", 503, again, volume=volume, section="", error=volume.error)
            try:
                return page(request, volume, edition)
            except MaxbrodError as error:
                return self._error(volume, edition, error)

        return answer

    def _error(self, volume: Volume, edition: Edition, error: MaxbrodError) -> Response:
        status = 404 if isinstance(error, UsageError) and not isinstance(error, NoArchiveError) else 502
        return self._show(
            "error.html",
            status,
            volume=volume,
            edition=edition,
            title="Not found" if status == 404 else "It cannot be read",
            message=error.message,
            hint=error.hint,
            where=error.object_name,
        )

    def _http_error(self, _: Request, error: HTTPException) -> Response:
        title = "Not found" if error.status_code == 404 else "Refused"
        return self._show("error.html", error.status_code, title=title, message=error.detail, hint=None, where=None)

    def _failure(self, request: Request, error: Exception) -> Response:
        # The address, but not what follows it: that may name topics.
        _LOG.error("the page %s has failed", request.url.path, exc_info=error)
        message = "this is a bug in maxbrod: please report it, with what is in its log"
        return self._show("error.html", 500, title="The page has failed", message=message, hint=None, where=None)

    # Pages

    def wall(self, _: Request) -> Response:
        rows = [answers.wall_row_of(volume) for volume in self.shelf.volumes.values()]
        return self._show("wall.html", rows=in_order_of_concern(rows), summary=summarise_wall(rows))

    def overview(self, _: Request, volume: Volume, edition: Edition) -> Response:
        recent = runs_view(volume.slug, edition.runs)
        return self._show(
            "archive.html",
            volume=volume,
            edition=edition,
            section="",
            row=answers.wall_row_of(volume),
            judged=volume.judged(now_ms()),
            runs=recent.lines.items[:8],
            runs_total=recent.lines.total,
            listing=edition.listing,
        )

    def topics(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.topics_of(volume, edition, _parameters(request))
        return self._show("topics.html", volume=volume, edition=edition, section="topics", view=view, sorts=SORTS)

    def topic(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.topic_of(volume, edition, _parameters(request))
        return self._show("topic.html", volume=volume, edition=edition, section="topics", view=view)

    def history(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.history_of(edition, _parameters(request))
        return self._show("history.html", volume=volume, edition=edition, section="topics", view=view)

    def records(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view, _ = answers.records_of(volume, edition, _parameters(request))
        return self._show(
            "records.html", volume=volume, edition=edition, section="topics", view=view, counts=record_pages.COUNTS
        )

    def records_json(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view, page = answers.records_of(volume, edition, _parameters(request))
        name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{view.topic}-{view.partition}-{view.first_offset}")
        text = json.dumps(record_pages.records_document(view, page), indent=2)
        disposition = f'attachment; filename="{name}.json"'
        return Response(text, media_type="application/json", headers={"content-disposition": disposition})

    def runs(self, request: Request, volume: Volume, edition: Edition) -> Response:
        given = _parameters(request)
        view = runs_view(
            volume.slug,
            edition.runs,
            first=answers.number_of(given, "from"),
            verb=answers.one_of(given, "verb"),
            trouble=bool(answers.one_of(given, "trouble")),
        )
        return self._show("runs.html", volume=volume, edition=edition, section="runs", view=view)

    def run(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.run_of(volume, edition, _parameters(request))
        return self._show("run.html", volume=volume, edition=edition, section="runs", view=view)

    def jobs(self, _: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.jobs_of(edition)
        return self._show("jobs.html", volume=volume, edition=edition, section="jobs", view=view)

    def restore(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.restore_of(volume, edition, self.shelf.config, _parameters(request))
        return self._show("restore.html", volume=volume, edition=edition, section="restore", view=view)

    def retention(self, request: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.retention_of(volume, edition, _parameters(request))
        return self._show(
            "retention.html",
            volume=volume,
            edition=edition,
            section="retention",
            view=view,
            data_fields=retention_pages.DATA_FIELDS,
            run_fields=retention_pages.RUN_FIELDS,
            ages=None if view.report is None else retention_pages.ages_text(view.report),
        )

    def drills(self, _: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.drills_of(volume, edition)
        return self._show("drills.html", volume=volume, edition=edition, section="drills", view=view)

    def replication(self, _: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.replication_of(volume, edition, self.shelf.config)
        return self._show("replication.html", volume=volume, edition=edition, section="replication", view=view)

    def growth(self, _: Request, volume: Volume, edition: Edition) -> Response:
        view = answers.growth_of(volume, edition, self.shelf.config)
        return self._show("growth.html", volume=volume, edition=edition, section="growth", view=view)

    def holds(self, _: Request, volume: Volume, edition: Edition) -> Response:
        holds, restores = answers.holds_of(edition)
        return self._show("holds.html", volume=volume, edition=edition, section="holds", holds=holds, restores=restores)

    # What is no page

    async def health(self, _: Request) -> Response:
        """Whether news of the archives are still looked for. It says nothing about the archives themselves."""
        alive = self.shelf.is_alive()
        return JSONResponse({"alive": alive, "version": __version__}, 200 if alive else 503)

    async def login(self, request: Request) -> Response:
        """The form that asks for the token; and what it sends."""
        stranger = bool(request.scope.get("state", {}).get("stranger"))
        if request.method != "POST":
            return self._show("login.html", 401 if stranger else 200, stranger=True, wrong=False)
        given = await _form_token(request)
        if given is not None and self.entrance.is_token(given):
            return self.guard.welcome(request.scope, "/")
        await asyncio.sleep(self.guard.wrong_s)
        self.guard.refused += 1
        return self._show("login.html", 401, stranger=True, wrong=True)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC_TYPES:
            return PlainTextResponse("not found\n", 404)
        data = (files(_PACKAGE) / "static" / name).read_bytes()
        return Response(data, media_type=_STATIC_TYPES[name])


def _parameters(request: Request) -> dict[str, list[str]]:
    return parse_qs(request.url.query, keep_blank_values=True, max_num_fields=200)


async def _form_token(request: Request) -> str | None:
    """The token of a form that was sent; None: there is none, or the form is too large to be ours."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LOGIN_BYTES_MAX:
            return None
    found = parse_qs(data.decode("latin-1"))
    return next(iter(found.get(TOKEN, ())), None)
