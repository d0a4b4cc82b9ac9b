#!/usr/bin/python3
"""google_tokens.py: gives out OAuth tokens, as Google's token server does for a service account's assertion at /token, and
as a machine's metadata service does (GCE_METADATA_HOST).

An assertion is verified by PyJWT: its signature, audience, issuer, scope and times. A token contains the second at which
it expires, for a proxy with `--expiring-tokens` (fault_proxy.py).

Prints `port`, which the kernel picked, and `file`, the service account's file with a key made for this process. Ends when
its standard input is closed. Input lines: {"do": "counts"} is answered by the number of tokens given by each way;
{"do": "refuse", "error": NAME} makes the token server refuse all assertions from then on.
"""

from __future__ import annotations

import argparse
import collections
import http.server
import json
import os
import pathlib
import secrets
import tempfile
import threading
import time
import urllib.parse

import jwt
import program
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

EMAIL = "reader@larder-test.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


class Service(http.server.ThreadingHTTPServer):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.expires_s = arguments.expires_s
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = secrets.token_hex(20)
        self.token_uri = arguments.token_uri or f"http://localhost:{self.server_port}/token"
        self.given: collections.Counter[str] = collections.Counter()
        self.refusal = ""
        self.lock = threading.Lock()

    def account(self) -> dict[str, str]:
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": "larder-test",
            "private_key_id": self.key_id,
            "private_key": pem.decode(),
            "client_email": EMAIL,
            "token_uri": self.token_uri,
        }

    def why_refused(self, form: dict[str, list[str]]) -> str:
        """The name of the error; empty: the assertion is good."""
        if self.refusal:
            return self.refusal
        if form.get("grant_type") != [GRANT]:
            return "unsupported_grant_type"
        try:
            assertion = form["assertion"][0]
            claims = jwt.decode(assertion, self.key.public_key(), algorithms=["RS256"], audience=self.token_uri,
                                options={"require": ["exp", "iat", "iss", "aud"]})  # fmt: skip
            header = jwt.get_unverified_header(assertion)
        except (jwt.PyJWTError, KeyError):
            return "invalid_grant"
        good = claims["iss"] == EMAIL and claims["scope"] == SCOPE and claims["exp"] - claims["iat"] <= 3600
        return "" if good and header["kid"] == self.key_id else "invalid_grant"

    def answer(self, command: dict[str, str]) -> object:
        if command["do"] == "refuse":
            self.refusal = command["error"]
        with self.lock:
            return self.given

    def token(self, way: str) -> dict[str, object]:
        with self.lock:
            self.given[way] += 1
        token = f"expires-{int(time.time()) + self.expires_s}-{secrets.token_hex(16)}"
        return {"access_token": token, "expires_in": self.expires_s, "token_type": "Bearer"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def _answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode())
        if self.headers.get("Content-Type") != "application/x-www-form-urlencoded":
            return self._answer(400, {"error": "invalid_request"})
        # The request of a client that takes this server for its proxy has a whole URL.
        if self.path not in ("/token", self.server.token_uri):
            return self._answer(404, {})
        error = self.server.why_refused(form)
        if error:  # repeats what was sent, as no server should
            return self._answer(400, {"error": error, "error_description": form.get("assertion", [""])[0]})
        self._answer(200, self.server.token("assertion"))

    def do_GET(self) -> None:
        if self.path != METADATA_PATH or self.headers.get("Metadata-Flavor") != "Google":
            return self._answer(403, {})
        self._answer(200, self.server.token("metadata"))

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: tests ask for the counts instead."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--expires-s", type=int, default=3600)
    parser.add_argument("--token-uri", default="", help="the URL in the file; default: this server's")
    arguments = parser.parse_args()
    program.end_on_sigterm()

    service = Service(arguments)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="larder-google-", dir=os.environ.get("TMPDIR")) as directory:
        file = pathlib.Path(directory) / "account.json"
        file.write_text(json.dumps(service.account()))
        program.announce(port=service.server_port, file=file)
        program.until_input_closes(lambda line: json.dumps(service.answer(json.loads(line))))
    service.shutdown()


if __name__ == "__main__":
    main()
