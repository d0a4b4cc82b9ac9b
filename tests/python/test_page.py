"""The allocator's and the daemon's page in a real browser, Debian's Chromium without a window."""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import larder
import page
import pytest
from allocator_process import Allocator, node_report, reporting
from browser import Browser
from conftest import Daemon
from epochs import wait_until
from http_api import ask
from program import hold_port
from reading_job import ReadingJob

TOKENS = {role: f"{role}-0123456789abcdef" for role in ("viewer", "submitter", "operator")}
HOSTILE = '<img src=x onerror="document.title=1">&lt;b&gt;'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.end()


@pytest.fixture(autouse=True)
def no_token_is_left(browser: Browser) -> Iterator[None]:
    yield
    if not browser.driver.current_url.startswith("http"):
        return
    browser.run("sessionStorage.clear()")
    browser.driver.get("about:blank")  # else it would go on asking
    browser.hosts()
    browser.complaints()


def job(name: str, dataset: str, **changes: object) -> dict[str, object]:
    report = dict(node_report()["jobs"][0])  # type: ignore[index, call-overload]
    return report | {"name": name, "dataset": dataset} | changes


def dataset(name: str, size: int, cached: int) -> dict[str, object]:
    return {
        "name": name, "size_bytes": size, "quota_memory_bytes": 0, "quota_disk_bytes": cached,
        "cached_memory_bytes": 0, "cached_disk_bytes": cached,
    }  # fmt: skip


class Site:
    """An allocator that runs jobs on four GPUs, and a node that reports two jobs."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, *options: str) -> None:
        tokens = directory / "tokens"
        tokens.write_text("".join(f"{role} a-{role} {token}\n" for role, token in TOKENS.items()))
        tokens.chmod(0o600)
        self.programs = programs
        self.directory = directory
        self.options = (
            "--state", str(directory / "state"), "--access.tokens", str(tokens), "--scheduler.gpus", "4",
            "--lease", "1 s", *options,
        )  # fmt: skip
        self.port = 0
        self.report = node_report(
            datasets=[dataset("images", 200 * 10**9, 50 * 10**9), dataset("text", 80 * 10**9, 20 * 10**9)],
            jobs=[job("vision", "images"), job("language", "text")],
        )
        self.allocator = self.start()

    def start(self) -> Allocator:
        log = self.directory / "allocator.log"
        log.unlink(missing_ok=True)
        started = Allocator(self.programs, self.directory, "--listen", f"127.0.0.1:{self.port}", *self.options)
        found = re.search(r"listening .*port=(\d+)", log.read_text())
        assert found
        self.port = int(found[1])
        return started

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def submit(self, name: str, gpus: int = 1, command: tuple[str, ...] = ("sleep", "1000"), **more: object) -> None:
        body = {"jobs": [{"name": name, "command": list(command), "directory": "/", "gpus": gpus, **more}]}
        answer = self.allocator.ask("POST", "/v1/queue", body)
        assert answer.status == 200, answer.body

    def active(self) -> list[dict[str, Any]]:
        return [each for each in self.allocator.ask("GET", "/v1/queue").json()["jobs"] if "ended_unix_s" not in each]

    def end(self) -> None:
        """Ends the jobs, which would run on without the allocator, and then the allocator."""
        for each in self.active():
            self.allocator.ask("DELETE", f"/v1/queue/{each['id']}")
        wait_until(lambda: not self.active())
        assert self.allocator.end() == 0, self.allocator.log.read_text()


@contextlib.contextmanager
def work(report: dict[str, object]) -> Iterator[None]:
    """Lets the counters of the report's jobs rise: their f* and their rates become known."""
    ends = threading.Event()

    def go_on() -> None:
        while not ends.wait(0.25):
            for each in report["jobs"]:  # type: ignore[attr-defined]
                each["bytes"] += 10**8
                each["busy_s"] += 0.1 * each["ranks"]
                each["remote_bytes"] += 6 * 10**7

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.fixture
def site(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Site]:
    made = Site(larder_bin, tmp_path, "--access.anyone_reads", "true")
    with work(made.report), reporting(made.allocator, made.report):
        yield made
    made.end()


def give_token(browser: Browser, token: str) -> None:
    field = browser.until(lambda: browser.run("return document.querySelector('input[name=token]')"), "no field")
    field.clear()  # type: ignore[attr-defined]
    field.send_keys(token)  # type: ignore[attr-defined]
    browser.press("Show the page")


