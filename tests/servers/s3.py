#!/usr/bin/python3
"""s3.py: an S3 server on a loopback port that the kernel picks. It is S3Proxy, with its own directory.

It refuses requests that are not signed with its secret, and answers to http://localhost:PORT/BUCKET/KEY and to
http://BUCKET.localhost:PORT/KEY. Prints `port`, `key_id`, `secret` and `log`. Ends when its standard input is closed.
S3Proxy is fetched once from Maven's central repository into build/s3proxy; `--install` does only that. It is the only
server that Debian 12 can install without another toolchain and that verifies signatures, answers ranges with 206,
honours If-Match, pages its lists and has public buckets: moto takes any secret, and rclone answers ranges with 200.
It does not check session tokens and requester-pays; the fault proxy's `requests` show what a client sent of these.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import program
from s3_client import S3Client

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = "classes.jsa"
PROPERTIES = """\
s3proxy.authorization=aws-v2-or-v4
s3proxy.endpoint=http://127.0.0.1:0
s3proxy.identity={key_id}
s3proxy.credential={secret}
s3proxy.virtual-host=localhost
s3proxy.ignore-unknown-headers=true
jclouds.provider=filesystem-nio2
jclouds.identity=unused
jclouds.credential=unused
jclouds.filesystem.basedir={buckets}
"""
# Logs only warnings and the line with the port.
LOGGING = """\
<configuration>
    <appender name="log" class="ch.qos.logback.core.ConsoleAppender">
        <encoder><pattern>%-5level %logger{20} %msg%n</pattern></encoder>
    </appender>
    <logger name="org.gaul.shaded.org.eclipse.jetty.server.AbstractConnector" level="INFO" />
    <root level="WARN"><appender-ref ref="log" /></root>
</configuration>
"""


def install() -> pathlib.Path:
    """The directory of S3Proxy's libraries. Fetches them if they are missing; safe if several processes do so."""
    folder = program.ROOT / "build" / "s3proxy"
    wanted = (HERE / "s3proxy.xml").read_text()
    stamp = folder / "s3proxy.xml"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            fetch(folder)
            stamp.write_text(wanted)
        if not (folder / CLASSES).exists():
            archive_classes(folder)
        return folder / "lib"


def fetch(folder: pathlib.Path) -> None:
    for made in (folder / "lib", folder / CLASSES):
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    ran = subprocess.run(
        ["mvn", "--batch-mode", "--file", HERE / "s3proxy.xml", "dependency:copy-dependencies",
         f"-DoutputDirectory={folder / 'lib'}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode != 0:
        sys.exit(f"s3.py: cannot fetch S3Proxy:\n{(ran.stdout + ran.stderr)[-4000:]}")


def archive_classes(folder: pathlib.Path) -> None:
    """Archives the classes that the server loads, for Java to map: with the archive it starts in half the time."""
    with tempfile.TemporaryDirectory(prefix="larder-s3-", dir=os.environ.get("TMPDIR")) as directory:
        kept = f"-XX:ArchiveClassesAtExit={folder / CLASSES}"
        server, _ = start(folder / "lib", pathlib.Path(directory), "key", "secret", kept)
        server.stop()


def start(
    libraries: pathlib.Path, state: pathlib.Path, key_id: str, secret: str, *java_options: str
) -> tuple[program.Child, int]:
    """Starts the server. Returns it and its port."""
    buckets = state / "buckets"
    buckets.mkdir()
    (state / "s3proxy.properties").write_text(PROPERTIES.format(key_id=key_id, secret=secret, buckets=buckets))
    (state / "logback.xml").write_text(LOGGING)
    log = state / "s3proxy.log"
    # With only the first compiler and one collector thread it starts in half the time, and sends files as fast.
    server = program.Child(
        ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", *java_options,
         f"-Dlogback.configurationFile={state / 'logback.xml'}", "-cp", f"{libraries}/*",
         "org.gaul.s3proxy.Main", "--properties", state / "s3proxy.properties"],
        log,
    )  # fmt: skip
    try:
        while not (found := re.search(r"Started ServerConnector.*\{127\.0\.0\.1:(\d+)\}", log.read_text())):
            server.check()
            time.sleep(0.02)
    except BaseException:
        server.stop()
        raise
    return server, int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true", help="fetch S3Proxy if need be, and end")
    parser.add_argument("--key-id", default="LARDERTESTKEY")
    parser.add_argument("--secret", help="default: a random one")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket")
    parser.add_argument("--public", action="store_true", help="anybody may read these buckets")
    parser.add_argument("--upload", type=pathlib.Path, metavar="DIRECTORY", help="upload these files into each bucket")
    arguments = parser.parse_args()
    libraries = install()
    if arguments.install:
        return
    program.end_on_sigterm()

    secret = arguments.secret or secrets.token_hex(20)
    with tempfile.TemporaryDirectory(prefix="larder-s3-", dir=os.environ.get("TMPDIR")) as directory:
        state = pathlib.Path(directory)
        kept = f"-XX:SharedArchiveFile={libraries.parent / CLASSES}"
        server, port = start(libraries, state, arguments.key_id, secret, kept)
        try:
            client = S3Client(port, arguments.key_id, secret)
            for bucket in arguments.bucket:
                client.create_bucket(bucket)
                if arguments.upload:
                    client.upload(bucket, arguments.upload)
                if arguments.public:
                    client.make_public(bucket)
                    for keys in client.pages(bucket):
                        for key in keys:
                            client.make_public(bucket, key)
            client.close()
            program.announce(port=port, key_id=arguments.key_id, secret=secret, log=state / "s3proxy.log")
            program.until_input_closes()
        finally:
            server.stop(signal.SIGKILL)  # there is nothing to save


if __name__ == "__main__":
    main()
