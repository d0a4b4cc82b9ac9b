"""`larder trace`: what happens to a job's blocks, against a real daemon that reads from real HTTP servers."""

from __future__ import annotations

import base64
import http.server
import json
import os
import pathlib
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import larder
import page
import pytest
from conftest import Daemon
from description import Description
from epochs import wait_until
from google.protobuf import json_format
from http_api import UnixConnection, ask
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from reading_job import ReadingJob
from servers import FaultProxy, Nginx

BLOCKS = 40
BLOCK_BYTES = 50_000
READ_PARTS = {"transfer_wait", "earlier_tries", "connect", "first_byte", "body"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A list of files, a block each."""
    made = tmp_path_factory.mktemp("traced")
    draw = random.Random(5)
    for i in range(BLOCKS):
        (made / f"{i:02}.bin").write_bytes(draw.randbytes(BLOCK_BYTES))
    (made / "all.txt").write_text("".join(f"{i:02}.bin\n" for i in range(BLOCKS)))
    return made


@pytest.fixture
def read() -> Iterator[Callable[..., ReadingJob]]:
    started: list[ReadingJob] = []

    def start(*arguments: Any, **options: Any) -> ReadingJob:
        started.append(ReadingJob(*arguments, **options))
        return started[-1]

    yield start
    for reader in started:
        reader.close()


def trace(daemon: Daemon, job: str, *options: object) -> dict[str, Any]:
    return json.loads(daemon.command("--json", "trace", job, *options))


def begin_trace(daemon: Daemon, job: str, *options: object) -> subprocess.Popen[bytes]:
    """Starts `larder trace` and waits until it records."""
    while True:
        tracing = subprocess.Popen(daemon._command("--json", "trace", job, *options), stdout=subprocess.PIPE)
        while tracing.poll() is None:
            if daemon.try_command("trace", job, "--seconds", "0.001").returncode != 0:
                return tracing
            time.sleep(0.05)
        tracing.communicate()  # refused, since the other command was first


def steps_of(traced: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in traced["steps"]}


def check_order(traced: dict[str, Any]) -> None:
    """A step lies in its block's life, and a part of a read in that read."""
    for block in traced["blocks"]:
        read = None
        for step in block["steps"]:
            assert block["taken_ns"] <= step["began_ns"]
            if step["ended_ns"] is None:
                continue
            assert step["began_ns"] <= step["ended_ns"], block
            if step["step"] in ("remote_read", "peer_read"):
                read = step
            elif step["step"] in READ_PARTS:
                assert read is not None
                assert read["began_ns"] <= step["began_ns"] and step["ended_ns"] <= read["ended_ns"], block
            if block["delivered_ns"] is not None and step["step"] not in ("compress", "disk_write"):
                assert step["ended_ns"] <= block["delivered_ns"], block


def test_wait_for_tokens_shows_when_a_limit_is_set(
    own_daemon: Daemon, serve_directory: Callable[..., Nginx], directory: pathlib.Path, read: Callable[..., ReadingJob]
) -> None:
    server = serve_directory(directory)
    own_daemon.command("dataset", "add", "far", f"{server.http}/all.txt")
    own_daemon.command("job", "limit", "slow", "--rate", "1MB/s", "--burst", "50kB", "--ahead")
    read(own_daemon, "far", "slow")
    traced = trace(own_daemon, "slow", "--blocks", 20, "--seconds", 60)
    check_order(traced)
    assert traced["ended_by"] == "blocks" and len(traced["blocks"]) == 20
    steps = steps_of(traced)
    assert max(steps, key=lambda name: steps[name]["share"] or 0) == "token_wait"
    # A block costs 50 ms of the limit, and several are asked for at a time.
    assert steps["token_wait"]["median_ns"] > 50e6
    assert steps["remote_read"]["count"] == 20 and steps["first_byte"]["count"] == 20
    assert {block["source"] for block in traced["blocks"]} == {"remote"}
    assert {block["tries"] for block in traced["blocks"]} == {1}

    shown = own_daemon.command("trace", "slow", "--blocks", 8, "--seconds", 60)
    assert "STEP" in shown and "token_wait" in shown and "SHARE" in shown and "|####" in shown
    assert "8 blocks of slow in" in shown and "of far, 50.00 kB, from remote: " in shown


def test_paced_remote_shows_its_body(
    own_daemon: Daemon, serve_directory: Callable[..., Nginx], directory: pathlib.Path, read: Callable[..., ReadingJob]
) -> None:
    server = serve_directory(directory, "--directive=limit_rate 20k;")
    own_daemon.command("dataset", "add", "paced", f"{server.http}/all.txt", "--quota-disk", "64MiB")
    own_daemon.command("dataset", "add", "other", f"file://{directory}", "--format", "raw")
    with larder.Loader("other", socket=own_daemon.socket, job="train", batch_size=1) as loader:
        next(iter(loader))
    tracing = begin_trace(own_daemon, "train", "--blocks", 10, "--seconds", 60)
    read(own_daemon, "paced", "train", epochs=1)  # a dataset that the job opens in mid-trace
    traced = json.loads(tracing.communicate()[0])
    assert {block["dataset"] for block in traced["blocks"]} == {"paced"}
    check_order(traced)
    steps = steps_of(traced)
    parts = READ_PARTS & set(steps)
    assert max(parts, key=lambda name: steps[name]["share"]) == "body"
    assert steps["body"]["share"] <= steps["remote_read"]["share"]
    assert {block["admitted"] for block in traced["blocks"]} == {"disk"}
    assert steps["disk_write"]["count"] == 10 and steps["disk_write"]["share"] is None


def test_failed_tries_show(
    own_daemon: Daemon, serve_directory: Callable[..., Nginx], directory: pathlib.Path, read: Callable[..., ReadingJob],
    fault_proxy: Callable[..., FaultProxy],
) -> None:  # fmt: skip
    proxy = fault_proxy(serve_directory(directory).port)
    own_daemon.command("dataset", "add", "flaky", f"{proxy.endpoint}/all.txt")
    proxy.set(error_500=0.5)
    read(own_daemon, "flaky", "train")
    traced = trace(own_daemon, "train", "--blocks", 30, "--seconds", 60)
    check_order(traced)
    retried = [block for block in traced["blocks"] if block["tries"] > 1]
    assert retried
    for block in retried:
        assert "earlier_tries" in [step["step"] for step in block["steps"]]


def test_hits_show_where_they_are_read(own_daemon: Daemon, directory: pathlib.Path, read: Callable[..., ReadingJob]) -> None:
    own_daemon.command("dataset", "add", "disk", f"file://{directory}", "--quota-disk", "64MiB", "--format", "raw")
    own_daemon.command("dataset", "add", "memory", f"file://{directory}", "--quota-memory", "64MiB", "--format", "raw")
    for dataset in ("disk", "memory"):
        own_daemon.command("dataset", "warm", dataset)
        read(own_daemon, dataset, f"of-{dataset}")
    on_disk = trace(own_daemon, "of-disk", "--blocks", 50)
    check_order(on_disk)
    assert {block["source"] for block in on_disk["blocks"]} == {"disk"}
    assert steps_of(on_disk)["disk_read"]["count"] == 50
    in_memory = trace(own_daemon, "of-memory", "--blocks", 50)
    assert {block["source"] for block in in_memory["blocks"]} == {"memory"}
    assert in_memory["steps"] == []


def test_otlp_file_is_what_collectors_read(own_daemon: Daemon, directory: pathlib.Path, read: Callable[..., ReadingJob], tmp_path: pathlib.Path) -> None:  # fmt: skip
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-disk", "64MiB", "--format", "raw")
    read(own_daemon, "data", "train")
    file = tmp_path / "trace.json"
    # More blocks than one request has.
    traced = trace(own_daemon, "train", "--blocks", 700, "--seconds", 60, "--otlp", file)
    assert len(traced["blocks"]) == 700
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    check_requests([parsed(json.loads(line)) for line in lines], traced)


class Collector:
    """A collector that takes OTLP/JSON by HTTP. `status` and `answer` are what it answers."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, str, bytes]] = []
        self.status, self.answer = 200, b"{}"
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies.append((self.path, self.headers["Content-Type"], body))
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(collector.answer)))
                self.end_headers()
                self.wfile.write(collector.answer)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.stop()


def test_otlp_is_sent_to_a_collector(
    own_daemon: Daemon, serve_directory: Callable[..., Nginx], directory: pathlib.Path, read: Callable[..., ReadingJob],
    collector: Collector,
) -> None:  # fmt: skip
    own_daemon.command("dataset", "add", "data", f"{serve_directory(directory).http}/all.txt")
    read(own_daemon, "data", "train")
    traced = trace(own_daemon, "train", "--blocks", 50, "--otlp", collector.url)
    ((path, content_type, body),) = collector.bodies
    assert path == "/v1/traces" and content_type == "application/json"
    assert {"remote_read", "first_byte"} <= set(steps_of(traced))
    check_requests([parsed(json.loads(body))], traced)

    trace(own_daemon, "train", "--blocks", 5, "--otlp", f"{collector.url}/other/path")
    assert collector.bodies[-1][0] == "/other/path"
    collector.answer = b'{"partialSuccess": {"rejectedSpans": "7", "errorMessage": "too many"}}'
    refused = own_daemon.try_command("trace", "train", "--blocks", 5, "--otlp", collector.url)
    assert refused.returncode != 0 and "dropped 7 spans: too many" in refused.stderr
    collector.status, collector.answer = 503, b"{}"
    refused = own_daemon.try_command("trace", "train", "--blocks", 5, "--otlp", collector.url)
    assert refused.returncode != 0 and "503" in refused.stderr
    refused = own_daemon.try_command("trace", "train", "--blocks", 5, "--otlp", "/nowhere/trace.json")
    assert refused.returncode != 0 and "/nowhere/trace.json" in refused.stderr


def test_commands_of_the_page_work_as_written(
    own_daemon: Daemon, directory: pathlib.Path, read: Callable[..., ReadingJob], collector: Collector,
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-disk", "64MiB", "--format", "raw")
    read(own_daemon, "data", "resnet50")
    environment = os.environ | {
        "PATH": f"{larder_bin}:{os.environ['PATH']}", "LARDER_ADMIN_SOCKET": str(own_daemon.state / "admin.sock")
    }  # fmt: skip
    commands = [command.text for command in page.commands(repository / "docs" / "trace.md")]
    assert len(commands) == 5
    for command in commands:
        local = command.replace("http://127.0.0.1:4318", collector.url)
        ran = subprocess.run(["bash", "-c", local], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0 and "disk_read" in ran.stdout, (command, ran)
    assert (tmp_path / "trace.json").stat().st_size > 0 and collector.bodies


def parsed(request: dict[str, Any]) -> ExportTraceServiceRequest:
    """OTLP's JSON is that of protocol buffers, but for ids, which are hex."""
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
                    if key in span:
                        raw = bytes.fromhex(span[key])
                        assert len(raw) == size and any(raw)
                        span[key] = base64.b64encode(raw).decode()
                assert isinstance(span["startTimeUnixNano"], str) and isinstance(span["endTimeUnixNano"], str)
    return json_format.Parse(json.dumps(request), ExportTraceServiceRequest())


def check_requests(requests: list[ExportTraceServiceRequest], traced: dict[str, Any]) -> None:
    """The spans are those of the trace: a root for each block, and a child for each step."""
    spans: list[Span] = []
    for request in requests:
        (resource,) = request.resource_spans
        attributes = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
        assert attributes["service.name"] == "larderd" and attributes["host.name"] and attributes["service.version"]
        (scope,) = resource.scope_spans
        spans += scope.spans
    roots = [span for span in spans if not span.parent_span_id]
    assert len(roots) == len(traced["blocks"]) == len({span.trace_id for span in roots})
    assert len({span.span_id for span in spans}) == len(spans)
    assert len(spans) == sum(1 + len(block["steps"]) for block in traced["blocks"])
    children: dict[bytes, list[Span]] = {}
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        if span.parent_span_id:
            assert by_id[span.parent_span_id].trace_id == span.trace_id
            children.setdefault(span.trace_id, []).append(span)
            assert by_id[span.parent_span_id].name == ("remote_read" if span.name in READ_PARTS else "larder.block")
    began = traced["began_unix_ns"]
    for root, block in zip(roots, traced["blocks"], strict=True):
        attributes = {attribute.key: attribute.value for attribute in root.attributes}
        assert root.name == "larder.block" and root.kind == Span.SPAN_KIND_INTERNAL
        assert attributes["larder.job"].string_value == "train"
        assert attributes["larder.block.index"].int_value == block["block"]
        assert attributes["larder.block.size"].int_value == block["bytes"]
        assert root.start_time_unix_nano == began + block["taken_ns"]
        if block["delivered_ns"] is not None:
            assert root.end_time_unix_nano == began + block["delivered_ns"]
        assert root.status.code == (Status.STATUS_CODE_UNSET if block["status"] in ("ok", None) else Status.STATUS_CODE_ERROR)
        mine = children.get(root.trace_id, [])
        assert [span.name for span in mine] == [step["step"] for step in block["steps"]]
        for span, step in zip(mine, block["steps"], strict=True):
            assert span.start_time_unix_nano == began + step["began_ns"]
            assert span.kind == (Span.SPAN_KIND_CLIENT if span.name == "remote_read" else Span.SPAN_KIND_INTERNAL)


def test_two_jobs_are_traced_at_once_and_one_job_once(
    own_daemon: Daemon, directory: pathlib.Path, read: Callable[..., ReadingJob]
) -> None:
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-memory", "64MiB", "--format", "raw")
    jobs = [f"job{i}" for i in range(5)]
    loaders = [larder.Loader("data", socket=own_daemon.socket, job=job, batch_size=1) for job in jobs]
    for loader in loaders:
        next(iter(loader))
    target = "/v1/jobs/{}/trace"

    def post(job: str, **body: object) -> Any:
        return ask(UnixConnection(own_daemon.state / "admin.sock"), "POST", target.format(job), body)

    answers: dict[str, Any] = {}

    # The jobs read nothing more, so each trace lasts its time. The traces of job4 may be first.
    def trace_until_answered(job: str) -> None:
        while (answer := post(job, seconds=4)).status == 409:
            pass
        answers[job] = answer

    threads = [threading.Thread(target=trace_until_answered, args=(job,)) for job in jobs[:4]]
    for thread in threads:
        thread.start()
    refusals: list[Any] = []
    wait_until(lambda: refusals.append(post("job4", seconds=0.001)) or refusals[-1].status == 409)
    assert "4 traces run on this node" in refusals[-1].json()["error"]["message"]
    for thread in threads:
        thread.join()
    assert [answers[job].status for job in jobs[:4]] == [200] * 4
    assert all(answers[job].json()["ended_by"] == "time" for job in jobs[:4])
    assert post("job4", seconds=0.001).status == 200, "there is room again"


def test_trace_ends_with_its_client(own_daemon: Daemon, directory: pathlib.Path) -> None:
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-memory", "64MiB", "--format", "raw")
    loader = larder.Loader("data", socket=own_daemon.socket, job="train", batch_size=1)
    next(iter(loader))
    tracing = begin_trace(own_daemon, "train", "--seconds", 60)
    tracing.terminate()
    tracing.communicate()
    wait_until(lambda: own_daemon.try_command("trace", "train", "--seconds", "0.001").returncode == 0)


def test_job_that_ends_in_mid_trace_leaves_its_blocks(
    own_daemon: Daemon, directory: pathlib.Path, read: Callable[..., ReadingJob]
) -> None:
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-memory", "64MiB", "--format", "raw")
    read(own_daemon, "data", "train", epochs=1).wait()
    tracing = begin_trace(own_daemon, "train", "--seconds", 5)
    read(own_daemon, "data", "train", epochs=1).wait()
    traced = json.loads(tracing.communicate()[0])
    assert traced["ended_by"] == "time"
    assert sorted(block["block"] for block in traced["blocks"]) == list(range(BLOCKS + 1)), "all.txt is one, too"


def test_daemon_ends_during_a_trace(own_daemon: Daemon, directory: pathlib.Path) -> None:
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-memory", "64MiB", "--format", "raw")
    loader = larder.Loader("data", socket=own_daemon.socket, job="train", batch_size=1)
    next(iter(loader))
    tracing = begin_trace(own_daemon, "train", "--seconds", 60)
    own_daemon.end()
    tracing.communicate(timeout=30)
    assert tracing.returncode != 0


@pytest.mark.parametrize("job", ["../../status", "a\x1b[31mb", "(scan)", "%00", "x" * 300, "né", "a/b?c=d#e", "no-such-job"])
def test_hostile_and_unknown_names_are_refused(daemon: Daemon, job: str) -> None:
    refused = daemon.try_command("trace", "--seconds", "0.001", "--", job)
    assert refused.returncode != 0 and refused.stdout == ""
    assert daemon.command("jobs")


def test_jobs_of_odd_names_are_traced(own_daemon: Daemon, directory: pathlib.Path) -> None:
    own_daemon.command("dataset", "add", "data", f"file://{directory}", "--quota-memory", "64MiB", "--format", "raw")
    job = "a/b?c=d#e%41<script>"
    loader = larder.Loader("data", socket=own_daemon.socket, job=job, batch_size=1)
    next(iter(loader))
    assert trace(own_daemon, job, "--seconds", "0.01")["job"] == job
    assert "asked for no block" in own_daemon.command("trace", job, "--seconds", "0.01")


@pytest.mark.parametrize("body", [{"seconds": 0}, {"seconds": 61}, {"seconds": "x"}, {"blocks": 0}, {"blocks": 5001}, {"depth": 1}])
def test_requests_outside_the_limits_are_refused(daemon: Daemon, body: dict[str, object], repository: pathlib.Path) -> None:
    answer = ask(UnixConnection(daemon.state / "admin.sock"), "POST", "/v1/jobs/train/trace", body)
    assert answer.status == 400, answer
    description = Description(repository / "docs" / "openapi" / "larderd.yaml")
    assert not description.fits_request("POST", "/v1/jobs/train/trace", body)
