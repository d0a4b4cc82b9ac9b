"""The same cases for each engine that runs jobs: the local one, one behind /v1/engine with an agent of its own, a real
Slurm, and a real control plane of Kubernetes. What only a cluster manager does is in test_engines.py,
test_slurm_place.py and test_kubernetes_place.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from allocator_process import node_report, reporting
from engine_runs import FOREVER, Runs, engine, run_cluster  # noqa: F401

UNTIL_END = "touch runs; while [ ! -e end ]; do sleep 0.01; done"


def test_command_runs_with_its_environment_and_gpus(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(
        "--gpus", "3", "--name", "resnet", "--env", "SEED=7",
        script='echo "$LARDER_JOB $LARDER_JOB_ID $LARDER_ATTEMPT $LARDER_GPUS $LARDER_NODES $LARDER_NODE_COUNT $SEED $PWD"',
    )  # fmt: skip
    shown = runs.wait(job, "succeeded")
    node = shown["log"][1]["text"].split(" of ")[1].split()[0]
    # A Slurm job is known by its number there, and does not know Larder's. A pod knows what its template takes from
    # its annotations.
    name, number = (shown["name"], "") if runs.engine == "slurm" else ("resnet", job)
    wanted = f"{name} {number} 1 3 {node} 1 7 {runs.directory}\n"
    if runs.engine == "kubernetes":
        wanted = f" {job} 1  {node}  7 {runs.directory}\n"
    assert runs.output(job) == wanted


@pytest.mark.parametrize(("script", "state", "how"), [
    ("exit 0", "succeeded", ("exit_code", 0)), ("exit 3", "failed", ("exit_code", 3)),
    ("exit 255", "failed", ("exit_code", 255)), ("/nonexistent", "failed", ("exit_code", 127)),
    ("kill -9 $$", "failed", ("exit_signal", 9)), ("kill -15 $$", "failed", ("exit_signal", 15)),
])  # fmt: skip
def test_end_of_a_job_is_told(engine: Runs, script: str, state: str, how: tuple[str, int]) -> None:
    runs = engine.start()
    shown = runs.wait(runs.submit(script=script), state)
    if runs.engine == "kubernetes" and how[0] == "exit_signal":
        how = ("exit_code", 128 + how[1])  # a kubelet reports it like a shell
    assert shown[how[0]] == how[1]


def test_cancelled_job_ends(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script=FOREVER)
    runs.wait_for("runs-1")
    runs.larder("job", "cancel", job)
    runs.wait(job, "cancelled")


def test_job_that_ignores_the_request_to_end_is_killed_after_its_grace(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit("--grace", "0.1", script='trap "" TERM; touch runs; while :; do sleep 0.01; done')
    runs.wait_for("runs")
    runs.larder("job", "cancel", job)
    runs.wait(job, "cancelled")


def test_job_that_waits_is_cancelled_without_a_start(engine: Runs) -> None:
    runs = engine.start()
    first = runs.submit("--gpus", "4", script=FOREVER)
    second = runs.submit("--gpus", "4", script=FOREVER)
    third = runs.submit("--gpus", "4", script="touch never")
    for job in (first, second):
        runs.wait(job, "running")
    runs.larder("job", "cancel", third)
    assert runs.wait(third, "cancelled")["attempt"] == 0
    assert not (runs.directory / "never").exists()


def test_preempted_job_starts_again(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "srtf")
    common = ("--gpus", "8", "--dataset", "images")
    with reporting(runs.allocator, node_report()):
        slow = runs.submit(*common, "--epochs", "100", script=FOREVER)
        runs.wait_for("runs-1")
        quick = runs.submit(*common, "--epochs", "1", script="exit 0")
        runs.wait(quick, "succeeded")
        runs.wait_for("runs-2")
        shown = runs.wait(slow, "running")
    assert (shown["attempt"], shown["preemptions"]) == (2, 1)


@pytest.mark.parametrize("restarts", [1, 3])
def test_job_goes_on_while_the_allocator_restarts(engine: Runs, restarts: int) -> None:
    runs = engine.start()
    job = runs.submit(script=f"{UNTIL_END}; echo done")
    runs.wait_for("runs")
    for _ in range(restarts):
        runs.restart_allocator()
    (runs.directory / "end").touch()
    assert runs.wait(job, "succeeded")["attempt"] == 1
    assert runs.output(job) == "done\n"


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (9, "failed")])
def test_end_while_the_allocator_is_away_is_told(engine: Runs, code: int, state: str) -> None:
    runs = engine.start()
    job = runs.submit(script=f"{UNTIL_END}; touch ended; exit {code}")
    runs.wait_for("runs")
    runs.wait(job, "running")
    runs.allocator.kill()
    (runs.directory / "end").touch()
    runs.wait_for("ended")
    runs.start(*runs.options)
    shown = runs.wait(job, state)
    assert (shown["attempt"], shown["exit_code"]) == (1, code)


def test_jobs_that_wait_when_the_allocator_is_killed_start_once(engine: Runs) -> None:
    runs = engine.start()
    script = "while [ ! -e go ]; do sleep 0.01; done; echo {} >> order"
    jobs = [runs.submit("--gpus", "4", script=script.format(i)) for i in range(5)]
    runs.restart_allocator()
    (runs.directory / "go").touch()
    for job in jobs:
        runs.wait(job, "succeeded")
    assert sorted((runs.directory / "order").read_text().split()) == ["0", "1", "2", "3", "4"]


def test_text_arrives_as_it_was_given(engine: Runs) -> None:
    runs = engine.start()
    script = "[ 1 = 1 ] && printf '%s|%s\\n' \"$TEXT\" 'e, \"f\" \\g $h' && [ 2 = 2 ]"
    job = runs.submit("--env", "TEXT=a  b$HOME;c=d*\u00e9", script=script)
    runs.wait(job, "succeeded")
    assert runs.output(job) == 'a  b$HOME;c=d*\u00e9|e, "f" \\g $h\n'


@pytest.mark.parametrize(("script", "output"), [
    ("cat; echo end", "end\n"), ("echo first; echo second >&2; echo third", "first\nsecond\nthird\n"),
], ids=["without input", "both streams in order"])  # fmt: skip
def test_output_of_a_job_is_kept(engine: Runs, script: str, output: str) -> None:
    runs = engine.start()
    job = runs.submit(script=script)
    runs.wait(job, "succeeded")
    assert runs.output(job) == output


def test_large_output_is_kept(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script="seq 200000")
    runs.wait(job, "succeeded")
    assert runs.output(job) == "".join(f"{number}\n" for number in range(1, 200001))


def is_beating(runs: Runs) -> bool:
    """Whether a process of a job goes on writing the file `beat`."""
    before = (runs.directory / "beat").stat().st_mtime_ns
    time.sleep(0.2)
    return (runs.directory / "beat").stat().st_mtime_ns != before


BEAT = "while :; do touch beat; sleep 0.01; done"


def test_nothing_of_a_job_that_has_ended_goes_on(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script=f"(trap '' TERM; {BEAT}) & while [ ! -e beat ]; do sleep 0.01; done; exit 5")
    assert runs.wait(job, "failed")["exit_code"] == 5
    runs.until(lambda: not is_beating(runs), "a process of the job goes on")


def test_nothing_of_a_cancelled_job_goes_on(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit("--grace", "0.1", script=f"(trap '' TERM; {BEAT}) & wait")
    runs.wait_for("beat")
    runs.larder("job", "cancel", job)
    runs.wait(job, "cancelled")
    runs.until(lambda: not is_beating(runs), "a process of the job goes on")


def test_job_that_fails_when_it_is_cancelled_is_cancelled(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script='trap "exit 3" TERM; touch runs; while :; do sleep 0.01; done')
    runs.wait_for("runs")
    runs.larder("job", "cancel", job)
    runs.wait(job, "cancelled")


def test_job_is_cancelled_twice(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script='trap "touch asked" TERM; touch runs; while [ ! -e end ]; do sleep 0.01; done')
    runs.wait_for("runs")
    runs.larder("job", "cancel", job)
    runs.wait_for("asked")
    runs.larder("job", "cancel", job)
    (runs.directory / "end").touch()
    runs.wait(job, "cancelled")


def test_job_that_has_succeeded_stays_so(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script="exit 0")
    shown = runs.wait(job, "succeeded")
    runs.larder("job", "cancel", job, status=None)
    assert runs.job(job) == shown


def test_job_cancelled_at_once_ends(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script=BEAT)
    runs.larder("job", "cancel", job)
    runs.wait(job, "cancelled")
    if (runs.directory / "beat").exists():
        runs.until(lambda: not is_beating(runs), "a process of the job goes on")


def test_cancel_outlives_the_allocator(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit("--grace", "1", script='trap "" TERM; touch runs; while :; do sleep 0.01; done')
    runs.wait_for("runs")
    runs.larder("job", "cancel", job)
    runs.restart_allocator()
    runs.wait(job, "cancelled")


def test_job_waits_until_gpus_are_free(engine: Runs) -> None:
    runs = engine.start()
    first, second = (runs.submit("--gpus", "4", script=FOREVER) for _ in range(2))
    third = runs.submit("--gpus", "1", script="echo third")
    for job in (first, second):
        runs.wait(job, "running")
    assert runs.job(third)["state"] == "waiting"
    runs.larder("job", "cancel", first)
    assert runs.wait(third, "succeeded")["attempt"] == 1
    assert runs.job(second)["state"] == "running"


def test_job_that_waits_says_for_what(engine: Runs) -> None:
    runs = engine.start()
    for _ in range(2):
        runs.wait(runs.submit("--gpus", "4", script=FOREVER), "running")
    third = runs.submit("--gpus", "2", script="exit 0")
    runs.until(lambda: "0 GPUs of 8 are free" in runs.larder("job", "why", third), "the reason is not told")


# The first task alone writes.
IN_ORDER = '[ "${{LARDER_NODE_RANK:-0}}" != 0 ] || echo {} >> order'


def test_jobs_start_in_order_of_submission(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "fifo")
    holder = runs.submit("--gpus", "8", script="while [ ! -e go ]; do sleep 0.01; done")
    jobs = [runs.submit("--gpus", "8", script=IN_ORDER.format(i)) for i in range(4)]
    runs.wait(holder, "running")
    (runs.directory / "go").touch()
    for job in jobs:
        runs.wait(job, "succeeded")
    assert (runs.directory / "order").read_text().split() == ["0", "1", "2", "3"]


def test_job_of_a_whole_node_waits_for_both_halves(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "fifo")
    runs.wait(runs.submit("--gpus", "4", script=FOREVER), "running")
    halves = [runs.submit("--gpus", "2", script=f"while [ ! -e end-{i} ]; do sleep 0.01; done") for i in range(2)]
    for half in halves:
        runs.wait(half, "running")
    whole = runs.submit("--gpus", "4", script="[ -e end-0 ] && [ -e end-1 ]")
    (runs.directory / "end-0").touch()
    runs.wait(halves[0], "succeeded")
    assert runs.job(whole)["state"] == "waiting"
    (runs.directory / "end-1").touch()
    runs.wait(whole, "succeeded")


def gpus_by_node(shown: dict) -> dict[str, int]:
    return {share["node"]: len(share["gpus"]) for share in shown["holds"]["placement"]}


def test_gang_has_both_nodes_at_once(engine: Runs) -> None:
    runs = engine.start()
    first = runs.submit("--gpus", "1", script=UNTIL_END)
    runs.wait(first, "running")
    gang = runs.submit("--gpus", "8", script=FOREVER)
    assert runs.job(gang)["state"] == "waiting"
    (runs.directory / "end").touch()
    assert gpus_by_node(runs.wait(gang, "running")) == {"n1": 4, "n2": 4}


def test_running_jobs_have_gpus_of_their_own(engine: Runs) -> None:
    runs = engine.start()
    jobs = [runs.submit("--gpus", "2", script=FOREVER) for _ in range(4)]
    held = [runs.wait(job, "running")["holds"]["placement"] for job in jobs]
    gpus = [(share["node"], gpu) for placement in held for share in placement for gpu in share["gpus"]]
    assert sorted(gpus) == [(node, gpu) for node in ("n1", "n2") for gpu in range(4)]


def test_job_larger_than_the_cluster_is_refused(engine: Runs) -> None:
    runs = engine.start()
    assert "GPUs" in runs.refusal("--gpus", "12", script="exit 0")


@contextlib.contextmanager
def preemption(runs: Runs, script: str, *options: object) -> Iterator[tuple[int, int]]:
    """A long job with `script` and all GPUs that must give way to a short one. The script has made the file `runs`."""
    common = ("--gpus", "8", "--dataset", "images")
    with reporting(runs.allocator, node_report()):
        slow = runs.submit(*common, *options, "--epochs", "100", script=script)
        runs.wait_for("runs")
        runs.wait(slow, "running")
        yield slow, runs.submit(*common, "--epochs", "1", script="while [ -e hold ]; do sleep 0.01; done")


def test_preempted_job_that_ignores_the_request_is_killed_after_its_grace(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "srtf")
    script = 'trap "" TERM; touch runs; [ "$LARDER_ATTEMPT" = 1 ] || exit 0; while :; do sleep 0.01; done'
    with preemption(runs, script, "--grace", "0.1") as (slow, quick):
        runs.wait(quick, "succeeded")
        assert runs.wait(slow, "succeeded")["attempt"] == 2


def test_preempted_job_that_fails_when_asked_starts_again(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "srtf")
    script = 'trap "exit 1" TERM; touch runs; [ "$LARDER_ATTEMPT" = 1 ] || exit 0; while :; do sleep 0.01; done'
    with preemption(runs, script) as (slow, quick):
        runs.wait(quick, "succeeded")
        assert runs.wait(slow, "succeeded")["attempt"] == 2


# Goes on after a request to end, until the file `end` is there.
LINGERS = 'trap "touch asked" TERM; touch runs runs-$LARDER_ATTEMPT; while [ ! -e end ]; do sleep 0.01; done'


def test_job_cancelled_while_it_gives_way_does_not_start_again(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "srtf")
    with preemption(runs, LINGERS, "--grace", "60") as (slow, quick):
        runs.wait_for("asked")
        runs.larder("job", "cancel", slow)
        (runs.directory / "end").touch()
        runs.wait(slow, "cancelled")
        runs.wait(quick, "succeeded")
    assert not (runs.directory / "runs-2").exists()


def test_job_cancelled_after_it_gave_way_does_not_start_again(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "srtf")
    (runs.directory / "hold").touch()
    script = 'trap "exit 0" TERM; touch runs runs-$LARDER_ATTEMPT; while :; do sleep 0.01; done'
    with preemption(runs, script) as (slow, quick):
        runs.wait(quick, "running")
        runs.wait(slow, "waiting")
        runs.larder("job", "cancel", slow)
        runs.wait(slow, "cancelled")
        (runs.directory / "hold").unlink()
        runs.wait(quick, "succeeded")
    assert not (runs.directory / "runs-2").exists()


def test_preemption_goes_on_while_the_allocator_restarts(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "srtf")
    with preemption(runs, LINGERS, "--grace", "60") as (slow, quick):
        runs.wait_for("asked")
    runs.restart_allocator()
    with reporting(runs.allocator, node_report()):
        (runs.directory / "end").touch()
        runs.wait(quick, "succeeded")
        assert runs.wait(slow, "succeeded")["attempt"] == 2


def test_jobs_keep_their_gpus_while_the_allocator_restarts(engine: Runs) -> None:
    runs = engine.start()
    jobs = [runs.submit("--gpus", "4", script=UNTIL_END) for _ in range(2)]
    third = runs.submit("--gpus", "4", script="[ -e end ]")
    held = [runs.wait(job, "running")["holds"]["placement"] for job in jobs]
    runs.restart_allocator()
    assert [runs.job(job)["holds"]["placement"] for job in jobs] == held
    assert runs.job(third)["state"] == "waiting"
    (runs.directory / "end").touch()
    for job in (*jobs, third):
        assert runs.wait(job, "succeeded")["attempt"] == 1


def test_ended_jobs_are_known_after_a_restart(engine: Runs) -> None:
    runs = engine.start()
    failed = runs.submit(script="exit 7")
    cancelled = runs.submit(script=FOREVER)
    runs.wait_for("runs-1")
    runs.larder("job", "cancel", cancelled)
    shown = [runs.wait(failed, "failed"), runs.wait(cancelled, "cancelled")]
    runs.restart_allocator()
    assert [runs.job(job) for job in (failed, cancelled)] == shown


def test_order_outlives_the_allocator(engine: Runs) -> None:
    runs = engine.start("--scheduler.policy", "fifo")
    holder = runs.submit("--gpus", "8", script="while [ ! -e go ]; do sleep 0.01; done")
    jobs = [runs.submit("--gpus", "8", script=IN_ORDER.format(i)) for i in range(3)]
    runs.wait(holder, "running")
    runs.restart_allocator()
    (runs.directory / "go").touch()
    for job in jobs:
        runs.wait(job, "succeeded")
    assert (runs.directory / "order").read_text().split() == ["0", "1", "2"]


def test_job_goes_on_while_the_agent_restarts(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script=f"{UNTIL_END}; echo once")
    runs.wait_for("runs")
    runs.wait(job, "running")
    runs.restart_agent()
    (runs.directory / "end").touch()
    assert runs.wait(job, "succeeded")["attempt"] == 1
    assert runs.output(job) == "once\n"


def test_end_while_the_agent_is_away_is_told(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit(script=f"{UNTIL_END}; touch ended; exit 4")
    runs.wait_for("runs")
    runs.wait(job, "running")
    runs.kill_agent()
    (runs.directory / "end").touch()
    runs.wait_for("ended")
    runs.start_agent()
    assert runs.wait(job, "failed")["exit_code"] == 4


def test_job_starts_once_while_allocator_and_agent_restart(engine: Runs) -> None:
    runs = engine.start()
    holder = runs.submit("--gpus", "8", script=UNTIL_END)
    second = runs.submit("--gpus", "4", script="echo once >> order")
    runs.wait(holder, "running")
    runs.kill_agent()
    runs.restart_allocator()
    runs.start_agent()
    (runs.directory / "end").touch()
    runs.wait(holder, "succeeded")
    assert runs.wait(second, "succeeded")["attempt"] == 1
    assert (runs.directory / "order").read_text() == "once\n"


def test_grace_goes_on_while_the_agent_restarts(engine: Runs) -> None:
    runs = engine.start()
    job = runs.submit("--grace", "1", script='trap "touch asked" TERM; touch runs; while :; do sleep 0.01; done')
    runs.wait_for("runs")
    runs.wait(job, "running")
    runs.larder("job", "cancel", job)
    runs.wait_for("asked")
    runs.restart_agent()
    runs.wait(job, "cancelled")


def test_attempt_that_is_not_on_record_is_stopped(engine: Runs) -> None:
    """The record of the queue is older than what runs, as after a restore from a backup."""
    runs = engine.start()
    known = runs.submit("--gpus", "4", script=UNTIL_END)
    runs.wait(known, "running")
    runs.save_record()
    orphan = runs.submit(script='trap "touch asked; exit 0" TERM; touch runs-orphan; while :; do sleep 0.01; done')
    runs.wait_for("runs-orphan")
    runs.wait(orphan, "running")
    runs.restore_record()
    runs.wait_for("asked")
    assert runs.job(known)["state"] == "running"
    (runs.directory / "end").touch()
    assert runs.wait(known, "succeeded")["attempt"] == 1


def test_life_of_a_job_is_on_record(engine: Runs) -> None:
    runs = engine.start()
    before = time.time()
    job = runs.submit("--gpus", "2", script="exit 0")
    shown = runs.wait(job, "succeeded")
    times = [before - 1, *(shown[f"{what}_unix_s"] for what in ("submitted", "started", "ended")), time.time() + 1]
    assert times == sorted(times)  # Slurm tells whole seconds
    logged = [entry["unix_s"] for entry in shown["log"]]
    assert len(logged) >= 3 and logged == sorted(logged)


def test_each_of_many_short_jobs_runs_once(engine: Runs) -> None:
    runs = engine.start()
    jobs = [runs.submit(script=f"echo {i} >> order") for i in range(20)]
    for job in jobs:
        assert runs.wait(job, "succeeded")["attempt"] == 1
    assert sorted((runs.directory / "order").read_text().split(), key=int) == [str(i) for i in range(20)]
