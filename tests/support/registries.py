"""Schema registries on loopback: a double with contexts, modes and imports, and Karapace where it is installed.

The double follows the published API of Confluent's Schema Registry, and is strict: ids need IMPORT mode, an id has one
schema in a context, what is referred to must exist and is not deleted, IMPORT without `force` deletes soft-deleted
versions for good, and a version that comes back under the id of a soft-deleted older one takes its place. It keeps a
list of all requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID

Json = Any
AVRO = "AVRO"
CONTENT = ("schema", "schemaType", "references", "metadata", "ruleSet")


class Refusal(Exception):  # noqa: N818 - an answer, not an error of a test
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, {"error_code": code, "message": message}


def refused(message: str) -> Refusal:
    return Refusal(422, 42205, message)


def context_of(subject: str) -> str:
    found = re.fullmatch(r":(\.[^:]*):.*", subject)
    return found[1] if found else "."


@dataclass
class RegistryDouble:
    """The state of the double, and what it was asked."""

    imports: bool = True
    """False: as Karapace, it has no way to change modes."""
    lists_schemas: bool = True
    page_max: int = 3
    login: str | None = None
    """The value of the header Authorization that it demands."""
    first_id: int = 1
    versions: dict[tuple[str, int], dict[str, Json]] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=lambda: {"": "READWRITE"})
    configs: dict[str, dict[str, Json]] = field(default_factory=lambda: {"": {"compatibilityLevel": "BACKWARD"}})
    requests: list[tuple[str, str]] = field(default_factory=list)
    fail_after: int | None = None
    """Answer 500 to every registration after this many."""
    url: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    # What tests do with it

    def register(self, subject: str, schema: Mapping[str, Json] | str, **more: Json) -> int:
        """Register as a producer does. Returns the id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return int(self.post_version(subject, {"schema": text, **more})["id"])

    def soft_delete(self, subject: str, version: int) -> None:
        self.delete_version(subject, version, permanent=False)

    def hard_delete(self, subject: str, version: int) -> None:
        if not self.versions[subject, version]["deleted"]:
            self.delete_version(subject, version, permanent=False)
        self.delete_version(subject, version, permanent=True)

    def listing(self) -> dict[tuple[str, int], tuple[int, bool]]:
        """The id of every version, and whether it is soft-deleted."""
        return {place: (version["id"], version["deleted"]) for place, version in sorted(self.versions.items())}

    # The rules

    def scope(self, table: Mapping[str, Json], subject: str) -> Json:
        context = context_of(subject)
        names = [subject, *([] if context == "." else [f":{context}:"]), ""]
        return next(table[name] for name in names if name in table)

    def post_version(self, subject: str, body: Mapping[str, Json]) -> dict[str, Json]:
        mode = self.scope(self.modes, subject)
        if mode.startswith("READONLY"):
            raise refused(f"Subject {subject} is in read-only mode")
        given, number = body.get("id"), body.get("version")
        if given is not None and mode != "IMPORT":
            raise refused(f"Subject {subject} is not in import mode")
        if given is None and mode != "READWRITE":
            raise refused(f"Subject {subject} is not in read-write mode")
        self.check_references(subject, body)
        content = content_of(body)
        context = context_of(subject)
        mine = {version: found for (name, version), found in self.versions.items() if name == subject}
        same = [found for found in mine.values() if content_of(found) == content and not found["deleted"]]
        if given is None and same:
            return same[0]
        everywhere = [found for (name, _), found in self.versions.items() if context_of(name) == context]
        if given is None:
            self.check_compatible(subject, body, [found for found in mine.values() if not found["deleted"]])
            known = [found["id"] for found in everywhere if content_of(found) == content]
            used = {found["id"] for found in everywhere}
            given = known[0] if known else max(used | {self.first_id - 1}) + 1
        elif any(found["id"] == given and content_of(found) != content for found in everywhere):
            raise refused(f"Overwrite new schema with id {given} in context {context} is not permitted.")
        number = number if number and number > 0 else max(mine, default=0) + 1
        for older, found in mine.items():
            if found["deleted"] and found["id"] == given and older < number:
                del self.versions[subject, older]
        made = {
            "subject": subject,
            "version": number,
            "id": given,
            "guid": str(UUID(hashlib.md5(repr(content).encode(), usedforsecurity=False).hexdigest())),
            "deleted": False,
            **{
                name: body[name]
                for name in ("schema", "schemaType", "references", "metadata", "ruleSet")
                if name in body
            },
        }
        self.versions[subject, number] = made
        return made

    def check_references(self, subject: str, body: Mapping[str, Json]) -> None:
        for reference in body.get("references") or ():
            name, context = reference["subject"], context_of(subject)
            names = {name} | (set() if context == "." else {f":{context}:{name}"})
            if not any((one, reference["version"]) in self.versions for one in names):
                raise Refusal(422, 42201, f"No schema reference found for {reference}")

    def check_compatible(self, subject: str, body: Mapping[str, Json], live: list[dict[str, Json]]) -> None:
        """BACKWARD for Avro records, as far as tests need it: a new field needs a default."""
        level = self.scope(self.configs, subject)["compatibilityLevel"]
        if level == "NONE" or not live or body.get("schemaType", AVRO) != AVRO:
            return
        before, after = (json.loads(one["schema"]) for one in (live[-1], body))
        if not all(isinstance(one, dict) and one.get("type") == "record" for one in (before, after)):
            return
        known = {one["name"] for one in before["fields"]}
        if any(one["name"] not in known and "default" not in one for one in after["fields"]):
            raise Refusal(409, 409, "Schema being registered is incompatible with an earlier schema")

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        found = self.versions.get((subject, version))
        if found is None:
            raise Refusal(404, 40402, "Version not found")
        if found["deleted"] != permanent:
            raise Refusal(404, 40406 if found["deleted"] else 40407, "Version was soft deleted, or is not")
        users = [
            name
            for (name, _), other in self.versions.items()
            for reference in other.get("references") or ()
            if (reference["subject"], reference["version"]) == (subject, version)
            if permanent or not other["deleted"]
        ]
        if users:
            raise Refusal(422, 42206, f"One or more references exist to the schema: {users}")
        if permanent:
            del self.versions[subject, version]
        else:
            found["deleted"] = True
        return version

    def put_mode(self, subject: str, mode: str, *, force: bool) -> dict[str, str]:
        if not self.imports:
            raise Refusal(405, 405, "Method Not Allowed")
        if mode not in {"READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"}:
            raise Refusal(422, 42204, "Invalid mode")
        if mode == "IMPORT" and self.scope(self.modes, subject) != "IMPORT" and not force:
            mine = [place for place in self.versions if place[0] == subject or not subject]
            if any(not self.versions[place]["deleted"] for place in mine):
                raise refused("Cannot import since found existing subjects")
            for place in mine:
                del self.versions[place]
        self.modes[subject] = mode
        return {"mode": mode}

    # Requests

    def answer(self, method: str, path: list[str], query: Mapping[str, str], body: Json) -> Json:
        with self.lock:
            if path[:1] in (["mode"], ["config"]):
                return self.settings(method, path, query, body)
            return self.look(path, query) if method == "GET" else self.change(method, path, query, body)

    def look(self, path: list[str], query: Mapping[str, str]) -> Json:
        match path:
            case ["contexts"] if self.imports:
                return sorted({".", *(context_of(subject) for subject, _ in self.versions)})
            case ["subjects"]:
                return sorted({name for name, _ in self.seen(query)})
            case ["schemas"] if self.lists_schemas:
                return self.page(query)
            case ["subjects", subject, "versions"]:
                found = [version for name, version in self.seen(query) if name == subject]
                return found or self.not_there(40401)
            case ["subjects", subject, "versions", version]:
                place = subject, int(version)
                return public(self.versions[place]) if place in self.seen(query) else self.not_there(40402)
            case ["schemas", ("ids" | "guids") as kind, number]:
                name = kind.removesuffix("s")
                known = [one for one in self.versions.values() if str(one[name]) == number]
                return public(known[0]) if known else self.not_there(40403)
            case _:
                return self.not_there(404)

    def change(self, method: str, path: list[str], query: Mapping[str, str], body: Json) -> Json:
        match method, path:
            case "POST", ["subjects", subject, "versions"]:
                if self.fail_after is not None and self.registrations() > self.fail_after:
                    raise Refusal(500, 50001, "Error in the backend data store")
                return public(self.post_version(subject, body))
            case "POST", ["subjects", subject]:
                same = [place for place in self.seen(query) if place[0] == subject]
                alike = [place for place in same if content_of(self.versions[place]) == content_of(body)]
                return public(self.versions[alike[0]]) if alike else self.not_there(40403)
            case "DELETE", ["subjects", subject, "versions", version]:
                return self.delete_version(subject, int(version), permanent=query.get("permanent") == "true")
            case _:
                return self.not_there(404)

    def settings(self, method: str, path: list[str], query: Mapping[str, str], body: Json) -> Json:
        scope = path[1] if len(path) > 1 else ""
        match method, path[:1]:
            case "GET", ["mode"]:
                if not self.imports and scope in {"", *(name for name, _ in self.versions)}:
                    return {"mode": self.modes[""]}
                return {"mode": self.modes[scope]} if scope in self.modes else self.not_there(40409)
            case "PUT", ["mode"]:
                return self.put_mode(scope, body["mode"], force=query.get("force") == "true")
            case "DELETE", ["mode"] if self.imports and scope in self.modes:
                return {"mode": self.modes.pop(scope)}
            case "GET", ["config"]:
                return self.configs[scope] if scope in self.configs else self.not_there(40408)
            case "PUT", ["config"]:
                rest = {name: value for name, value in body.items() if name != "compatibility"}
                self.configs[scope] = {"compatibilityLevel": body["compatibility"], **rest}
                return body
            case "DELETE", ["config"] if scope in self.configs:
                return self.configs.pop(scope)
            case _:
                return self.not_there(404)

    def registrations(self) -> int:
        return sum(method == "POST" and path.endswith("/versions") for method, path in self.requests)

    def seen(self, query: Mapping[str, str]) -> list[tuple[str, int]]:
        deleted = query.get("deleted") == "true"
        return [place for place, found in sorted(self.versions.items()) if deleted or not found["deleted"]]

    def page(self, query: Mapping[str, str]) -> list[Json]:
        # Karapace lists deleted versions unless they are asked for.
        odd = {"deleted": "false" if query.get("deleted") == "true" else "true"}
        places = self.seen(query if self.imports else odd)
        if query.get("subjectPrefix") != ":*:":
            places = [place for place in places if context_of(place[0]) == "."]
        first = int(query.get("offset", 0))
        return [public(self.versions[place]) for place in places[first : first + self.page_max]]

    def not_there(self, code: int) -> Json:
        raise Refusal(404, code, "not found")


