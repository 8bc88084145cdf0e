"""Azure's blob service in a box: Azurite, Microsoft's own emulator, with one account and one container.

It checks shared keys and signatures as Azure does, and keeps conditional puts. It is no Azure: it knows no roles, no
limits of rate, and it writes its index every few seconds, so that a `kill` may lose the newest blobs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import secrets
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from email.utils import formatdate
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode

from maxbrod.errors import UnavailableError
from maxbrod.sandbox.process import HOST
from maxbrod.sandbox.programs import azurite
from maxbrod.sandbox.store_server import StoreServer

_API_VERSION: Final = "2023-11-03"


class AzureServer(StoreServer):
    """Azurite. `access_key` is the name of the account and `secret_key` its key."""

    kind: ClassVar[str] = "azure"
    scheme: ClassVar[str] = "az"

    @staticmethod
    def _command() -> list[str]:
        return azurite()

    @staticmethod
    def _new_keys() -> tuple[str, str]:
        return f"box{secrets.token_hex(6)}", base64.b64encode(secrets.token_bytes(64)).decode()

    def _arguments(self) -> list[str]:
        place = ["--blobHost", HOST, "--blobPort", str(self.port), "--location", str(self.objects_dir)]
        return [*place, "--silent", "--disableTelemetry", "--disableProductStyleUrl"]

    def _environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.access_key}:{self.secret_key}"}

    @property
    def endpoint(self) -> str:
        return self.through(f"http://{HOST}:{self.port}")

    def through(self, address: str) -> str:
        """The endpoint of the account at an address, such as that of a proxy: Azurite has the account in the path."""
        return f"{address}/{self.access_key}"

    def store_options(self, *, endpoint: str | None = None) -> dict[str, Any]:
        return {
            "container_name": self.bucket,
            "account_name": self.access_key,
            "account_key": self.secret_key,
            "endpoint": self.through(endpoint) if endpoint else self.endpoint,
            "client_options": {"allow_http": True},
        }

    def storage_section(self, *, endpoint: str | None = None) -> dict[str, Any]:
        address = self.through(endpoint) if endpoint else self.endpoint
        return {"azure": {"account": self.access_key, "account_key": self.secret_key, "endpoint": address}}

    def variables(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.access_key,
            "AZURE_STORAGE_ACCOUNT_KEY": self.secret_key,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }

    def _fill(self) -> None:
        self.make_container(self.bucket)

    def make_container(self, name: str) -> None:
        """Create a container, which obstore cannot."""
        path, query = f"/{self.access_key}/{name}", {"restype": "container"}
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION}
        signature = self._signature("PUT", path, query, headers)
        headers["Authorization"] = f"SharedKey {self.access_key}:{signature}"
        with closing(self._connection()) as connection:
            connection.request("PUT", f"{path}?{urlencode(query)}", headers={**headers, "Content-Length": "0"})
            answer = connection.getresponse()
            if answer.status != http.client.CREATED:
                said = answer.read().decode(errors="replace")
                raise UnavailableError(f"the container {name} cannot be created: {answer.status} {said}")

    def sas(self, permissions: str, *, until: datetime) -> str:
        """A signature for the container and its blobs; Azure names permissions by r, a, c, w, d and l."""
        expiry = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        resource = f"/blob/{self.access_key}/{self.bucket}"
        # The fields of a service SAS in their order. Not used: a start, a policy, addresses, a protocol, a snapshot, an
        # encryption scope, and the five headers that an answer could be given.
        fields = [permissions, "", expiry, resource, "", "", "", _API_VERSION, "c", *[""] * 7]
        given = {"sv": _API_VERSION, "sr": "c", "sp": permissions, "se": expiry}
        return urlencode({**given, "sig": self._signed("\n".join(fields))})

    def _signature(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
        """Azure's shared key signature of a request without a body."""
        canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        resource = f"/{self.access_key}{quote(path)}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        unused = "\n" * 12  # the standard headers, of which such a request has none
        return self._signed(f"{method}{unused}{canonical}{resource}")

    def _signed(self, text: str) -> str:
        key = base64.b64decode(self.secret_key)
        return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