def sign_in(browser: Browser, site: Site, role: str) -> None:
    browser.open(site.url)
    browser.run("sessionStorage.setItem('larder-token', arguments[0])", TOKENS[role])
    browser.driver.refresh()
    browser.until_text(".who", f"a-{role}")


def test_jobs_show_rates_and_limits_from_the_allocator(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    browser.until(lambda: "/s" in browser.row("Jobs", "vision").get("f", ""), "no measured rate")
    assert site.allocator.ask("PUT", "/v1/remote", {"bytes_per_second": 1e8}).status == 200
    browser.until(lambda: "remote" in browser.row("Jobs", "vision").get("Limited by, since", ""), "not bound by the remote")
    known = {each["name"]: each for each in site.allocator.ask("GET", "/v1/jobs").json()["jobs"]}
    assert known["vision"]["limited_by"]["resource"] == "remote"
    assert browser.row("Jobs", "language")["Dataset"] == "text"
    assert browser.text(".connection") == "live"
    assert browser.hosts() == {f"127.0.0.1:{site.port}"}
    assert browser.complaints() == []


def test_every_section_shows_what_the_allocator_knows(browser: Browser, site: Site) -> None:
    site.submit("trainer", gpus=3)
    site.submit("next", gpus=2)
    site.submit("short", command=("true",))
    assert site.allocator.ask("PUT", "/v1/datasets/text/pin", {"bytes": 20 * 10**9}).status == 200
    browser.open(site.url)
    for section in ("Jobs", "Why is my job waiting?", "Datasets", "Remote bandwidth", "Nodes", "Tenants", "History"):
        browser.until_text("main", section)
    browser.until(lambda: "needs 2 GPUs at once" in browser.row("Waiting jobs", "next").get("Why", ""), "no reason")
    assert browser.row("Waiting jobs", "next")["Place"] == "1"
    assert "waits for GPUs" in browser.row("Jobs", "next")["Limited by, since"]
    images = browser.row("Datasets", "images")
    assert "25.0 %" in images["c/d"] and images["In force"] == "50.0 GB" and images["Pinned"] == "–"
    browser.until(lambda: browser.row("Datasets", "text").get("Pinned") == "20.0 GB", "no pin")
    assert "1.00 GB/s" in browser.text("#remote")
    node = browser.row("Nodes", "a")
    assert node["State"] == "reports" and node["Faults"] == "none" and node["GPUs"] == "8"
    browser.until(lambda: browser.row("Ended jobs", "short").get("Outcome") == "succeeded", "no ended job")
    tenant = browser.row("Tenants", "default")
    assert (tenant["Used"], tenant["Quota"], tenant["Borrowed"]) == ("3", "all", "0")
    assert any(event["Event"] == "pin set" for event in browser.cells("Events"))
    browser.press("short")
    browser.until_text("#job-title", "short")
    browser.until_text("#log", "submitted")
    assert browser.complaints() == []


def test_job_page_shows_rates_and_decisions(browser: Browser, site: Site) -> None:
    site.submit("vision", gpus=2)
    browser.open(site.url)
    browser.until(lambda: browser.row("Jobs", "vision"), "no job")
    browser.press("vision")
    browser.until_text("#job", "f, predicted")
    browser.until(lambda: browser.run("return document.querySelector('#rates canvas') !== null"), "no chart")
    for line in ("measured f", "predicted f", "f*"):
        browser.until_text("#rates .u-legend", line)
    browser.until_text("#log", "submitted")
    browser.press("← All jobs")
    browser.until_text("main", "Datasets")


def test_operator_tries_a_quota_and_pins_it(browser: Browser, site: Site) -> None:
    assert site.allocator.ask("PUT", "/v1/remote", {"bytes_per_second": 1e8}).status == 200
    sign_in(browser, site, "operator")
    browser.until(lambda: "remote" in browser.row("Jobs", "vision").get("Limited by, since", ""), "not bound by the remote")
    browser.press("What if images had another quota")
    browser.until(lambda: browser.row("Predicted rates", "vision"), "no prediction")
    browser.slide("quota", 0.05)
    browser.until(lambda: browser.row("Predicted rates", "vision").get("Change", "").startswith("−"), "no loss is predicted")
    datasets = {each["name"]: each for each in site.allocator.ask("GET", "/v1/datasets").json()["datasets"]}
    assert "pinned_bytes" not in datasets["images"], "only predicted"
    browser.press("Apply: pin the quota")
    browser.until_text(".said", "pinned to 5.00 GB")
    datasets = {each["name"]: each for each in site.allocator.ask("GET", "/v1/datasets").json()["datasets"]}
    assert datasets["images"]["pinned_bytes"] == 5 * 10**9
    browser.until(lambda: browser.row("Datasets", "images").get("Pinned") == "5.00 GB", "the pin is not shown")


def test_operator_cancels_a_job(browser: Browser, site: Site) -> None:
    site.submit("trainer", gpus=4)
    site.submit("next", gpus=2)
    sign_in(browser, site, "operator")
    browser.press("Cancel next")
    browser.press("Keep as it is")
    browser.press("Cancel next")
    browser.press("Yes")
    browser.until_text(".said", "next is cancelled")
    assert site.allocator.ask("GET", "/v1/queue/next").json()["state"] == "cancelled"


def test_operator_drains_a_node_and_takes_it_back(
    browser: Browser, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    site = Site(larder_bin, tmp_path, "--access.anyone_reads", "true")
    site.submit("trainer", gpus=2)
    machine = site.allocator.ask("GET", "/v1/gpu-nodes").json()["nodes"][0]["node"]
    browser.open(site.url)
    browser.until(lambda: browser.row("GPU nodes", machine).get("Jobs") == "1", "no node with the job")
    assert "Drain" not in browser.text("#gpu-nodes"), "for operators only"
    sign_in(browser, site, "operator")
    browser.press(f"Drain {machine}")
    browser.until_text("dialog", f"Drain node {machine}? It takes no further job")
    browser.press("Yes")
    browser.until_text(".said", f"node {machine} is drained")
    browser.until(lambda: "drained by a-operator" in browser.row("GPU nodes", machine).get("State", ""), "not shown as drained")
    assert browser.row("GPU nodes", machine)["Free"] == "0" and "1 drained" in browser.text("#gpu-nodes")
    site.submit("next")
    why = "on 1 drained node"
    browser.until(lambda: why in browser.row("Waiting jobs", "next").get("Why", ""), "the reason is not shown")
    assert site.allocator.ask("GET", "/v1/queue/trainer").json()["state"] == "running", "it goes on"
    site.allocator.kill()
    site.allocator = site.start()
    browser.until_text(".connection", "live")
    browser.until(lambda: "drained" in browser.row("GPU nodes", machine).get("State", ""), "the restart took it back")
    assert site.allocator.ask("GET", "/v1/queue/next").json()["state"] == "waiting"
    browser.press(f"Undrain {machine}")
    browser.until_text(".said", f"node {machine} takes jobs again")
    browser.until(lambda: browser.row("GPU nodes", machine).get("State") == "takes jobs", "not shown as taken back")
    browser.until(lambda: browser.row("GPU nodes", machine).get("Jobs") == "2", "the job does not start")
    assert any(event["Event"] == "node undrained" for event in browser.cells("Events"))
    site.end()


def test_submitter_is_offered_to_cancel_own_jobs_only(
    browser: Browser, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # An allocator whose jobs a cluster manager runs takes jobs over TCP from any user.
    site = Site(larder_bin, tmp_path, "--scheduler.engine", "agent")
    with reporting(site.allocator, site.report):
        site.submit("trainer", gpus=4)
        site.submit("theirs", gpus=2)
        mine = {"jobs": [{"name": "mine", "command": ["true"], "directory": "/", "gpus": 2}]}
        assert site.allocator.ask_tcp("POST", "/v1/queue", mine, token=TOKENS["submitter"]).status == 200
        sign_in(browser, site, "submitter")
        browser.until(lambda: browser.row("Waiting jobs", "theirs") and browser.row("Waiting jobs", "mine"), "no such jobs")
        buttons = "return [...document.querySelectorAll('#waiting tbody button')].map((each) => each.ariaLabel)"
        assert browser.run(buttons) == ["Cancel mine"]
        browser.press("theirs")
        browser.until_text("#job", f"local user {os.getuid()}")
        assert "Cancel" not in browser.text("#job")
        browser.press("← All jobs")
        browser.press("Cancel mine")
        browser.press("Yes")
        browser.until_text(".said", "mine is cancelled")
    assert site.allocator.end() == 0, "no job runs here"


def test_viewer_looks_and_changes_nothing(browser: Browser, site: Site) -> None:
    site.submit("trainer", gpus=4)
    site.submit("next", gpus=2)
    browser.open(site.url)
    browser.until(lambda: browser.row("Waiting jobs", "next"), "no job waits")
    assert browser.text(".who").startswith("read-only")
    assert "Cancel" not in browser.text("#waiting")
    browser.press("What if images had another quota")
    browser.until_text(".whatif", "Only an operator may apply it")
    assert "Apply" not in browser.text(".whatif .buttons").replace("apply", "")


def test_wrong_token_is_refused_and_the_right_one_is_taken(
    browser: Browser, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    site = Site(larder_bin, tmp_path)
    with reporting(site.allocator, site.report):
        browser.open(site.url)
        browser.until_text("main", "asks for a token")
        assert "vision" not in browser.text("body")
        for token, shown in (
            ("ключ-0123456789abcdef", "A token has only letters, digits"),
            ("wrong-0123456789abcdef", "the token is unknown"),
            (TOKENS["viewer"], "a-viewer"),
        ):
            give_token(browser, token)
            browser.until_text("body", shown)
        browser.until(lambda: browser.row("Jobs", "vision"), "no job")
        assert browser.run("return document.cookie") == ""
        browser.press("Sign out")
        browser.until_text("main", "asks for a token")
        assert "vision" not in browser.text("body")
    site.end()


def test_page_survives_a_restart_of_the_allocator(browser: Browser, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    site = Site(larder_bin, tmp_path, "--access.anyone_reads", "true")
    with reporting(site.allocator, site.report):
        browser.open(site.url)
        browser.until(lambda: browser.row("Jobs", "vision"), "no job")
    site.allocator.kill()
    browser.until_text(".connection", "no answer")
    assert browser.row("Jobs", "vision"), "what it last said is still shown"
    site.report["jobs"] = [job("after", "images")]
    site.allocator = site.start()
    with reporting(site.allocator, site.report):
        browser.until_text(".connection", "live")
        browser.until(lambda: browser.row("Jobs", "after"), "the new state is not shown")
        assert not browser.row("Jobs", "vision")
    site.end()


def test_silent_allocator_is_not_called_live(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    browser.until_text(".connection", "live")
    pid = site.allocator.ask("GET", "/v1/status").json()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        browser.until_text(".connection", "no answer")
        browser.until_text("main", "The daemon does not answer (silent for 5 s)")
    finally:
        os.kill(pid, signal.SIGCONT)
    browser.until_text(".connection", "live")


def test_hidden_tab_keeps_no_stream(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    browser.until_text(".connection", "live")
    show = """
        Object.defineProperty(document, "visibilityState", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));"""
    browser.run(show, "hidden")
    browser.until_text(".connection", "connecting")
    browser.run(show, "visible")
    browser.until_text(".connection", "live")


def test_missing_values_come_last_in_both_orders(browser: Browser, site: Site) -> None:
    site.submit("trainer", gpus=4)
    site.submit("next", gpus=2)
    browser.open(site.url)

    def rated() -> list[bool]:
        return ["/s" in row["f"] for row in browser.cells("Jobs")]

    browser.until(lambda: sorted(rated()) == [False, False, True, True], "not two jobs with rates, and two without")
    for order in ("descending", "ascending"):
        browser.run("document.querySelector('#jobs thead th:nth-child(4) button').click()")
        sorted_by = "return document.querySelector('#jobs thead th:nth-child(4)').ariaSort"
        browser.until(lambda wanted=order: browser.run(sorted_by) == wanted, f"not {order}")
        assert rated() == [True, True, False, False], order


def test_hostile_names_are_text(browser: Browser, site: Site) -> None:
    site.report["jobs"].append(job(HOSTILE, HOSTILE))  # type: ignore[attr-defined]
    site.report["datasets"].append(dataset(HOSTILE, 10**9, 0))  # type: ignore[attr-defined]
    with reporting(site.allocator, node_report(HOSTILE)):
        sign_in(browser, site, "operator")
        for table in ("Jobs", "Datasets", "Nodes"):
            browser.until(lambda name=table: browser.row(name, HOSTILE), f"no such row of {table}")
    browser.press(f"What if {HOSTILE} had another quota")
    browser.until_text(".whatif", "Quota over all nodes")
    browser.press("Close")
    browser.press(f"Remove {HOSTILE}")
    browser.until_text("dialog", f"Remove node {HOSTILE}?")
    browser.press("Yes")
    browser.until_text(".said", f"node {HOSTILE} is removed")
    browser.until(
        lambda: any(HOSTILE in event["What happened"] for event in browser.cells("Events")), "no event names the node"
    )
    browser.press(HOSTILE)
    browser.until(lambda: browser.text("#job-title") == HOSTILE, "the job's page has another title")
    assert browser.run("return document.title") == "Larder"
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    assert browser.hosts() == {f"127.0.0.1:{site.port}"}


def test_policy_forbids_other_hosts_and_inline_script(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    browser.until_text(".connection", "live")
    browser.complaints()
    browser.run(
        """window.violated = new Set();
        document.addEventListener("securitypolicyviolation", (event) => window.violated.add(event.violatedDirective));
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.head.append(script);
        fetch("http://127.0.0.2:1/").catch(() => {});"""
    )
    for directive in ("connect-src", "script-src-elem"):
        browser.until(
            lambda name=directive: browser.run("return window.violated.has(arguments[0])", name), f"{directive} allows it"
        )
    assert browser.run("return document.title") == "Larder"


def test_rows_keep_their_place_and_only_those_in_view_are_drawn(browser: Browser, site: Site) -> None:
    site.report["jobs"] = [job(f"job-{i:04}", "images", bytes=10**9 * (i % 7)) for i in range(1000)]
    browser.open(site.url)
    browser.until_text("#jobs", "1000 running")
    drawn = browser.run("return document.querySelectorAll('#jobs tbody tr').length")
    assert drawn < 60
    press_f = "document.querySelector('#jobs thead th:nth-child(4) button').click()"
    browser.until(lambda: "/s" in browser.row("Jobs", "job-0000").get("f", ""), "no rates")
    browser.run(press_f)
    order = [row["Job"] for row in browser.cells("Jobs")]
    for at, each in enumerate(site.report["jobs"]):  # type: ignore[arg-type]
        each["bytes"] += 10**9 * (at % 50)  # so that their rates differ from now on
    browser.until(lambda: len({row["f"] for row in browser.cells("Jobs")}) > 5, "the rates do not change")
    assert [row["Job"] for row in browser.cells("Jobs")] == order
    browser.run("document.querySelector('#jobs .scroll').scrollTop = 34 * 500")
    browser.until(lambda: [row["Job"] for row in browser.cells("Jobs")][0] != order[0], "it does not scroll")
    field = browser.run("return document.querySelector('#jobs input[type=search]')")
    field.send_keys("job-0777")
    browser.until(lambda: [row["Job"] for row in browser.cells("Jobs")] == ["job-0777"], "it does not filter")


def test_keyboard_reaches_sections_sorting_and_dialogs(browser: Browser, site: Site) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(site.url)
    browser.until(lambda: browser.row("Datasets", "images"), "no dataset")
    body = browser.driver.switch_to.active_element
    names: list[str] = []
    for _ in range(60):
        body.send_keys(Keys.TAB)
        body = browser.driver.switch_to.active_element
        names.append((body.get_attribute("aria-label") or body.text).strip())
        if names[-1].startswith("What if images"):
            break
    assert {"Larder", "Datasets", "Jobs", "vision"} <= set(names), names
    body.send_keys(Keys.ENTER)
    browser.until_text(".whatif", "Quota over all nodes")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.until(lambda: browser.text(".whatif") == "", "Escape does not close it")
    unnamed = browser.run(
        """return [...document.querySelectorAll("button, a, input, select, table, .scroll")].filter((each) =>
            !(each.getAttribute("aria-label") || each.innerText || each.labels?.length)).map((each) => each.outerHTML);"""
    )
    assert unnamed == []


def test_phone_needs_no_sideways_scrolling_of_the_page(browser: Browser, site: Site) -> None:
    browser.set_media(390, 844, "dark")
    try:
        browser.open(site.url)
        browser.until(lambda: browser.row("Jobs", "vision"), "no job")
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(19, 20, 18)", "dark where the browser is"
    finally:
        browser.set_media(1280, 900)


# --- larderd


def test_daemon_shows_its_node_and_lets_its_token_warm_and_limit(
    browser: Browser, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    token = tmp_path / "token"
    token.write_text("page-token-0123456789\n")
    token.chmod(0o600)
    with contextlib.ExitStack() as ends:
        port = ends.enter_context(hold_port()).getsockname()[1]
        daemon = Daemon(
            larder_bin, tmp_path / "node", "--metrics-listen", f"127.0.0.1:{port}", "--page.anyone_reads", "true",
            "--page.token_file", str(token),
        )  # fmt: skip
        daemon.start()
        ends.callback(daemon.end)
        files = tmp_path / "files"
        files.mkdir()
        for i in range(20):
            (files / f"{i}.bin").write_bytes(bytes([i]) * 100_000)
        daemon.command("dataset", "add", "pets", files, "--quota-memory", "64MiB")
        for name in ("fish", "birds"):
            daemon.command("dataset", "add", name, files, "--quota-memory", "0", "--quota-disk", "0")
        browser.open(f"http://127.0.0.1:{port}/")
        browser.until(lambda: browser.row("Datasets", "pets"), "no dataset")
        assert "0.0 %" in browser.row("Datasets", "pets")["c/d"]
        assert "Warm" not in browser.text("#datasets")
        for section in ("Jobs", "Datasets", "Node"):
            assert section in browser.text("main")
        assert "io_uring" in browser.text("#node") or "threads" in browser.text("#node")
        browser.press("Sign in")
        give_token(browser, "page-token-0123456789")
        browser.press("Warm pets")
        browser.until_text(".said", "pets is warm")
        browser.until(lambda: "100.0 %" in browser.row("Datasets", "pets").get("c/d", ""), "it is not warm")
        daemon.command("job", "limit", "train", "--rate", "5MB/s", "--ahead")
        browser.until(lambda: browser.row("Jobs", "train").get("Remote limit") == "5.00 MB/s", "no limit")
        browser.press("Limit train")
        field = browser.until(lambda: browser.run("return document.querySelector('input[name=rate]')"), "no field")
        field.clear()
        field.send_keys("7")
        time.sleep(1.5)  # the page is drawn again each second
        browser.press("Limit")
        browser.until(lambda: browser.row("Jobs", "train").get("Remote limit") == "7.00 MB/s", "no other limit")
        with contextlib.closing(ReadingJob(daemon, "fish", "train")):
            browser.press("Trace train")
            browser.until(lambda: browser.row("Steps", "token_wait"), "no steps of the blocks")
        assert float(browser.row("Steps", "token_wait")["Share"].removesuffix(" %")) > 50, "the job is limited"
        assert re.search(r"\d ms block \d+ of fish, 100 kB, from remote", browser.text(".waterfall"))
        bar = browser.run("""
            const fill = document.querySelector(".waterfall .bar .fill");
            return [fill.style.left, fill.getBoundingClientRect().width];""")
        assert bar[0].endswith("%") and bar[1] >= 2, bar
        browser.press("Close")
        assert sum(1 for _ in larder.Loader("birds", socket=daemon.socket, job="train", batch_size=1)) == 20
        browser.until(
            lambda: {row["Dataset"] for row in browser.cells("Jobs")} >= {"fish", "birds"}, "no row for each dataset"
        )
        refused = ask(http.client.HTTPConnection("127.0.0.1", port), "POST", "/v1/jobs/train/trace")
        assert refused.status == 403, "without the token"
        refused = ask(http.client.HTTPConnection("127.0.0.1", port), "POST", "/v1/datasets/pets/warm")
        assert refused.status == 403, "without the token"
        assert browser.hosts() == {f"127.0.0.1:{port}"}


# --- docs/page.md


def test_commands_of_the_docs_serve_both_pages(
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    steps = page.commands(repository / "docs" / "page.md")
    with hold_port() as allocator, hold_port() as daemon:
        ports = {"7600": str(allocator.getsockname()[1]), "9464": str(daemon.getsockname()[1])}

        def with_ports(text: str) -> str:
            return re.sub(r"7600|9464", lambda found: ports[found[0]], text)

        def before(step: page.Command) -> str:
            found = re.search(r"curl -s (http://[\d.:]+)/", step.text)
            return f"until curl -s {found[1]}/healthz; do sleep 0.1; done" if found else ":"

        steps = [page.Command(step.line, with_ports(step.text), step.shown) for step in steps]
        ran = page.run(steps, tmp_path, larder_bin, before)
    assert len(ran) == 5
    for step, answer in ran.items():
        assert answer.status == 0, f"line {step.line}: {step.text}\n{answer.output}"
        assert not step.shown or answer.output.splitlines() == list(step.shown), step.text