def content_of(body: Mapping[str, Json]) -> tuple[Json, ...]:
    references = [(one["name"], one["subject"], one["version"]) for one in body.get("references") or ()]
    details = json.dumps([body.get("metadata"), body.get("ruleSet")], sort_keys=True)
    return body.get("schemaType", AVRO), body["schema"], tuple(references), details


def public(found: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in found.items() if name != "deleted"}


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@contextmanager
def serving(double: RegistryDouble | None = None, *, tls: ssl.SSLContext | None = None) -> Iterator[RegistryDouble]:
    """A double that answers at `url` until the block ends."""
    found = double or RegistryDouble()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            path = [unquote(part) for part in url.path.split("/") if part]
            size = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(size)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            found.requests.append((self.command, unquote(url.path)))
            status, body = 200, None
            try:
                if found.login is not None and self.headers.get("Authorization") != found.login:
                    raise Refusal(401, 401, "Unauthorized")
                body = found.answer(self.command, path, query, json.loads(text) if text else None)
            except Refusal as refusal:
                status, body = refusal.status, refusal.body
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815 - the names of the base class

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def record(name: str, *fields: str, **defaults: Json) -> str:
    """The text of an Avro record of strings; `defaults` are further fields."""
    listed = [{"name": one, "type": "string"} for one in fields]
    listed += [{"name": one, "type": "string", "default": value} for one, value in defaults.items()]
    return json.dumps({"type": "record", "name": name, "fields": listed}, separators=(",", ":"))
