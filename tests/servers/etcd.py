#!/usr/bin/python3
"""etcd.py [--members N] [--quota-backend-bytes N] [--cert-file FILE --key-file FILE --trusted-ca-file FILE]: runs the
members of one etcd on loopback (1 if not told).

Each member has a loopback address of its own. With the files, a single member at 127.0.0.1 takes TLS only, from clients
with a certificate of this authority. Prints `endpoints`, separated by commas, and `pids` in the same order.
A line of JSON on standard input is a command: {"kill": 0} kills that member with SIGKILL, {"start": 0} starts it again,
{"pause": 0} and {"resume": 0} stop it for a while. The answer is {"pid": ...}. Ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import signal
import ssl
import tempfile
import time
import urllib.error
import urllib.request

import program


class Member:
    def __init__(self, state: pathlib.Path, index: int, tls: ssl.SSLContext | None) -> None:
        self.name = f"m{index}"
        self.state = state
        # Certificates are for one address. Partitions of tests need one for each member.
        address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        if tls:
            address = "127.0.0.1"
        self.tls = tls
        self.held = [program.hold_port(address) for _ in range(2)]
        client, peer = (f"{address}:{held.getsockname()[1]}" for held in self.held)
        self.client = f"{'https' if tls else 'http'}://{client}"
        self.peer = f"http://{peer}"
        self.child: program.Child | None = None

    def start(self, cluster: str, options: list[str]) -> None:
        self.child = program.Child(
            ["etcd", "--name", self.name, "--data-dir", self.state / self.name, "--initial-cluster", cluster,
             "--listen-client-urls", self.client, "--advertise-client-urls", self.client,
             "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
             "--logger", "zap", "--log-level", "warn", "--log-outputs", "stderr",
             # A loaded machine of two processors must not lose its leader by chance.
             "--heartbeat-interval", "200", "--election-timeout", "2000", *options],
            self.state / f"{self.name}.log",
        )  # fmt: skip

    def is_healthy(self) -> bool:
        assert self.child is not None
        self.child.check()
        try:
            with urllib.request.urlopen(f"{self.client}/health", timeout=5, context=self.tls) as answer:
                return json.load(answer)["health"] == "true"
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.process.send_signal(number)
        if number == signal.SIGKILL:
            self.child.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--quota-backend-bytes", type=int)
    for name in ("--cert-file", "--key-file", "--trusted-ca-file"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    quota = arguments.quota_backend_bytes
    options = [] if quota is None else ["--quota-backend-bytes", str(quota)]
    tls = None
    if arguments.cert_file:
        tls = ssl.create_default_context(cafile=arguments.trusted_ca_file)
        tls.load_cert_chain(arguments.cert_file, arguments.key_file)
        options += ["--cert-file", arguments.cert_file, "--key-file", arguments.key_file]
        options += ["--trusted-ca-file", arguments.trusted_ca_file, "--client-cert-auth"]
    program.end_on_sigterm()

    with tempfile.TemporaryDirectory(prefix="larder-etcd-") as directory:
        members = [Member(pathlib.Path(directory), index, tls) for index in range(arguments.members)]
        cluster = ",".join(f"{member.name}={member.peer}" for member in members)

        def answer(line: bytes) -> str:
            ((command, index),) = json.loads(line).items()
            member = members[index]
            if command == "start":
                member.start(cluster, options)
            else:
                numbers = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}
                member.signal(numbers[command])
            assert member.child is not None
            return json.dumps({"pid": member.child.process.pid})

        try:
            for member in members:
                member.start(cluster, options)
            while not all(member.is_healthy() for member in members):
                time.sleep(0.05)
            program.announce(
                endpoints=",".join(member.client for member in members),
                pids=",".join(str(member.child.process.pid) for member in members if member.child),
            )
            program.until_input_closes(answer)
        finally:
            for member in members:
                if member.child is not None:
                    if member.child.process.poll() is None:
                        member.signal(signal.SIGCONT)
                    member.child.stop()


if __name__ == "__main__":
    main()
