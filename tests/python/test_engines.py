"""What only a cluster manager does, tried through /v1/engine with an agent of its own (tests/servers/process_agent.py);
resizes also on a real control plane of Kubernetes. The cases of all engines are in test_engine_cases.py."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time

import pytest
from engine_runs import ENDED, FOREVER, Runs, agent, resizing, run_cluster  # noqa: F401
from program import hold_port


def test_job_of_two_nodes_has_a_task_on_each(agent: Runs) -> None:
    runs = agent.start()
    job = runs.submit(
        "--gpus", "6",
        script='echo "$LARDER_NODE_RANK $NODE $LARDER_NODES $LARDER_NODE_COUNT $CUDA_VISIBLE_DEVICES $MASTER_ADDR $MASTER_PORT"',
    )  # fmt: skip
    runs.wait(job, "succeeded")
    first, second = (line.split() for line in runs.output(job).splitlines())
    nodes = [first[1], second[1]]
    assert sorted(nodes) == ["n1", "n2"]
    assert [first[0], second[0]] == ["0", "1"]
    assert first[2] == second[2] == ",".join(nodes)
    assert first[3] == second[3] == "2"
    assert len((first[4] + "," + second[4]).split(",")) == 6
    assert first[5:] == second[5:] == [nodes[0], str(20000 + job)]


def test_devices_that_the_cluster_manager_grants_are_shown(agent: Runs) -> None:
    runs = agent.start()
    job = runs.submit("--gpus", "6", script=FOREVER)
    runs.wait(job, "running")
    assert "devices" not in runs.job(job)
    runs.steer("devices", "GPU-")  # They may be known late.
    runs.until(lambda: "devices" in runs.job(job), "no devices")
    shown = runs.job(job)
    assert shown["devices"] == [
        {"node": share["node"], "devices": [f"GPU-{gpu}" for gpu in share["gpus"]]} for share in shown["holds"]["placement"]
    ]
    runs.restart_allocator()
    assert runs.job(job)["devices"] == shown["devices"]
    text = ", ".join(f"{one['node']} ({','.join(one['devices'])})" for one in shown["devices"])
    assert f"devices    {text}\n" in runs.larder("job", "show", job)


def test_engine_parameters_reach_the_agent(agent: Runs) -> None:
    runs = agent.start()
    job = runs.submit("--engine-parameter", "image=pytorch:2.4", "--engine-parameter", "account=a=b", script=FOREVER)
    runs.wait_for("runs-1")
    action = json.loads((runs.attempt(job) / "action").read_text())
    assert action["parameters"] == {"image": "pytorch:2.4", "account": "a=b"}
    assert runs.job(job)["engine_parameters"] == action["parameters"]


def test_local_engine_refuses_engine_parameters(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path
) -> None:
    runs = Runs(larder_bin, tmp_path, repository, "local").start()
    try:
        said = runs.larder("job", "submit", "--engine-parameter", "image=x", "--", "true", status=2)
        assert "engine_parameters: only a cluster manager takes them" in said
    finally:
        runs.end()


def test_pending_job_says_why(agent: Runs) -> None:
    runs = agent.start()
    runs.steer("hold", "no machine with this image")
    job = runs.submit(script="exit 0")
    runs.wait_for_log(job, "is pending: no machine with this image")
    assert "it is pending: no machine with this image." in runs.larder("job", "why", job)
    runs.steer("hold", "")
    assert runs.wait(job, "succeeded")["attempt"] == 1


def test_job_that_does_not_begin_in_time_is_placed_again(agent: Runs) -> None:
    runs = agent.start("--scheduler.start_timeout", "1 s")
    runs.steer("hold", "no machine with this image")
    job = runs.submit(script="exit 0")
    runs.wait_for_log(job, "did not begin within 1.0 s: no machine with this image")
    why = "did not begin when it was last placed: no machine"
    runs.until(lambda: why in runs.larder("job", "why", job), why)
    runs.steer("hold", "")
    assert runs.wait(job, "succeeded")["attempt"] >= 2


def test_job_rejected_for_now_is_placed_again(agent: Runs) -> None:
    runs = agent.start()
    runs.steer("reject", "now the partition is full")
    job = runs.submit(script="exit 0")
    runs.wait_for_log(job, "rejected by the cluster manager: the partition is full")
    runs.steer("reject", "")
    shown = runs.wait(job, "succeeded")
    assert shown["attempt"] >= 2
    assert shown["preemptions"] == 0


def test_job_rejected_for_good_fails(agent: Runs) -> None:
    runs = agent.start()
    runs.steer("reject", "good no such account")
    shown = runs.wait(runs.submit(script="exit 0"), "failed")
    assert shown["end_reason"] == "rejected by the cluster manager: no such account"


def test_evicted_job_waits_again_and_is_not_at_fault(agent: Runs) -> None:
    runs = agent.start()
    job = runs.submit(script=FOREVER)
    for attempt in range(1, 8):  # more often than a job may be lost
        runs.wait_for(f"runs-{attempt}")
        runs.wait(job, "running")
        runs.steer("evict", f"{job}.{attempt}")
    runs.wait_for("runs-8")
    runs.wait_for_log(job, "evicted by the cluster manager: the nodes are needed for others")
    metrics = runs.allocator.ask("GET", "/metrics").body.decode()
    assert "larder_queue_evictions_total 7" in metrics


def test_drained_node_takes_no_job_and_its_job_goes_on(agent: Runs) -> None:
    runs = agent.start()
    first = runs.submit("--gpus", "4", script="while [ ! -e end ]; do sleep 0.01; done")
    drained = runs.wait(first, "running")["holds"]["placement"][0]["node"]
    other = {"n1": "n2", "n2": "n1"}[drained]
    runs.nodes(**{drained: "node_drained", other: "node_back"})
    closed = f'larder_queue_node_gpus{{node="{drained}"}} 0'
    runs.until(lambda: closed in runs.allocator.ask("GET", "/metrics").body.decode(), closed)
    second = runs.submit("--gpus", "4", script=FOREVER)
    assert runs.wait(second, "running")["holds"]["placement"][0]["node"] == other
    third = runs.submit("--gpus", "4", script="exit 0")
    (runs.directory / "end").touch()
    assert runs.wait(first, "succeeded")["attempt"] == 1
    assert "4 are on lost or drained nodes" in runs.larder("job", "why", third)
    runs.nodes(n1="node_back", n2="node_back")
    runs.wait(third, "succeeded")


def test_agent_that_lost_its_attempts_gets_them_again(agent: Runs) -> None:
    runs = agent.start()
    job = runs.submit(script=FOREVER)
    runs.wait_for("runs-1")
    runs.wait(job, "running")
    runs.kill_agent()
    (runs.attempt(job) / "action").unlink()
    runs.start_agent()
    runs.wait_for("runs-2")
    runs.wait_for_log(job, "lost: the cluster manager no longer has it")


def test_attempt_of_a_lost_queue_is_ended_and_not_taken_for_a_new_one(agent: Runs) -> None:
    runs = agent.start()
    old = runs.submit(script='trap "touch ended; exit 7" TERM; touch began; while :; do sleep 0.01; done')
    runs.wait_for("began")
    runs.wait(old, "running")
    runs.lose_queue()
    new = runs.submit(script="touch new; while [ ! -e go ]; do sleep 0.01; done")
    assert new == old
    runs.wait_for("ended")
    runs.wait_for("new")
    (runs.directory / "go").touch()
    assert runs.wait(new, "succeeded")["attempt"] == 1


@pytest.fixture
def nodes_of_agent(agent: Runs) -> Runs:
    """An agent that names the nodes."""
    agent.agent_has_nodes = True
    agent.nodes(a="node_back 4 a100 rack=r1", b="node_drained 2 k80")
    runs = agent.start()
    runs.wait_for_gpus(a=4, b=2)
    return runs


def test_nodes_that_only_the_agent_knows_get_jobs(nodes_of_agent: Runs) -> None:
    runs = nodes_of_agent
    assert runs.inventory()["a"] == {
        "node": "a", "gpus": 4, "gpu_type": "a100", "free_gpus": 4, "jobs": 0, "is_usable": True,
        "labels": {"rack": "r1"},
    }  # fmt: skip
    assert not runs.inventory()["b"]["is_usable"]
    first = runs.submit("--gpus", "4", script='echo $NODE; touch began; while [ ! -e end ]; do sleep 0.01; done')
    runs.wait_for("began")
    second = runs.submit("--gpus", "2", "--gpu-type", "k80", script="echo $NODE")
    runs.nodes(a="node_back 4 a100", b="node_back 2 k80")
    runs.wait(second, "succeeded")
    assert runs.output(second) == "b\n"
    assert "h100" in runs.larder("job", "submit", "--gpu-type", "h100", "--", "true", status=4)
    runs.nodes(a="node_back 4 a100", b="node_back 2 k80", c="node_back 8 h100")
    runs.wait_for_gpus(a=4, b=2, c=8)
    third = runs.submit("--gpus", "8", "--gpu-type", "h100", script="echo $NODE")
    runs.wait(third, "succeeded")
    assert runs.output(third) == "c\n"
    (runs.directory / "end").touch()
    assert runs.wait(first, "succeeded")["attempt"] == 1


def test_node_that_shrinks_keeps_its_job_and_gets_no_more_until_it_has_room(nodes_of_agent: Runs) -> None:
    runs = nodes_of_agent
    first = runs.submit("--gpus", "3", script="touch began; while [ ! -e end ]; do sleep 0.01; done")
    runs.wait_for("began")
    runs.wait(first, "running")
    runs.nodes(a="node_back 2 a100")
    runs.wait_for_gpus(a=2)
    assert runs.inventory()["a"]["free_gpus"] == 0
    second = runs.submit("--gpus", "1", script="exit 0")
    runs.restart_allocator()
    assert runs.job(first)["state"] == "running"
    assert "0 GPUs of 2 are free" in runs.larder("job", "why", second)
    (runs.directory / "end").touch()
    assert runs.wait(first, "succeeded")["attempt"] == 1
    runs.wait(second, "succeeded")


def test_removed_node_loses_its_job_which_runs_elsewhere(nodes_of_agent: Runs) -> None:
    runs = nodes_of_agent
    job = runs.submit("--gpus", "2", script=f"echo $NODE; {FOREVER}")
    runs.wait_for("runs-1")
    runs.wait(job, "running")
    runs.nodes(b="node_back 2 k80")
    runs.wait_for("runs-2")
    assert runs.output(job, 2) == "b\n"
    runs.wait_for_gpus(b=2)


def test_nodes_that_change_while_the_agent_is_away_are_compared(nodes_of_agent: Runs) -> None:
    runs = nodes_of_agent
    job = runs.submit("--gpus", "4", script=FOREVER)
    runs.wait_for("runs-1")
    runs.wait(job, "running")
    runs.kill_agent()
    runs.restart_allocator()
    assert runs.agent is not None  # It was started anew.
    runs.wait_for_gpus(a=4, b=2)
    runs.kill_agent()
    runs.nodes(c="node_back 4 a100")
    runs.start_agent()
    # A node that is left out once is lost, and its job goes on.
    runs.wait_for_gpus(a=4, b=2, c=4)
    assert [runs.inventory()[name]["is_usable"] for name in "abc"] == [False, False, True]
    runs.kill_agent()
    runs.start_agent()
    runs.wait_for_gpus(a=4, c=4)
    assert runs.job(job)["state"] == "running"
    assert runs.job(job)["attempt"] == 1


def test_last_known_nodes_are_those_after_a_restart(nodes_of_agent: Runs) -> None:
    runs = nodes_of_agent
    # An answer to a submission means that the nodes are on record. The list may show them earlier.
    runs.wait(runs.submit("--gpus", "1", script="exit 0"), "succeeded")
    runs.kill_agent()
    runs.allocator.kill()
    runs.start(*runs.options, agent=False)
    assert {name: node["gpus"] for name, node in runs.inventory().items()} == {"a": 4, "b": 2}
    job = runs.submit("--gpus", "4", script="exit 0")
    runs.wait_for_log(job, "is pending: no agent of the cluster manager is connected")
    runs.start_agent()
    runs.wait(job, "succeeded")


def test_without_an_agent_a_job_waits_for_one(agent: Runs) -> None:
    runs = agent.start(agent=False)
    job = runs.submit(script="exit 0")
    runs.wait_for_log(job, "is pending: no agent of the cluster manager is connected")
    status = runs.allocator.ask("GET", "/v1/status").json()
    assert status["warning"] == "no agent of the cluster manager is connected"
    runs.start_agent()
    runs.wait(job, "succeeded")


# Each task says where it runs, and goes on until the file `end` is there or it is asked to end. While the file `linger`
# is there, a task that is asked to end stays.
ELASTIC = """trap 'touch left-$NODE; while [ -e linger ] && [ ! -e end ]; do sleep 0.01; done; exit 0' TERM
echo "$LARDER_NODE_RANK $NODE $LARDER_NODES $LARDER_GPUS $MASTER_ADDR $CUDA_VISIBLE_DEVICES" >> began-$LARDER_ATTEMPT
while [ ! -e end ]; do sleep 0.01; done"""


class Elastic:
    """An elastic job that has both nodes, and may have one or two. `second` is a job that wants one of them."""

    grace_s = 60  # longer than a held resize

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.second = 0
        runs.start("--scheduler.policy", "las")
        if runs.agent_has_nodes:
            runs.wait_for_gpus(n1=4, n2=4)
        self.job = self.submit()
        self.wait_for_gpus(8)
        self.until_began(2)

    def submit(self, script: str = ELASTIC) -> int:
        asked = ("--gpus", "4", "--gpus-max", "8", "--elastic", "--grace", self.grace_s)
        return self.runs.submit(*asked, script=script)

    def show(self) -> dict:
        return self.runs.job(self.job)

    def began(self, attempt: int = 1) -> list[list[str]]:
        file = self.runs.directory / f"began-{attempt}"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def until_began(self, tasks: int, attempt: int = 1) -> None:
        self.runs.until(lambda: len(self.began(attempt)) == tasks, f"not {tasks} tasks")

    def wait_for_gpus(self, gpus: int) -> None:
        def reached() -> bool:
            shown = self.show()
            assert shown["state"] not in ENDED, shown
            return shown["state"] == "running" and shown["holds"]["gpus"] == gpus and "resizes_to" not in shown

        self.runs.until(reached, f"the job does not have {gpus} GPUs")

    def nodes(self) -> list[str]:
        return [share["node"] for share in self.show()["holds"]["placement"]]

    def submit_second(self) -> None:
        """Submits the job for which the first one shrinks."""
        self.second = self.runs.submit("--gpus", "4", script="touch second; while [ ! -e end-second ]; do sleep 0.01; done")

    def end_second(self) -> None:
        (self.runs.directory / "end-second").touch()

    def begin_resize(self, grows: bool) -> None:
        """Begins a resize that the agent does not carry out."""
        if grows:
            self.shrink()
        self.runs.hold_resizes()
        if grows:
            self.end_second()
        else:
            self.submit_second()
        self.until_resizing()

    def until_resizing(self) -> None:
        self.runs.until(lambda: "resizes_to" in self.show(), "the job is not being resized")

    def shrink(self) -> None:
        self.submit_second()
        self.wait_for_gpus(4)
        self.runs.wait(self.second, "running")

    def end(self, attempt: int = 1) -> None:
        (self.runs.directory / "end").touch()
        shown = self.runs.wait(self.job, "succeeded")
        assert (shown["attempt"], shown["preemptions"]) == (attempt, attempt - 1)


@pytest.fixture
def elastic(resizing: Runs) -> Elastic:
    return Elastic(resizing)


@pytest.fixture
def elastic_of_agent(agent: Runs) -> Elastic:
    return Elastic(agent)


def test_elastic_job_shrinks_and_grows_in_one_attempt(elastic: Elastic) -> None:
    runs = elastic.runs
    first, other = elastic.nodes()
    elastic.shrink()
    assert elastic.nodes() == [first]
    assert [share["node"] for share in runs.job(elastic.second)["holds"]["placement"]] == [other]
    assert (runs.directory / f"left-{other}").exists()
    elastic.end_second()
    elastic.wait_for_gpus(8)
    elastic.until_began(3)
    assert elastic.nodes() == [first, other]
    # A pod knows what its template takes from its annotations.
    told = [f"{first},{other}"] + ([] if runs.engine == "kubernetes" else ["8", first, "0,1,2,3"])
    assert sorted(elastic.began()[:2]) == [["0", first, *told], ["1", other, *told]]
    assert elastic.began()[2] == ["1", other, *told]
    assert not (runs.directory / f"left-{first}").exists()
    assert elastic.show()["resizes"] == 2
    assert "larder_queue_resizes_total 2" in runs.allocator.ask("GET", "/metrics").body.decode()
    elastic.end()


def test_job_restarts_if_its_agent_does_not_resize(agent: Runs) -> None:
    agent.steer("rigid", "yes")
    elastic = Elastic(agent)
    elastic.submit_second()
    elastic.wait_for_gpus(4)
    assert elastic.show()["attempt"] == 2


def test_job_restarts_if_it_cannot_be_shrunk(elastic: Elastic) -> None:
    elastic.runs.refuse_resizes("no such machine")
    elastic.submit_second()
    said = "" if elastic.runs.engine == "kubernetes" else "cannot be resized: "  # the API server says more
    elastic.runs.wait_for_log(elastic.job, f"{said}no such machine: it is stopped, and starts again")
    elastic.wait_for_gpus(4)
    elastic.until_began(1, attempt=2)
    elastic.end(attempt=2)


def test_growth_that_is_refused_is_taken_back_and_tried_again(elastic: Elastic) -> None:
    runs = elastic.runs
    elastic.shrink()
    runs.refuse_resizes("no such machine")
    elastic.end_second()
    runs.wait_for_log(elastic.job, "no such machine: it goes on with 4 GPUs")
    runs.refuse_resizes("")
    elastic.wait_for_gpus(8)
    elastic.end()


@pytest.mark.parametrize("restart", ["allocator", "agent", "both"])
@pytest.mark.parametrize("grows", [False, True])
def test_resize_goes_on_after_a_restart(elastic: Elastic, restart: str, grows: bool) -> None:
    runs = elastic.runs
    elastic.begin_resize(grows)
    runs.until(lambda: runs.is_resize_told(elastic.job), "the agent was not told")
    if restart != "allocator":
        runs.kill_agent()
    if restart != "agent":
        runs.restart_allocator()
    if runs.agent is None:
        runs.start_agent()
    assert elastic.show()["holds"]["gpus"] == (4 if grows else 8)
    assert grows or not (runs.directory / "second").exists()
    runs.go_on()
    elastic.wait_for_gpus(8 if grows else 4)
    if grows:
        elastic.until_began(3)
    else:
        runs.wait_for("second")
    elastic.end()


def test_agent_that_lost_a_resize_is_told_again(elastic_of_agent: Elastic) -> None:
    elastic = elastic_of_agent
    runs = elastic.runs
    runs.hold_resizes()
    elastic.submit_second()
    runs.until(lambda: runs.is_resize_told(elastic.job), "the agent was not told")
    first = elastic.nodes()[0]
    assert f"resizes to  {first}\n" in runs.larder("job", "show", elastic.job)
    why = runs.larder("job", "why", elastic.job)
    assert f"and is to have 4 GPUs of {first} (0-3) without a restart" in why
    runs.kill_agent()
    (runs.attempt(elastic.job) / "resize").unlink()
    runs.go_on()
    runs.start_agent()
    elastic.wait_for_gpus(4)
    elastic.end()


def test_agent_that_no_longer_resizes_lets_the_job_restart(elastic_of_agent: Elastic) -> None:
    elastic = elastic_of_agent
    runs = elastic.runs
    runs.hold_resizes()
    elastic.submit_second()
    elastic.until_resizing()
    runs.kill_agent()
    runs.steer("rigid", "yes")
    runs.start_agent()
    runs.wait_for_log(elastic.job, "cannot be resized: agent processes resizes no jobs")
    elastic.wait_for_gpus(4)
    assert elastic.show()["attempt"] == 2


def test_node_lost_while_a_job_grows_there_does_not_stop_the_job(elastic: Elastic) -> None:
    runs = elastic.runs
    elastic.shrink()
    (first,) = elastic.nodes()
    other = {"n1": "n2", "n2": "n1"}[first]
    runs.hold_resizes()
    elastic.end_second()
    elastic.until_resizing()
    runs.nodes(**{first: "node_back", other: "node_lost"})
    runs.wait_for_log(elastic.job, f"node {other} was lost before the job began there")
    runs.go_on()
    elastic.wait_for_gpus(4)
    assert elastic.nodes() == [first]
    assert len(elastic.began()) == 2
    runs.nodes(n1="node_back", n2="node_back")
    elastic.wait_for_gpus(8)
    elastic.end()


class Lingering(Elastic):
    """Its tasks stay when they are asked to end."""

    def submit(self, script: str = ELASTIC) -> int:
        return super().submit(script.replace("exit 0", "while :; do sleep 0.01; done"))


def test_node_lost_while_a_task_leaves_it_does_not_stop_the_job(resizing: Runs) -> None:
    elastic = Lingering(resizing)
    first, other = elastic.nodes()
    elastic.submit_second()
    resizing.wait_for(f"left-{other}")
    assert "resizes_to" in elastic.show()
    resizing.nodes(**{first: "node_back", other: "node_lost"})
    resizing.wait_for_log(elastic.second, f"node {other} was lost before the job began there")
    elastic.wait_for_gpus(4)
    assert elastic.nodes() == [first]
    elastic.end()


def test_node_removed_while_a_job_grows_there_does_not_stop_the_job(agent: Runs) -> None:
    agent.agent_has_nodes = True
    agent.nodes(n1="node_back 4", n2="node_back 4")
    elastic = Elastic(agent)
    elastic.shrink()
    (first,) = elastic.nodes()
    agent.hold_resizes()
    elastic.end_second()
    elastic.until_resizing()
    agent.nodes(**{first: "node_back 4"})
    agent.wait_for_gpus(**{first: 4})
    agent.go_on()
    elastic.wait_for_gpus(4)
    agent.nodes(**{first: "node_back 4"}, n3="node_back 4")
    elastic.wait_for_gpus(8)
    assert elastic.nodes() == [first, "n3"]
    elastic.end()


@pytest.mark.parametrize("grows", [False, True])
def test_job_cancelled_in_the_midst_of_a_resize_ends_on_all_nodes(elastic: Elastic, grows: bool) -> None:
    runs = elastic.runs
    elastic.begin_resize(grows)
    runs.larder("job", "cancel", elastic.job)
    if runs.engine == "kubernetes":
        runs.go_on()  # The gates of other Jobs are held, too.
    runs.wait(elastic.job, "cancelled")
    whole = runs.submit("--gpus", "4" if not grows else "8", script="exit 0")
    runs.wait(whole, "succeeded")


def test_job_that_ends_in_the_midst_of_a_resize_has_succeeded(elastic: Elastic) -> None:
    elastic.runs.hold_resizes()
    elastic.submit_second()
    elastic.until_resizing()
    elastic.end()
    elastic.runs.wait(elastic.second, "running")


def test_task_that_ignores_the_request_to_leave_is_killed_after_its_grace(resizing: Runs) -> None:
    runs = resizing.start("--scheduler.policy", "las")
    job = runs.submit(
        "--gpus", "4", "--gpus-max", "8", "--elastic", "--grace", "0.2",
        script='trap "" TERM; touch "up-$NODE"; while [ ! -e end ]; do sleep 0.01; done',
    )  # fmt: skip
    for node in ("n1", "n2"):
        runs.wait_for(f"up-{node}")
    runs.wait(job, "running")
    second = runs.submit("--gpus", "4", script="exit 0")
    runs.wait(second, "succeeded")
    (runs.directory / "end").touch()
    assert runs.wait(job, "succeeded")["attempt"] == 1


def test_elastic_job_needs_a_range_of_gpus(agent: Runs) -> None:
    agent.start()
    said = agent.larder("job", "submit", "--gpus", "4", "--elastic", "--", "true", status=2)
    assert "elastic: needs a range of GPUs" in said


def test_local_engine_restarts_an_elastic_job(
    larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path
) -> None:
    runs = Runs(larder_bin, tmp_path, repository, "local").start("--scheduler.policy", "las")
    try:
        job = runs.submit("--gpus", "4", "--gpus-max", "8", "--elastic", script=FOREVER)
        runs.wait_for("runs-1")
        runs.wait(job, "running")
        runs.submit("--gpus", "4", script=FOREVER)
        runs.wait_for("runs-2")
    finally:
        runs.end()


# An agent of torchrun on each node, with one worker each. The worker of rank 0 saves its step. When an agent comes or
# goes, the workers meet again, and go on from the saved step.
TORCHRUN = """exec /usr/bin/python3 -m torch.distributed.run --redirects=1 --tee=1 --log_dir=logs-$NODE --nnodes=1:2 \
    --nproc_per_node=1 --monitor_interval=1 --max_restarts=100 --rdzv_backend=c10d --rdzv_id=${LARDER_JOB:-train} --rdzv_endpoint=localhost:$PORT \
    --rdzv_conf=last_call_timeout=1,is_host=$([ "$LARDER_NODE_RANK" = 0 ] && echo 1 || echo 0) train.py"""
TRAIN = """
import os, pathlib, time, torch, torch.distributed
saved = pathlib.Path("step")
step = int(saved.read_text()) if saved.exists() else 0
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
if rank == 0:
    with open("worlds", "a") as worlds:
        worlds.write(f"{world} {step}\\n")
