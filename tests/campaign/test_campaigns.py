"""A short form of each campaign, and what `run` promises: it can be killed and continued, and forgets no failure."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import power_loss  # noqa: E402
from programs import Failure  # noqa: E402

SECONDS = 12


def run(state: pathlib.Path, seconds: float, *options: object) -> subprocess.CompletedProcess[str]:
    command = [HERE / "run", "--hours", f"{seconds / 3600:.6f}", "--state", state, *options]
    if "failover" in options:
        # Tests that run beside this one must not make another leader late. Without the right to that, nice only warns.
        command = ["nice", "-n", "-15", *command]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@pytest.mark.parametrize(
    "name",
    [
        "kills",
        "hostile",
        "lying_nodes",
        "failover",
        pytest.param("nth_failure", marks=pytest.mark.preloads),
        pytest.param("power_loss", marks=pytest.mark.preloads),
        "soak",
    ],
)
def test_short_campaign_finds_nothing(name: str, larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, SECONDS, "--only", name, "--build", larder_bin.parent)
    log = tmp_path / f"{name}.log"
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{log.read_text(errors='replace')[-4000:] if log.exists() else ''}"
    if "skipped" in ran.stdout:
        pytest.skip(ran.stdout.splitlines()[1])
    rounds = int(ran.stdout.splitlines()[1].split()[1])
    assert rounds > 0, ran.stdout


def write_campaign(folder: pathlib.Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    path.chmod(0o755)


def test_run_adds_up_counts_and_lists_failures_with_their_commands(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "campaigns"
    write_campaign(folder, "good", "print(json.dumps({'rounds': 2, 'kills': 3}))")
    write_campaign(
        folder, "bad", "print(json.dumps({'failure': 'lost a byte', 'repeat': 'bad --seed 7'})); sys.exit(1)"
    )  # fmt: skip
    write_campaign(folder, "crashing", "print('oh dear', file=sys.stderr); os.abort()")
    write_campaign(folder, "mistaken", "raise ValueError('a mistake of the campaign itself')")
    options = ("--campaigns", folder, "--build", tmp_path)
    for _ in range(2):
        ran = run(tmp_path / "state", 4, *options)
    assert ran.returncode == 1, ran.stderr
    rows = {line.split()[0]: line.split() for line in ran.stdout.splitlines()[1:5]}
    assert rows["good"][1] == "4" and "kills 6" in " ".join(rows["good"])
    assert rows["bad"][3] == "2" and rows["crashing"][3] == rows["mistaken"][3] == "2"
    assert "lost a byte\n  repeat: bad --seed 7" in ran.stdout
    assert "oh dear" in ran.stdout and "crashing.py --seconds" in ran.stdout
    good = run(tmp_path / "state", 4, *options, "--only", "good")
    assert good.returncode == 0, good.stdout


def test_failure_without_report_shows_the_log_of_its_own_call(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "campaigns"
    write_campaign(folder, "crashing", "print('call', sys.argv[4], file=sys.stderr); os.abort()")
    for _ in range(2):
        ran = run(tmp_path / "state", 2, "--campaigns", folder, "--build", tmp_path)
    assert ran.stdout.count("call 1") == ran.stdout.count("call 2") == 1, ran.stdout


def test_campaign_that_was_skipped_and_runs_later_is_not_called_skipped(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "campaigns"
    write_campaign(folder, "rare", "print(json.dumps({'skipped': 'no package'} if sys.argv[4] == '1' else {'rounds': 1}))")
    tables = [run(tmp_path / "state", 2, "--campaigns", folder, "--build", tmp_path).stdout for _ in range(2)]
    assert "skipped: no package" in tables[0] and "skipped" not in tables[1], tables


def test_killed_run_continues(tmp_path: pathlib.Path) -> None:
    folder, state = tmp_path / "campaigns", tmp_path / "state"
    write_campaign(
        folder,
        "slow",
        "for i in range(1000):\n    print(json.dumps({'rounds': 1}), flush=True)\n    time.sleep(0.05)",
    )
    command = [HERE / "run", "--hours", "1", "--state", state, "--campaigns", folder, "--build", tmp_path]
    for number in (signal.SIGKILL, signal.SIGINT):
        running = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        journal = state / "slow.jsonl"
        before = journal.read_text().count("rounds") if journal.exists() else 0
        while not journal.exists() or journal.read_text().count("rounds") < before + 3:
            time.sleep(0.01)
        running.send_signal(number)
        table, _ = running.communicate()
    # The campaign of a killed run is killed, too.
    lines = [json.loads(line) for line in journal.read_text().splitlines() if line]
    assert sum("slice" in line for line in lines) == 2
    rounds = sum(line.get("rounds", 0) for line in lines)
    assert table.splitlines()[1].split()[:2] == ["slow", str(rounds)]
    seeds = [line["seed"] for line in lines if "slice" in line]
    assert seeds == [1, 2]
    assert os.access(HERE / "run", os.X_OK)


class FakeAllocator:
    """Answers as an allocator that started after a power cut with `rate` as its remote bandwidth, and without jobs."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def start(self) -> None: ...

    def serves(self) -> bool:
        return True

    def end(self) -> None: ...

    def check(self) -> None: ...

    def get(self, target: str) -> dict[str, object]:
        if target == "/v1/status":
            return {"remote_bytes_per_second": self.rate}
        return {"jobs": [{"id": 1, "state": "succeeded"}]}


