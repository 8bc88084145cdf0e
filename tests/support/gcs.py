"""A double of Google Cloud Storage on loopback: the part of its XML API that obstore uses, in memory.

No package serves that API as Google documents it, so this was written from the documentation of the XML API (methods,
headers, errors, IAM permissions by method) and from what obstore sends. It refuses what it does not know: a request
that it accepts for the wrong reason would prove nothing. It is no proof of what Google's servers do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

HOST = "127.0.0.1"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
PART_BYTES_MIN = 5 * 1024 * 1024
PARTS_MAX = 10_000
PAGE = 1000
NAME_BYTES_MAX = 1024
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
RIGHTS = frozenset(
    {
        "storage.objects.create",
        "storage.objects.delete",
        "storage.objects.get",
        "storage.objects.list",
        "storage.multipartUploads.create",
        "storage.multipartUploads.abort",
    }
)
_HEADERS = frozenset(
    {"accept", "authorization", "content-length", "content-type", "host", "range", "user-agent", "metadata-flavor"}
)
_META = "x-goog-meta-"
_CONDITION = "x-goog-if-generation-match"


class RefusedRequestError(Exception):
    """An answer in the words of the XML API."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    etag: str
    generation: int
    modified: float
    kept: Mapping[str, str]
    """Content-Type and metadata, as they were sent."""


