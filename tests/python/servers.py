"""Starts the real servers of tests/servers. Each is a process that ends with the process that started it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from azure_client import AzureClient
from gcs_client import GcsClient
from s3_client import S3Client

HERE = pathlib.Path(__file__).resolve().parent.parent / "servers"


class ServerProgram:
    """One program of tests/servers. It is ready; `values` holds the values that it has printed."""

    def __init__(
        self, *arguments: object, environment: dict[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        name, *rest = map(str, arguments)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, HERE / name, *rest], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | (environment or {}),
        )  # fmt: skip
        self.values: dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == b"ready\n":
                return
            name, _, value = line.decode().rstrip("\n").partition("=")
            self.values[name] = value
        pytest.fail(f"{arguments} ended with {self._process.wait()}")

    def ask(self, command: dict[str, object]) -> object:
        """Writes one line to its standard input and returns its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self) -> int:
        """Stops the program and returns its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            return self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()


@dataclasses.dataclass
class Request:
    """One request in nginx's log."""

    method: str
    target: str
    range: str
    status: int
    body_bytes: int
    connection: int
    connection_requests: int
    protocol: str


class Nginx(ServerProgram):
    def __init__(self, directory: pathlib.Path, *options: str, prefix: Sequence[str] = ()) -> None:
        super().__init__("nginx.py", directory, *options, prefix=prefix)
        self.directory = directory
        self.port = int(self.values["http"])
        self.http = f"http://localhost:{self.port}"
        self.https = f"https://localhost:{self.values['https']}"
        self.authority = pathlib.Path(self.values["authority"])
        self._log = pathlib.Path(self.values["log"])

    def requests(self, at_least: int = 0) -> list[Request]:
        """All requests that nginx has answered. The log has a request only a moment after the client has its answer."""
        for _ in range(500):
            text = self._log.read_text()
            found = [Request(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
            if len(found) >= at_least:
                return found
            time.sleep(0.01)
        raise AssertionError(f"nginx answered {len(found)} requests, not {at_least}")

    def requests_at_rest(self) -> list[Request]:
        """All requests, once the log has stopped growing. The client must be idle."""
        found = self.requests()
        while True:
            time.sleep(0.2)
            now = self.requests()
            if len(now) == len(found):
                return now
            found = now


class S3(ServerProgram):
    """An S3 server. `client` acts as its owner and fills it.

    All others use `endpoint`, which refuses anything but GET and HEAD. A refused request makes `stop` return 3.
    """

    def __init__(self, *options: object) -> None:
        super().__init__("s3.py", *options)
        self.port = int(self.values["port"])
        self._guard = FaultProxy(self.port)
        self.endpoint = self._guard.endpoint
        self.key_id = self.values["key_id"]
        self.secret = self.values["secret"]
        self.client = S3Client(self.port, self.key_id, self.secret)

    def stop(self) -> int:
        refused = self._guard.stop()
        return super().stop() or refused

    def environment(self) -> dict[str, str]:
        """Its credentials, in the environment variables that S3 clients read."""
        return {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1"}

    scheme = "s3"

    def settings(self, endpoint: str = "") -> dict[str, str]:
        """Credentials and endpoint, as each store has them: a client needs nothing but the URL."""
        return self.environment() | {"AWS_ENDPOINT_URL_S3": endpoint or self.endpoint}

    def secrets(self) -> list[str]:
        return [self.secret, "AWS4-HMAC"]


class GoogleTokens(ServerProgram):
    """The server that gives tokens for a service account's file, and a machine's metadata service."""

    def __init__(self, **options: object) -> None:
        super().__init__("google_tokens.py", *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()))
        self.port = int(self.values["port"])
        self.file = pathlib.Path(self.values["file"])

    def account(self) -> dict[str, str]:
        """The environment of a client with the service account."""
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(self.file)}

    def given(self, way: str) -> int:
        """The number of tokens given for an `assertion`, or as the `metadata` service."""
        counts = self.ask({"do": "counts"})
        assert isinstance(counts, dict)
        return counts.get(way, 0)

    def refuse(self, error: str) -> None:
        self.ask({"do": "refuse", "error": error})


class Gcs(ServerProgram):
    """A Google Cloud Storage server. `client` fills it; all others use `endpoint`, which wants a valid token."""

    scheme = "gs"

    def __init__(self) -> None:
        super().__init__("gcs.py")
        self.port = int(self.values["port"])
        self.tokens = GoogleTokens()
        self._guard = FaultProxy(self.port, require_token=True, expiring_tokens=True)
        self.endpoint = self._guard.endpoint
        self.client = GcsClient(self.port)

    def stop(self) -> int:
        refused = self._guard.stop()
        return self.tokens.stop() or super().stop() or refused

    def settings(self, endpoint: str = "") -> dict[str, str]:
        return self.tokens.account() | {"STORAGE_EMULATOR_HOST": endpoint or self.endpoint}

    def secrets(self) -> list[str]:
        private_key = json.loads(self.tokens.file.read_text())["private_key"].splitlines()[5]
        return [private_key, "Bearer", "expires-", "eyJ"]


class Azure(ServerProgram):
    """An Azure Blob server. `client` fills it; all others use `endpoint`, which only reads."""

    scheme = "az"

    def __init__(self) -> None:
        super().__init__("azure.py")
        self.port = int(self.values["port"])
        self.account = self.values["account"]
        self.key = self.values["key"]
        self._guard = FaultProxy(self.port)
        self.endpoint = self._guard.endpoint
        self.client = AzureClient(self.port, self.account, self.key)

    def stop(self) -> int:
        refused = self._guard.stop()
        return super().stop() or refused

    def settings(self, endpoint: str = "", secret: str = "") -> dict[str, str]:
        """`secret`: fields of the connection string; default: the shared key."""
        fields = f"AccountName={self.account};{secret or f'AccountKey={self.key}'}"
        blobs = f"{endpoint or self.endpoint}/{self.account}"
        return {"AZURE_STORAGE_CONNECTION_STRING": f"{fields};BlobEndpoint={blobs}"}

    def secrets(self) -> list[str]:
        return [self.key, self.key[:20], "SharedKey"]


class InstanceRole(ServerProgram):
    """The service that gives a machine or a container its credentials. `counts` says how often each path was served."""

    def __init__(self, s3: S3, **options: object) -> None:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        super().__init__("instance_role.py", f"--key-id={s3.key_id}", f"--secret={s3.secret}", *words)
        self.port = int(self.values["port"])
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def counts(self) -> dict[str, int]:
        got = self.ask({"do": "counts"})
        assert isinstance(got, dict)
        return got


class FaultProxy(ServerProgram):
    def __init__(self, upstream_port: int, **options: object) -> None:
        """`probabilities` is by fault. Other options are those of fault_proxy.py, with underscores."""
        probabilities = options.pop("probabilities", {})
        assert isinstance(probabilities, dict)
        words = [f"--{name.replace('_', '-')}" for name in ("tcp", "expiring_tokens", "require_token") if options.pop(name, False)]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        words += [f"--probability={name}={p}" for name, p in probabilities.items()]
        super().__init__("fault_proxy.py", f"--upstream=127.0.0.1:{upstream_port}", *words)
        self.port = int(self.values["port"])
        self.endpoint = f"http://localhost:{self.port}"

    def counts(self) -> dict[str, object]:
        got = self.ask({"do": "counts"})
        assert isinstance(got, dict)
        return got

    def injected(self) -> dict[str, int]:
        """How often each fault was injected."""
        got = self.counts()["injected"]
        assert isinstance(got, dict)
        return got

    def requests(self) -> list[dict[str, object]]:
        """Method, target, range and the names of the headers of each request."""
        got = self.ask({"do": "requests"})
        assert isinstance(got, list)
        return got

    def set(self, **probabilities: float) -> None:
        """Replaces all fault probabilities with these."""
        self.ask({"do": "set", "probabilities": probabilities})
