#!/usr/bin/python3
"""nginx.py DIRECTORY: serves a directory with nginx over http and https, on ports that the kernel picks, of loopback.

With `--upstream PORT` it instead forwards to a server at that loopback port, and adds TLS.

Prints `http` and `https` (the ports), `authority` (the certificate to trust, made for this run) and `log` (one JSON
object per request). Ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import pwd
import socket
import subprocess
import tempfile

import program

CONFIGURATION = """\
daemon off;
worker_processes 1;
{user}
pid {state}/nginx.pid;
error_log {state}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    default_type application/octet-stream;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {state}/temp-body;
    proxy_temp_path {state}/temp-proxy;
    fastcgi_temp_path {state}/temp-fastcgi;
    uwsgi_temp_path {state}/temp-uwsgi;
    scgi_temp_path {state}/temp-scgi;
    log_format requests escape=json '{{"method":"$request_method","target":"$request_uri","range":"$http_range",'
        '"status":$status,"body_bytes":$body_bytes_sent,"connection":$connection,'
        '"connection_requests":$connection_requests,"protocol":"$server_protocol"}}';
    access_log {state}/requests.log requests;
    server {{
        listen {address}:{http};
        listen {address}:{https} ssl {http2};
        ssl_certificate {state}/server.pem;
        ssl_certificate_key {state}/server.key;
        root {directory};
        {directives}
    }}
}}
"""

# Hosts and paths are forwarded unchanged: the upstream may verify signatures over them.
UPSTREAM = """\
location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_max_temp_file_size 0;
        }}"""


def make_certificates(state: pathlib.Path) -> None:
    """Makes a new authority, and a certificate signed by it for this machine's loopback addresses."""

    def request(name: str, subject: str, *more: str) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-keyout", state / f"{name}.key", "-out", state / f"{name}.pem", "-subj", f"/CN={subject}", *more],
            check=True, capture_output=True,
        )  # fmt: skip

    request("authority", "An authority for one test")
    request(
        "server", "localhost", "-CA", str(state / "authority.pem"), "-CAkey", str(state / "authority.key"),
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--address", default="127.0.0.1", help="where to listen, in place of loopback")
    parser.add_argument("--no-ranges", action="store_true", help="answer every request with the whole file")
    parser.add_argument("--no-http2", action="store_true", help="HTTP/1.1 on the TLS port too")
    parser.add_argument("--upstream", type=int, metavar="PORT", help="pass all requests on to it")
    parser.add_argument("--directive", action="append", default=[], help="one more line of the server block")
    arguments = parser.parse_args()
    program.end_on_sigterm()

    with tempfile.TemporaryDirectory(prefix="larder-nginx-") as directory:
        state = pathlib.Path(directory)
        make_certificates(state)
        # nginx inherits sockets that are already listening, as it does in an upgrade of its binary.
        sockets = [socket.create_server((arguments.address, 0), backlog=511) for _ in range(2)]
        http, https = (listening.getsockname()[1] for listening in sockets)
        directives = arguments.directive + (["max_ranges 0;"] if arguments.no_ranges else [])
        if arguments.upstream:
            directives.append(UPSTREAM.format(port=arguments.upstream))
        (state / "nginx.conf").write_text(
            CONFIGURATION.format(
                state=state,
                # Workers of root run as nobody by default, who may not read a test's directory.
                user=f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else "",
                address=arguments.address,
                http=http,
                https=https,
                http2="" if arguments.no_http2 else "http2",
                directory=arguments.directory.resolve(),
                directives="\n        ".join(directives),
            )
        )
        fds = [listening.fileno() for listening in sockets]
        nginx = program.Child(
            ["nginx", "-p", state, "-c", state / "nginx.conf", "-e", state / "error.log"],
            state / "error.log",
            pass_fds=fds,
            env=os.environ | {"NGINX": "".join(f"{fd};" for fd in fds), "PATH": "/usr/sbin:/usr/bin:/bin"},
        )
        try:
            for listening in sockets:
                listening.close()
            # An answer shows that nginx runs; a connection alone would only show that the socket listens.
            with contextlib.suppress(OSError), socket.create_connection((arguments.address, http), timeout=30) as connection:
                connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
                while connection.recv(4096):  # to the end: by then the request is in the log, too
                    pass
            nginx.check()
            (state / "requests.log").write_bytes(b"")
            program.announce(http=http, https=https, authority=state / "authority.pem", log=state / "requests.log")
            program.until_input_closes()
        finally:
            nginx.stop()


if __name__ == "__main__":
    main()