class SchedulerWithoutProgram(power_loss.Scheduler):
    """Its power fails while the request number `cut_at` to set the remote bandwidth is unanswered."""

    def __init__(self, cut_at: int) -> None:
        super().__init__(None, pathlib.Path(), 1)  # type: ignore[arg-type]
        self.left = cut_at

    def settle(self, *_: object) -> None: ...

    def ask(self, server: object, method: str, target: str, body: object = None) -> dict[str, object]:
        if target == "/v1/remote":
            self.left -= 1
            if self.left == 0:
                raise power_loss.PowerIsOff
        return {}

    def submit(self, server: object, name: str, script: str) -> int:
        if name == "later":
            self.acknowledged.append(1)
        return 0


@pytest.mark.parametrize(
    ("cut_at", "rate", "is_right"),
    [
        (1, power_loss.BANDWIDTH, True),
        (1, 5e8, True),
        (1, 5.01e8, False),
        (2, 5e8, True),
        (2, 5.01e8, True),
        (2, power_loss.BANDWIDTH, False),
    ],
)
def test_power_loss_wants_the_acknowledged_rate_or_the_one_that_was_in_flight(
    cut_at: int, rate: float, is_right: bool
) -> None:
    round_ = SchedulerWithoutProgram(cut_at)
    with pytest.raises(power_loss.PowerIsOff):
        round_.with_power(FakeAllocator(rate))  # type: ignore[arg-type]
    if is_right:
        round_.after_cut(FakeAllocator(rate))  # type: ignore[arg-type]
    else:
        with pytest.raises(Failure, match="remote bandwidth"):
            round_.after_cut(FakeAllocator(rate))  # type: ignore[arg-type]


@pytest.mark.parametrize(("walks", "recovered", "is_doubtful"), [(9, 0, False), (10, 0, True), (10, 1, False)])
def test_power_loss_fails_if_no_block_is_ever_left(
    walks: int, recovered: int, is_doubtful: bool, tmp_path: pathlib.Path
) -> None:
    made = power_loss.Walks(tmp_path / "walks.json")
    made.advance("node", True, recovered)
    for _ in range(walks):
        made.advance("node", False, 0)
    assert power_loss.Walks(tmp_path / "walks.json").tests_no_blocks() is is_doubtful


def test_power_loss_knows_a_cut_that_comes_while_it_looks_at_the_program(tmp_path: pathlib.Path) -> None:
    class Dying:
        polls = 0

        def returncode(self) -> int | None:
            self.polls += 1
            return None if self.polls == 1 else -signal.SIGKILL

        def check(self) -> None:
            if self.returncode() is not None:
                raise Failure("ended by itself")

    round_ = power_loss.Round(None, tmp_path, 1)  # type: ignore[arg-type]
    with pytest.raises(power_loss.PowerIsOff):
        round_.settle(Dying(), lambda: False, "never")  # type: ignore[arg-type]


@pytest.mark.preloads
def test_power_loss_walks_all_flushes_and_begins_again(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def walk(seconds: float) -> dict[str, int]:
        command = [
            HERE / "power_loss.py", "--seconds", seconds, "--seed", 1, "--state", tmp_path, "--only", "allocator",
        ]  # fmt: skip
        ran = subprocess.run(
            list(map(str, command)), env={**os.environ, "LARDER_BUILD": str(larder_bin.parent)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
        return dict(json.loads((tmp_path / "walks.json").read_text())["allocator"])

    first = walk(1)
    assert first["next"] == first["rounds"] + 1 and first["rounds"] > 0
    second = walk(1)
    assert second["next"] == second["rounds"] + 1 and second["rounds"] > first["rounds"]
    # No round has so many flushes.
    (tmp_path / "walks.json").write_text(json.dumps({"allocator": {"next": 1_000_000, "walks": 0, "rounds": 0}}))
    third = walk(0.1)
    assert third == {"next": 1, "walks": 1, "rounds": 1}
