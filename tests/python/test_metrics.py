"""The metrics of both daemons, checked with promtool and against the example dashboard."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import re
import subprocess
import textwrap
import threading
import time
import urllib.request
from typing import Any

import larder
import pytest
import yaml
from allocator_process import Allocator, node_report
from http_api import UnixConnection
from program import hold_port


def allocator_metrics(allocator: Allocator) -> str:
    """The allocator's metrics after enough reports for every metric to appear."""
    allocator.ask("POST", "/v1/jobs", {"name": "vision", "ideal_bytes_per_second": 4e8})
    report = node_report('no"de\\\n')
    for _ in range(3):
        assert allocator.ask("POST", "/v1/reports", report).status == 200
        report["jobs"][0]["bytes"] += 10**9
        report["jobs"][0]["busy_s"] += 3.0
        time.sleep(0.01)
    allocator.ask("PUT", "/v1/datasets/images/pin", {"bytes": 10**9})
    return allocator.ask("GET", "/metrics").body.decode()


def daemon_metrics(raw: Any) -> str:
    """The daemon's metrics while a job that has read an epoch is connected."""
    with larder.Loader(**raw.options(batch_size=16)) as loader:
        for _ in loader:
            pass
        connection = UnixConnection(raw.daemon.state / "admin.sock")
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
    return text


def families(text: str) -> dict[str, str]:
    """The types of the metrics by name."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


@pytest.fixture
def texts(allocator: Allocator, raw: Any) -> dict[str, str]:
    return {"larder-allocator": allocator_metrics(allocator), "larderd": daemon_metrics(raw)}


def test_promtool_accepts_all_metrics(texts: dict[str, str]) -> None:
    for program, text in texts.items():
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, ""), program


def test_prometheus_keeps_the_jobs_of_the_dashboard(
    allocator: Allocator, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A real Prometheus with the config of docs/allocator.md, which has a label "job" of its own."""
    page = (repository / "docs" / "allocator.md").read_text()
    (written,) = re.findall(r"<<'END'\n(    scrape_configs:\n.*?)^    END$", page, re.M | re.S)
    config = yaml.safe_load(textwrap.dedent(written))
    text = allocator_metrics(allocator).encode()

    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as served, hold_port() as port:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        (scrape,) = config["scrape_configs"]
        del scrape["tls_config"], scrape["authorization"]
        scrape |= {"scheme": "http", "scrape_interval": "1s", "scrape_timeout": "1s"}
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{served.server_port}"]}]
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        address = f"127.0.0.1:{port.getsockname()[1]}"
        with open(tmp_path / "log", "wb") as log:
            prometheus = subprocess.Popen(
                ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"],
                cwd=tmp_path, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            end = time.monotonic() + 120
            jobs: set[str] = set()
            while not jobs:
                assert prometheus.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
                time.sleep(0.1)
                with contextlib.suppress(OSError):
                    query = f"http://{address}/api/v1/query?query=larder_plan_job_ideal_bytes_per_second"
                    with urllib.request.urlopen(query, timeout=30) as answer:
                        jobs = {one["metric"]["job"] for one in json.load(answer)["data"]["result"]}
            assert jobs == {"vision"}
        finally:
            prometheus.kill()
            prometheus.wait()
            served.shutdown()


def test_two_daemons_share_no_metric_name(texts: dict[str, str]) -> None:
    allocator_names, daemon_names = (set(families(text)) for text in texts.values())
    assert allocator_names and daemon_names
    assert not allocator_names & daemon_names
    for name in allocator_names | daemon_names:
        assert re.fullmatch(r"larder(_[a-z0-9]+)+", name), name


def test_only_names_of_counters_end_in_total(texts: dict[str, str]) -> None:
    for text in texts.values():
        for name, kind in families(text).items():
            assert name.endswith("_total") == (kind == "counter"), name


def series_of(expression: str) -> set[str]:
    return set(re.findall(r"\blarder_\w+", expression))


def test_dashboard_names_only_existing_metrics(texts: dict[str, str], repository: pathlib.Path) -> None:
    kinds = {name: kind for text in texts.values() for name, kind in families(text).items()}
    series = set(kinds)
    for name, kind in kinds.items():
        if kind == "histogram":
            series |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    dashboard = json.loads((repository / "tools" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    named = {name for expression in expressions for name in series_of(expression)}
    assert named <= series, named - series
    assert any(name.startswith("larder_plan_") for name in named), "metrics of the allocator are shown"
    assert any(name.startswith("larder_dataset_") for name in named), "metrics of the node daemons are shown"
    for panel in panels:
        for target in panel["targets"]:
            for name in series_of(target["expr"]):
                if kinds.get(name) == "counter":
                    assert re.search(rf"(rate|increase)\({name}\b", target["expr"]), f"{panel['title']}: a rate of {name}"
                labels = re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))
                text = next(text for text in texts.values() if name.removesuffix("_bucket") in families(text))
                for label in labels:
                    assert re.search(rf"^{name}\{{[^}}]*{label}=", text, re.MULTILINE) or label == "instance", (
                        f"{panel['title']}: {name} has no label {label}"
                    )


def test_dashboard_has_unique_ids_and_no_overlapping_panels(repository: pathlib.Path) -> None:
    dashboard = json.loads((repository / "tools" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    squares: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not own & squares, f"{panel['title']} lies on another panel"
        squares |= own