ends = False
while not ends:
    together = torch.tensor([1.0, float(os.path.exists("end"))])
    torch.distributed.all_reduce(together)
    assert together[0] == world
    ends = together[1] > 0
    step += 1
    if rank == 0:
        pathlib.Path("step.new").write_text(str(step))
        os.rename("step.new", "step")
    time.sleep(0.02)
"""


@pytest.fixture
def held_port() -> Iterator[int]:
    with hold_port() as held:
        yield held.getsockname()[1]


def test_torchrun_goes_on_from_its_saved_step_with_fewer_nodes_and_more(resizing: Runs, held_port: int) -> None:
    has_torch = subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed.run"], capture_output=True)
    if has_torch.returncode != 0:
        pytest.skip("the system's Python has no PyTorch")
    runs = resizing.start("--scheduler.policy", "las")
    (runs.directory / "train.py").write_text(TRAIN)

    def worlds() -> list[list[int]]:
        file = runs.directory / "worlds"
        lines = file.read_text().splitlines() if file.exists() else []
        return [[int(number) for number in line.split()] for line in lines]

    def wait_for_world(size: int, after: int) -> None:
        """Waits for a step of workers that met after the first `after` meetings."""

        def reached() -> bool:
            met = worlds()
            saved = runs.directory / "step"
            is_met = len(met) > after and met[-1][0] == size and saved.exists()
            return is_met and int(saved.read_text()) > met[-1][1]

        runs.until(reached, f"no world of {size}")

    job = runs.submit(
        "--gpus", "4", "--gpus-max", "8", "--elastic", "--env", f"PORT={held_port}", "--env", "OMP_NUM_THREADS=1",
        script=TORCHRUN,
    )  # fmt: skip
    wait_for_world(2, 0)
    met = len(worlds())
    second = runs.submit("--gpus", "4", script="while [ ! -e end-second ]; do sleep 0.01; done")
    runs.wait(second, "running")
    wait_for_world(1, met)
    met = len(worlds())
    (runs.directory / "end-second").touch()
    wait_for_world(2, met)
    steps = [step for _, step in worlds()]
    assert steps == sorted(steps)
    assert steps[-1] > 0
    (runs.directory / "end").touch()
    shown = runs.wait(job, "succeeded")
    assert (shown["attempt"], shown["resizes"], shown["preemptions"]) == (1, 2, 0)
