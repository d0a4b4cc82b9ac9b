#!/usr/bin/python3
"""instance_role.py --key-id ID --secret SECRET: gives out credentials like a cloud machine's metadata service.

It supports both ways that clients know: EC2's, which first needs a token (AWS_EC2_METADATA_SERVICE_ENDPOINT), and a
container's, at /container and below (AWS_CONTAINER_CREDENTIALS_FULL_URI, with a token if wanted).

The session token contains the second at which it expires, for a proxy with `--expiring-tokens` (fault_proxy.py).

Prints `port`, which the kernel picked, and ends when its standard input is closed. The input line {"do": "counts"} is
answered by the number of successful requests of each path.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import http.server
import json
import secrets
import threading

import program

ROLE = "larder-test-role"
_TOKEN_PATH = "/latest/api/token"
_ROLES_PATH = "/latest/meta-data/iam/security-credentials/"


class Service(http.server.ThreadingHTTPServer):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.arguments = arguments
        self.token = secrets.token_hex(16)
        self.given: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()

    def credentials(self) -> dict[str, str]:
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.arguments.expires_s)
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": self.arguments.key_id,
            "SecretAccessKey": self.arguments.secret,
            "Token": self.arguments.session_token or f"expires-{int(expires.timestamp())}-{secrets.token_hex(4)}",
            "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def _answer(self, status: int, text: str = "") -> None:
        if status == 200:
            with self.server.lock:
                self.server.given[self.path] += 1
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        ttl_s = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != _TOKEN_PATH:
            self._answer(404)
        elif not ttl_s.isdigit() or not 1 <= int(ttl_s) <= 21600:
            self._answer(400)
        else:
            self._answer(200, self.server.token)

    def do_GET(self) -> None:
        wanted = self.server.arguments.container_token
        if self.path.startswith("/container"):
            if wanted and self.headers.get("Authorization") != wanted:
                self._answer(401)
            else:
                self._answer(200, json.dumps(self.server.credentials() | {"RoleArn": ROLE}))
        elif self.headers.get("X-aws-ec2-metadata-token") != self.server.token:
            self._answer(401)
        elif self.path == _ROLES_PATH:
            self._answer(200, ROLE)
        elif self.path == _ROLES_PATH + ROLE:
            self._answer(200, json.dumps(self.server.credentials()))
        else:
            self._answer(404)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: tests ask for the counts instead."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--key-id", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--session-token", default="", help="give out this session token only")
    parser.add_argument("--expires-s", type=int, default=3600)
    parser.add_argument("--container-token", default="", help="the token that a container must present")
    arguments = parser.parse_args()
    program.end_on_sigterm()

    service = Service(arguments)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    program.announce(port=service.server_port)
    program.until_input_closes(lambda _: json.dumps(service.given))
    service.shutdown()


if __name__ == "__main__":
    main()
