"""A small S3 client with AWS's Signature Version 4. It fills tests' buckets and sends the requests of other clients."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import http.client
import pathlib
import urllib.parse
import xml.etree.ElementTree
from collections.abc import Iterator, Mapping

_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclasses.dataclass
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


@dataclasses.dataclass
class S3Client:
    """Keeps one connection. Without a key id requests are not signed. `host_style`: the bucket is in the host name."""

    port: int
    key_id: str = ""
    secret: str = ""
    session_token: str = ""
    region: str = "us-east-1"
    host_style: bool = False
    _connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        bucket: str,
        key: str = "",
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        host = f"{bucket}.localhost" if self.host_style else "localhost"
        path = f"/{key}" if self.host_style else f"/{bucket}/{key}" if key else f"/{bucket}"
        path = urllib.parse.quote(path, safe="/-_.~")
        pairs = sorted((query or {}).items())
        text = "&".join(f"{urllib.parse.quote(n, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}" for n, v in pairs)
        all_headers = {"host": f"{host}:{self.port}"} | {name.lower(): value for name, value in (headers or {}).items()}
        if self.key_id:
            self._sign(method, path, text, body, all_headers)
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                self._connection.request(
                    method, f"{path}?{text}" if text else path, body=body or None, headers=all_headers
                )
                response = self._connection.getresponse()
                got = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, got, response.read())
            except (http.client.RemoteDisconnected, BrokenPipeError):  # the server had closed the kept connection
                self.close()
                if attempt == 2:
                    raise
            except BaseException:
                self.close()
                raise
        raise AssertionError

    def _sign(self, method: str, path: str, query: str, body: bytes, headers: dict[str, str]) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        headers["x-amz-date"] = now
        headers["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
        if self.session_token:
            headers["x-amz-security-token"] = self.session_token
        signed = sorted(headers)
        request = "\n".join(
            [method, path, query, *(f"{name}:{headers[name].strip()}" for name in signed), "", ";".join(signed),
             headers["x-amz-content-sha256"]]
        )  # fmt: skip
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self.secret}".encode()
        for part in (now[:8], self.region, "s3", "aws4_request"):
            key = _mac(key, part)
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key_id}/{scope}, SignedHeaders={';'.join(signed)}, "
            f"Signature={_mac(key, text).hex()}"
        )

    def _must(self, answer: Answer) -> Answer:
        assert answer.status // 100 == 2, (answer.status, answer.body[:1000])
        return answer

    def create_bucket(self, bucket: str) -> None:
        self._must(self.ask("PUT", bucket))

    def make_public(self, bucket: str, key: str = "") -> None:
        """Lets anybody list the bucket or, with a key, read that object."""
        self._must(self.ask("PUT", bucket, key, query={"acl": ""}, headers={"x-amz-acl": "public-read"}))

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._must(self.ask("PUT", bucket, key, body=data))

    def get(self, bucket: str, key: str) -> bytes:
        return self._must(self.ask("GET", bucket, key)).body

    def delete(self, bucket: str, key: str) -> None:
        self._must(self.ask("DELETE", bucket, key))

    def upload(self, bucket: str, directory: pathlib.Path, prefix: str = "") -> int:
        """Uploads every file below the directory. Returns the number of files."""
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        for path in files:
            self.put(bucket, prefix + path.relative_to(directory).as_posix(), path.read_bytes())
        return len(files)

    def pages(self, bucket: str, prefix: str = "", page_keys_max: int = 1000) -> Iterator[list[str]]:
        """The keys, one page at a time."""
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(page_keys_max)}
        while True:
            root = xml.etree.ElementTree.fromstring(self._must(self.ask("GET", bucket, query=query)).body)
            yield [key.text or "" for key in root.iterfind(f"{_NAMESPACE}Contents/{_NAMESPACE}Key")]
            if root.findtext(f"{_NAMESPACE}IsTruncated") != "true":
                return
            query["continuation-token"] = root.findtext(f"{_NAMESPACE}NextContinuationToken") or ""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
