"""A small client of Google Cloud Storage's JSON API. It fills tests' buckets."""

from __future__ import annotations

import dataclasses
import http.client
import json
import urllib.parse


@dataclasses.dataclass
class GcsClient:
    """Keeps one connection."""

    port: int
    _connection: http.client.HTTPConnection | None = None

    def _ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("localhost", self.port, timeout=60)
        self._connection.request(method, target, body=body, headers={"Content-Type": "application/octet-stream"})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _must(self, method: str, target: str, body: bytes = b"") -> bytes:
        status, answer = self._ask(method, target, body)
        assert status // 100 == 2, (status, answer[:1000])
        return answer

    def create_bucket(self, bucket: str) -> None:
        self._must("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode())

    def put(self, bucket: str, key: str, data: bytes, content_encoding: str = "") -> None:
        query = {"uploadType": "media", "name": key}
        if content_encoding:
            query["contentEncoding"] = content_encoding
        self._must("POST", f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}", data)

    def get(self, bucket: str, key: str) -> bytes:
        return self._must("GET", f"/download/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}?alt=media")

    def delete(self, bucket: str, key: str) -> None:
        self._must("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}")
