"""A small client of Azure Blob Storage with its shared key. It fills tests' containers, and makes SAS tokens."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import email.utils
import hashlib
import hmac
import http.client
import time
import urllib.parse
from collections.abc import Mapping

VERSION = "2021-12-02"


@dataclasses.dataclass
class AzureClient:
    """Keeps one connection."""

    port: int
    account: str
    key: str
    _connection: http.client.HTTPConnection | None = None

    def _signature(self, text: str) -> str:
        mac = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256)
        return base64.b64encode(mac.digest()).decode()

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """`path` is CONTAINER or CONTAINER/BLOB."""
        path = f"/{self.account}/{urllib.parse.quote(path)}"
        more = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": VERSION} | dict(headers or {})
        of_store = "".join(f"{name}:{more[name]}\n" for name in sorted(more) if name.startswith("x-ms-"))
        length = str(len(body)) if body else ""
        standard = "\n".join([method, "", "", length, "", more.get("Content-Type", ""), "", "", "", "", "", ""])
        resource = f"/{self.account}{path}" + "".join(f"\n{k}:{v}" for k, v in sorted((query or {}).items()))
        more["Authorization"] = f"SharedKey {self.account}:" + self._signature(f"{standard}\n{of_store}{resource}")
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPConnection("localhost", self.port, timeout=60)
            try:
                self._connection.request(method, target, body=body, headers=more)
                answer = self._connection.getresponse()
                return answer.status, answer.read()
            except (http.client.RemoteDisconnected, ConnectionError):  # the server had closed the kept connection
                self._connection.close()
                self._connection = None
                if attempt == 2:
                    raise
        raise AssertionError

    def _must(self, *words: object, **options: object) -> bytes:
        status, answer = self.ask(*words, **options)  # type: ignore[arg-type]
        assert status // 100 == 2, (status, answer[:1000])
        return answer

    def create_bucket(self, container: str, public: bool = False) -> None:
        headers = {"x-ms-blob-public-access": "container"} if public else {}
        self._must("PUT", container, query={"restype": "container"}, headers=headers)

    def put(self, container: str, blob: str, data: bytes) -> None:
        headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
        self._must("PUT", f"{container}/{blob}", body=data, headers=headers)

    def get(self, container: str, blob: str) -> bytes:
        return self._must("GET", f"{container}/{blob}")

    def delete(self, container: str, blob: str) -> None:
        self._must("DELETE", f"{container}/{blob}")

    def sas(self, permissions: str = "rl", valid_s: float = 3600) -> str:
        """A SAS token for all containers and blobs of the account."""
        until = datetime.datetime.fromtimestamp(time.time() + valid_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = [self.account, permissions, "b", "co", "", until, "", "", VERSION, "", ""]
        query = {
            "sv": VERSION, "ss": "b", "srt": "co", "sp": permissions, "se": until,
            "sig": self._signature("\n".join(fields)),
        }  # fmt: skip
        return urllib.parse.urlencode(query)