@dataclass(slots=True)
class Upload:
    name: str
    kept: Mapping[str, str]
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    bucket: str
    name: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class GcsDouble:
    """One bucket. Everything that a test may want to know or to change is an attribute."""

    scheme = "gs"

    def __init__(self, folder: Path, bucket: str = "maxbrod-test") -> None:
        self.bucket = bucket
        self.token = secrets.token_urlsafe(24)
        self.rights = set(RIGHTS)
        self.page = PAGE
        self.mutation_interval_s = 0.0
        """With 1.0, as Google's limit of one mutation a second of one object: a second one is 429, whatever it asks."""
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.unconditional: list[str] = []
        """Names that were put without a precondition."""
        self.used: set[str] = set()
        """The rights that requests have needed."""
        self.refused: list[str] = []
        """Requests that no client should send."""
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._key_id, self._email = secrets.token_hex(20), "box@project.iam.gserviceaccount.com"
        self._mutated: dict[str, float] = {}
        self._generation = time.time_ns() // 1000
        self._lock = threading.Lock()
        self.server: ThreadingHTTPServer
        self._folder = folder

    @property
    def address(self) -> tuple[str, int]:
        return HOST, int(self.server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.address[1]}"

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}"

    @property
    def key_file(self) -> Path:
        """The key file of its service account. For clients that know no other way it names the endpoint."""
        path = self._folder / "service-account.json"
        return path if path.exists() else self.write_key_file(path, gcs_base_url=self.endpoint)

    def storage_section(self, *, endpoint: str | None = None) -> dict[str, Any]:
        """The section `storage` of a configuration that reaches the double as its service account."""
        return {"gcs": {"endpoint": endpoint or self.endpoint, "credentials_file": str(self.key_file)}}

    def write_key_file(self, path: Path, **changed: str) -> Path:
        """The key file of a service account that may do what `rights` say."""
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        document = {
            "type": "service_account",
            "private_key": pem.decode(),
            "private_key_id": self._key_id,
            "client_email": self._email,
            **changed,
        }
        path.write_text(json.dumps(document))
        return path

    def answer(self, request: Request) -> Answer:
        """The answer, under one lock: a store decides between two writers of one name."""
        with self._lock:
            self._check_headers(request)
            self._authenticate(request.headers.get("authorization", ""))
            if request.bucket != self.bucket:
                raise RefusedRequestError(404, "NoSuchBucket", "The specified bucket does not exist.")
            return self._route(request)

    def _route(self, request: Request) -> Answer:
        if len(request.name.encode()) > NAME_BYTES_MAX:
            raise RefusedRequestError(400, "KeyTooLongError", "Your key is too long.")
        if not request.name and request.method == "GET":
            return self._list(request)
        acts = {
            ("GET", frozenset[str]()): self._get,
            ("HEAD", frozenset[str]()): self._get,
            ("PUT", frozenset[str]()): self._put,
            ("DELETE", frozenset[str]()): self._delete,
            ("POST", frozenset({"uploads"})): self._start_upload,
            ("PUT", frozenset({"partNumber", "uploadId"})): self._put_part,
            ("POST", frozenset({"uploadId"})): self._complete,
            ("DELETE", frozenset({"uploadId"})): self._abort,
        }
        act = acts.get((request.method, frozenset(request.query))) if request.name else None
        if act is None:
            raise self._unknown(request, "method or query")
        return act(request)

    def _check_headers(self, request: Request) -> None:
        for name in request.headers:
            writes = request.method == "PUT" and not request.query
            creates = writes or "uploads" in request.query
            if not (name in _HEADERS or (name == _CONDITION and writes) or (name.startswith(_META) and creates)):
                raise self._unknown(request, f"header {name}")
        if request.method in {"PUT", "POST"} and "content-length" not in request.headers:
            raise RefusedRequestError(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")

    def _unknown(self, request: Request, what: str) -> RefusedRequestError:
        self.refused.append(f"{request.method} {request.name}?{request.query}: {what}")
        return RefusedRequestError(400, "InvalidArgument", f"Invalid argument: {what}")

    def _authenticate(self, given: str) -> None:
        scheme, _, token = given.partition(" ")
        if scheme != "Bearer" or not (token == self.token or self._is_ours(token)):
            raise RefusedRequestError(401, "AuthenticationRequired", "Authentication required.")

    def _is_ours(self, token: str) -> bool:
        """True for a JWT that our service account has signed for itself and that is valid now."""
        with suppress(ValueError, InvalidSignature, KeyError):
            signed, _, signature = token.rpartition(".")
            head, claims = (json.loads(_decoded(part)) for part in signed.split("."))
            self._key.public_key().verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
            right = head == {"typ": "JWT", "alg": "RS256", "kid": self._key_id}
            whose = claims["iss"] == claims["sub"] == self._email and claims["scope"] == SCOPE
            return bool(right and whose and claims["iat"] - 60 <= time.time() < claims["exp"] <= claims["iat"] + 3600)
        return False

    def _need(self, *rights: str) -> None:
        self.used |= set(rights)
        for right in rights:
            if right not in self.rights:
                raise RefusedRequestError(403, "AccessDenied", f"Access denied. {self._email} does not have {right}.")

    # Objects

    def _put(self, request: Request) -> Answer:
        self._need("storage.objects.create")
        there = self.objects.get(request.name)
        self._check_rate(request.name)
        condition = request.headers.get(_CONDITION)
        if condition is None:
            self.unconditional.append(request.name)
        elif int(condition) != (there.generation if there else 0):
            message = "At least one of the pre-conditions you specified did not hold."
            raise RefusedRequestError(412, "PreconditionFailed", message)
        if there is not None:
            self._need("storage.objects.delete")
        made = self._store(request.name, request.body, hashlib.md5(request.body).hexdigest(), _kept(request))
        return Answer(200, _facts(made))

    def _store(self, name: str, data: bytes, etag: str, kept: Mapping[str, str]) -> Stored:
        self._generation += 1
        made = Stored(data, f'"{etag}"', self._generation, time.time(), kept)
        self.objects[name] = made
        self._mutated[name] = time.monotonic()
        return made

    def _check_rate(self, name: str) -> None:
        if time.monotonic() - self._mutated.get(name, -60.0) < self.mutation_interval_s:
            message = "The object exceeded the rate limit for object mutation operations (create, update, and delete)."
            raise RefusedRequestError(429, "SlowDown", message)

    def _get(self, request: Request) -> Answer:
        self._need("storage.objects.get")
        found = self._object(request.name)
        headers = {**_facts(found), **found.kept, "Last-Modified": formatdate(found.modified, usegmt=True)}
        if (wanted := request.headers.get("range")) is None:
            return Answer(200, headers, found.data)
        matched = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        if matched is None:
            raise self._unknown(request, f"range {wanted}")
        first, last, size = int(matched[1]), int(matched[2]), len(found.data)
        if first >= size or last < first:
            raise RefusedRequestError(416, "InvalidRange", "The requested range cannot be satisfied.")
        piece = found.data[first : last + 1]
        return Answer(206, {**headers, "Content-Range": f"bytes {first}-{first + len(piece) - 1}/{size}"}, piece)

    def _object(self, name: str) -> Stored:
        if (found := self.objects.get(name)) is None:
            raise RefusedRequestError(404, "NoSuchKey", "The specified key does not exist.")
        return found

    def _delete(self, request: Request) -> Answer:
        self._need("storage.objects.delete")
        self._object(request.name)
        self._check_rate(request.name)
        del self.objects[request.name]
        self._mutated[request.name] = time.monotonic()
        return Answer(204)

    def _list(self, request: Request) -> Answer:
        self._need("storage.objects.list")
        query = dict(request.query)
        if query.pop("list-type", None) != "2" or set(query) - {
            "prefix",
            "continuation-token",
            "max-keys",
            "start-after",
        }:
            raise self._unknown(request, "query of a listing")
        token = base64.urlsafe_b64decode(query.get("continuation-token", "")).decode()
        after = max(token, query.get("start-after", ""), key=str.encode)
        size = min(self.page, int(query.get("max-keys", PAGE)))
        names = [name for name in self.objects if name.startswith(query.get("prefix", ""))]
        names = sorted((name for name in names if name.encode() > after.encode()), key=str.encode)
        shown = "".join(_entry(name, self.objects[name]) for name in names[:size])
        more = ""
        if len(names) > size:
            following = base64.urlsafe_b64encode(names[size - 1].encode()).decode()
            more = f"<NextContinuationToken>{following}</NextContinuationToken>"
        cut = "true" if more else "false"
        return _xml("ListBucketResult", f"<Name>{self.bucket}</Name><IsTruncated>{cut}</IsTruncated>{more}{shown}")

    # Uploads in parts

    def _start_upload(self, request: Request) -> Answer:
        self._need("storage.multipartUploads.create", "storage.objects.create")
        number = secrets.token_urlsafe(32)
        self.uploads[number] = Upload(request.name, _kept(request))
        return _xml("InitiateMultipartUploadResult", f"<Key>{escape(request.name)}</Key><UploadId>{number}</UploadId>")

    def _upload_id(self, request: Request) -> str:
        number = request.query["uploadId"]
        if number not in self.uploads or self.uploads[number].name != request.name:
            raise RefusedRequestError(404, "NoSuchUpload", "The requested upload was not found.")
        return number

    def _put_part(self, request: Request) -> Answer:
        self._need("storage.multipartUploads.create", "storage.objects.create")
        upload, number = self.uploads[self._upload_id(request)], int(request.query["partNumber"])
        if not 1 <= number <= PARTS_MAX:
            raise RefusedRequestError(400, "InvalidArgument", "The part number is invalid.")
        etag = f'"{hashlib.md5(request.body).hexdigest()}"'
        upload.parts[number] = (etag, request.body)
        return Answer(200, {"ETag": etag})

    def _abort(self, request: Request) -> Answer:
        self._need("storage.multipartUploads.abort")
        del self.uploads[self._upload_id(request)]
        return Answer(204)

    def _complete(self, request: Request) -> Answer:
        self._need("storage.multipartUploads.create", "storage.objects.create")
        number = self._upload_id(request)
        upload = self.uploads[number]
        root = ET.fromstring(request.body)
        named = [(int(part.findtext("PartNumber", "0")), part.findtext("ETag", "")) for part in root.findall("Part")]
        if root.tag != "CompleteMultipartUpload" or not named:
            raise RefusedRequestError(400, "MalformedCompleteMultipartUploadRequest", "Malformed request.")
        if named != sorted(named) or any(upload.parts.get(part, ("", b""))[0] != etag for part, etag in named):
            raise RefusedRequestError(400, "InvalidPart", "A part is missing, or its etag is another one.")
        pieces = [upload.parts[part][1] for part, _ in named]
        if any(len(piece) < PART_BYTES_MIN for piece in pieces[:-1]):
            raise RefusedRequestError(400, "EntityTooSmall", "A part is smaller than the minimum.")
        self._check_rate(request.name)
        if request.name in self.objects:
            self._need("storage.objects.delete")
        self.unconditional.append(request.name)
        made = self._store(request.name, b"".join(pieces), f"{secrets.token_hex(16)}-{len(pieces)}", upload.kept)
        del self.uploads[number]
        answer = _xml("CompleteMultipartUploadResult", f"<ETag>{escape(made.etag)}</ETag>")
        return Answer(200, {**answer.headers, "x-goog-generation": str(made.generation)}, answer.body)


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _kept(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith(_META) or name == "content-type"}


def _facts(stored: Stored) -> dict[str, str]:
    return {"ETag": stored.etag, "x-goog-generation": str(stored.generation), "x-goog-metageneration": "1"}


def _entry(name: str, stored: Stored) -> str:
    # A listing counts milliseconds, unlike the header Last-Modified.
    modified = datetime.fromtimestamp(stored.modified, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    facts = f"<Generation>{stored.generation}</Generation><LastModified>{modified}</LastModified>"
    size = f"<Size>{len(stored.data)}</Size>"
    return f"<Contents><Key>{escape(name)}</Key>{facts}<ETag>{escape(stored.etag)}</ETag>{size}</Contents>"


def _xml(root: str, inner: str) -> Answer:
    text = (
        f"<?xml version='1.0' encoding='UTF-8'?><{root} xmlns='http://doc.s3.amazonaws.com/2006-03-01'>{inner}</{root}>"
    )
    return Answer(200, {"Content-Type": "application/xml; charset=UTF-8"}, text.encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    double: GcsDouble

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        if parts.path == TOKEN_PATH:
            self._send(self._token())
            return
        bucket, _, name = parts.path.removeprefix("/").partition("/")
        request = Request(
            method=self.command,
            bucket=unquote(bucket),
            name=unquote(name),
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers={key.lower(): value for key, value in self.headers.items()},
            body=body,
        )
        try:
            answer = self.double.answer(request)
        except RefusedRequestError as error:
            text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{error.code}</Code><Message>{error.message}"
            answer = Answer(error.status, {"Content-Type": "application/xml"}, f"{text}</Message></Error>".encode())
        self._send(answer)

    def _token(self) -> Answer:
        """As the metadata server of a machine with an account."""
        if self.headers.get("Metadata-Flavor") != "Google":
            return Answer(403)
        return Answer(200, {}, json.dumps({"access_token": self.double.token, "expires_in": 3600}).encode())

    def _send(self, answer: Answer) -> None:
        fields = {**answer.headers, "Content-Length": str(len(answer.body))}
        if answer.status == HTTPStatus.NO_CONTENT:
            del fields["Content-Length"]
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        head = "\r\n".join([*lines, "", ""]).encode()
        self.wfile.write(head if self.command == "HEAD" else head + answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names of the base class

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name of the base class
        """Nothing is logged."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that breaks a connection off is no error here.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def gcs_double(folder: Path) -> Iterator[GcsDouble]:
    """A double that runs in this process; `folder` gets the key file of its service account."""
    double = GcsDouble(folder)
    handler = type("Handler", (_Handler,), {"double": double})
    with _Server((HOST, 0), handler) as server:
        double.server = server
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="gcs-double")
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            thread.join()
    assert double.refused == [], "obstore sends something that this double does not know"
