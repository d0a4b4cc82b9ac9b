"""Larder decides what Slurm runs, on a real Slurm with a real allocator and the agent of larder-slurm: docs/slurm.md."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import shutil
from collections.abc import Iterator

import pytest
from allocator_process import node_report, reporting
from slurm_place import PlaceSite, site, until_file

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a Slurm for several users")
TENANTS = ("--scheduler.tenant.red.weight", "1", "--scheduler.tenant.blue.weight", "1", "--scheduler.tenant.default.weight", "1")


@pytest.fixture(scope="module")
def started(open_directory: pathlib.Path, larder_bin: pathlib.Path, repository: pathlib.Path) -> Iterator[PlaceSite]:
    site = PlaceSite(larder_bin, repository, open_directory, *TENANTS)
    yield site
    site.stop()


def test_held_job_is_placed_runs_and_ends(site: PlaceSite) -> None:
    job = site.submit("env | grep -E '^(LARDER|MASTER)_' | sort", "--nodes=2", line="grace=5", gpus=2)
    site.waits(job, "COMPLETED")
    shown = site.waits_in_larder(job, "succeeded")
    assert (shown["gpus"], shown["pods"], shown["grace_s"], shown["tenant"]) == (4, [2, 2], 5, "default")
    seen = dict(line.split("=", 1) for line in site.output(job).splitlines())
    nodes = seen["LARDER_NODES"].split(",")
    placed = next(line for line in site.log_of(job).splitlines() if line.startswith("gets 4 GPUs of "))
    assert len(nodes) == 2 and all(f"{node} (" in placed for node in nodes), placed
    assert seen == {
        "LARDER_JOB": f"slurm-{job}", "LARDER_ATTEMPT": "1", "LARDER_GPUS": "4", "LARDER_NODES": ",".join(nodes),
        "LARDER_NODE_COUNT": "2", "LARDER_NODE_RANK": "0", "MASTER_ADDR": nodes[0], "MASTER_PORT": str(20000 + int(job)),
        "LARDER_SOCKET": f"{site.directory}/larderd.sock",
    }  # fmt: skip


def test_jobs_of_another_partition_are_left_alone(site: PlaceSite) -> None:
    job = site.submit("env | grep -c ^LARDER_", "--partition=q")
    site.waits(job, "FAILED")
    assert site.output(job) == "0\n"
    assert site.larder(job) == {}
    assert site.field(job, "AdminComment") == ""


REFUSALS = {
    "no GPU": ((), "", 0, "ask for GPUs of each node: --gpus-per-node=G"),
    "GPUs of the job": (("--gpus=2",), "", 0, "ask for GPUs of each node: --nodes=N --gpus-per-node=G"),
    "nodes by name": (("--nodelist=n1",), "", 1, "Larder picks the nodes: name none"),
    "a reservation": (("--reservation=r",), "", 1, "Larder places no jobs in reservations"),
    "a line that is too long": ((), "dataset=" + "x" * 200, 1, "more than 200 characters"),
    "two partitions": (("--partition=p,q",), "", 1, "name one partition only"),
    "a range of nodes": (("--nodes=1-3",), "", 1, "ask for one number of nodes: --nodes=N"),
    "an unknown word": ((), "dataset=images quota=1", 1, '"quota=1": expected dataset=NAME'),
    "a word twice": ((), "dataset=images dataset=texts", 1, '"dataset=texts" was given before'),
    "a mark of ours": ((), "attempt=9.9", 1, '"attempt=9.9": expected dataset=NAME'),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_reaches_the_user_of_sbatch(site: PlaceSite, case: str) -> None:
    options, line, gpus, text = REFUSALS[case]
    refused = site.sbatch("true", *options, line=line, gpus=gpus)
    assert refused.returncode != 0
    assert f"larder: {text}" in refused.stderr or f"larder: #LARDER: {text}" in refused.stderr, refused.stderr


def test_users_may_not_release_or_move_a_held_job(site: PlaceSite) -> None:
    blocker = site.submit("sleep 1000", "--nodes=8", gpus=2)
    site.waits(blocker, "RUNNING")
    job = site.submit("true")
    site.waits_in_larder(job, "waiting")
    for command in (("release", job), ("hold", job), ("update", f"JobId={job}", "Priority=5"), ("update", f"JobId={job}", "Partition=q"),
                    ("update", f"JobId={job}", "Nice=1"), ("update", f"JobId={job}", "Nice=-1"),
                    ("update", f"JobId={job}", "Requeue=0"), ("update", f"JobId={job}", "ReservationName=r"),
                    ("update", f"JobId={job}", "NodeList=n1"), ("update", f"JobId={job}", "AdminComment=larder")):  # fmt: skip
        refused = site.run("scontrol", *command)
        assert refused.returncode != 0 and "permission denied" in refused.stderr, (command, refused.stderr)
    assert site.state(job) == "PENDING" and site.field(job, "Priority") == "0"


AS_USER = """
import http.client, socket, sys
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request(sys.argv[2], sys.argv[3], sys.argv[4] or None, {"Content-Type": "application/json"})
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def test_other_user_cannot_pose_as_a_slurm_job(site: PlaceSite) -> None:
    def ask(method: str, target: str, job: dict | None = None) -> str:
        text = json.dumps({"jobs": [{"command": ["true"], "directory": "/"} | job]}) if job else ""
        return site.run("/usr/bin/python3", "-c", AS_USER, site.allocator.socket, method, target, text, user="daemon").stdout

    site.allocator.socket.chmod(0o666)
    blocker = site.submit("sleep 1000", "--nodes=8", gpus=2)
    site.waits(blocker, "RUNNING")
    job = site.submit("true", user="nobody")
    site.waits_in_larder(job, "waiting")
    assert ask("POST", "/v1/queue", {"name": "own"}).startswith("200 ")
    for posing in (
        {"name": f"slurm-{int(job) + 1}"}, {"name": "mine", "engine_parameters": {"slurm_job": job}},
        {"name": f"slurm-{job}_1", "engine_parameters": {"slurm_job": blocker}},
    ):  # fmt: skip
        assert ask("POST", "/v1/queue", posing).startswith("403 "), posing
    assert ask("DELETE", f"/v1/queue/slurm-{job}").startswith("403 ")
    assert ask("DELETE", "/v1/queue/own").startswith("200 ")
    assert (site.state(blocker), site.state(job)) == ("RUNNING", "PENDING")
    site.run("scancel", blocker)
    site.waits(job, "COMPLETED")


def test_jobs_start_in_larders_order_and_not_in_slurms(site: PlaceSite) -> None:
    """Larder's FIFO does not let the small third job pass the large second one; Slurm, told to prefer it, would."""
    blocker = site.submit(until_file("go-fifo"), gpus=2)
    site.waits(blocker, "RUNNING")
    large = site.submit("date +%s.%N >large", "--nodes=8", gpus=2)
    site.waits_in_larder(large, "waiting")
    small = site.submit("date +%s.%N >small", "--nice=0", gpus=1)
    site.waits_in_larder(small, "waiting")
    third = site.submit("true", gpus=1)  # one more look has passed once Larder knows it
    site.waits_in_larder(third, "waiting")
    assert (site.state(large), site.state(small)) == ("PENDING", "PENDING")
    (site.jobs / "go-fifo").touch()
    for job in (large, small, third):
        site.waits(job, "COMPLETED")
    assert float((site.jobs / "large").read_text()) < float((site.jobs / "small").read_text())


@pytest.mark.parametrize("stage", ["held", "running"])
def test_scancel_cancels_the_larder_job(site: PlaceSite, stage: str) -> None:
    blocker = site.submit("sleep 1000", "--nodes=8", gpus=2)
    site.waits(blocker, "RUNNING")
    job = blocker
    if stage == "held":
        job = site.submit("true")
        site.waits_in_larder(job, "waiting")
    site.run("scancel", job)
    assert site.waits_in_larder(job, "cancelled")["attempt"] == (0 if stage == "held" else 1)
    assert site.state(job) == "CANCELLED"


@pytest.mark.parametrize("stage", ["held", "running"])
def test_job_that_larder_cancels_is_cancelled_in_slurm(site: PlaceSite, stage: str) -> None:
    blocker = site.submit("sleep 1000", "--nodes=8", line="grace=1", gpus=2)
    site.waits(blocker, "RUNNING")
    job = blocker
    if stage == "held":
        job = site.submit("true")
        site.waits_in_larder(job, "waiting")
    assert site.allocator.ask("DELETE", f"/v1/queue/slurm-{job}").status == 200
    site.waits_in_larder(job, "cancelled")
    site.until(lambda: site.state(job) == "CANCELLED")  # it was stopped, held, and then cancelled


ENDS = {"exit 0": ("succeeded", "exit_code", 0), "exit 3": ("failed", "exit_code", 3), "kill -9 $$": ("failed", "exit_signal", 9)}


@pytest.mark.parametrize("command", ENDS)
def test_end_of_a_job_is_told(site: PlaceSite, command: str) -> None:
    state, how, number = ENDS[command]
    shown = site.waits_in_larder(site.submit(command), state)
    assert shown[how] == number


def test_job_that_an_operator_requeues_is_placed_again(site: PlaceSite) -> None:
    job = site.submit('[ "$LARDER_ATTEMPT" = 2 ] && echo again && exit 0; touch requeue-me; sleep 1000')
    site.until((site.jobs / "requeue-me").exists)
    site.waits_in_larder(job, "running")
    site.scontrol("requeue", job)
    site.waits_in_larder(job, "succeeded")
    assert "evicted by the cluster manager: requeued in Slurm" in site.log_of(job)
    assert site.output(job).endswith("again\n")


def test_job_that_is_requeued_after_its_end_runs_again(site: PlaceSite) -> None:
    job = site.submit("echo run >>twice")
    first = site.waits_in_larder(job, "succeeded")["id"]
    site.scontrol("requeue", job)
    site.until(lambda: (site.jobs / "twice").read_text() == "run\n" * 2)
    site.until(lambda: site.larder(job).get("id") != first and site.larder(job)["state"] == "succeeded")


def test_drained_node_takes_no_job_and_its_job_goes_on(site: PlaceSite) -> None:
    job = site.submit(until_file("go-drain"), gpus=2)
    site.waits(job, "RUNNING")
    node = site.field(job, "NodeList")
    site.scontrol("update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        closed = f'larder_queue_node_gpus{{node="{node}"}} 0'
        site.until(lambda: closed in site.allocator.ask("GET", "/metrics").body.decode())
        others = [site.submit("sleep 1000", gpus=2) for _ in range(7)]
        waiting = site.submit("true", gpus=2)
        for other in others:
            site.waits(other, "RUNNING")
            assert site.field(other, "NodeList") != node
        (site.jobs / "go-drain").touch()
        site.waits(job, "COMPLETED")
        site.waits_in_larder(job, "succeeded")
        why = site.allocator.ask("GET", f"/v1/queue/slurm-{waiting}/why").json()["why"]
        assert "on lost or drained nodes" in why
        assert site.state(waiting) == "PENDING"
    finally:
        site.scontrol("update", f"NodeName={node}", "State=RESUME")
    site.waits(waiting, "COMPLETED")


def test_job_of_a_node_that_goes_down_is_lost_and_placed_again(site: PlaceSite) -> None:
    job = site.submit('[ "$LARDER_ATTEMPT" = 2 ] && exit 0; sleep 1000')
    site.waits(job, "RUNNING")
    site.waits_in_larder(job, "running")
    node = site.field(job, "NodeList")
    site.server.ask({"do": "kill", "node": node})  # a slurmd that lives would bring its node back at once
    site.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        site.waits_in_larder(job, "succeeded")
        assert "lost: its node failed, and Slurm has requeued the job" in site.log_of(job)
        assert site.field(job, "NodeList") != node
    finally:
        site.server.ask({"do": "start", "node": node})
    back = f'larder_queue_node_gpus{{node="{node}"}} 2'
    site.until(lambda: back in site.allocator.ask("GET", "/metrics").body.decode())


def test_node_that_others_use_takes_no_job(site: PlaceSite) -> None:
    other = site.submit("sleep 1000", "--partition=q", "--nodelist=n3", gpus=1)
    site.waits(other, "RUNNING")
    closed = 'larder_queue_node_gpus{node="n3"} 0'
    site.until(lambda: closed in site.allocator.ask("GET", "/metrics").body.decode())
    site.run("scancel", other)
    site.until(lambda: closed not in site.allocator.ask("GET", "/metrics").body.decode())


def test_accounts_are_tenants_and_users_are_readers(site: PlaceSite) -> None:
    users = {"red": "nobody", "blue": "daemon"}
    jobs = {
        account: site.submit("echo $LARDER_TENANT", f"--account={account}", user=user) for account, user in users.items()
    }
    for account, job in jobs.items():
        shown = site.waits_in_larder(job, "succeeded")
        assert (shown["tenant"], shown["reader_uid"]) == (account, pwd.getpwnam(users[account]).pw_uid)
        assert site.output(job) == f"{account}\n"
    stranger = site.submit("true", "--account=green")
    site.until(lambda: "unknown" in site.field(stranger, "AdminComment"))
    assert 'tenant_`green`_is_unknown' in site.field(stranger, "AdminComment")
    assert site.state(stranger) == "PENDING" and site.larder(stranger) == {}


def test_tasks_of_an_array_are_jobs_of_their_own(site: PlaceSite) -> None:
    job = site.submit("echo $LARDER_JOB; [ $SLURM_ARRAY_TASK_ID != 3 ]", "--array=1-3")
    for task in (1, 2, 3):
        shown = site.waits_in_larder(f"{job}_{task}", "failed" if task == 3 else "succeeded")
        assert shown["name"] == f"slurm-{job}_{task}"
        assert (site.jobs / f"slurm-{job}_{task}.out").read_text() == f"slurm-{job}_{task}\n"


def test_cancelled_array_is_cancelled_in_larder(site: PlaceSite) -> None:
    blocker = site.submit("sleep 1000", "--nodes=8", gpus=2)
    site.waits(blocker, "RUNNING")
    job = site.submit("true", "--array=1-3")
    for task in (1, 2, 3):
        site.waits_in_larder(f"{job}_{task}", "waiting")
    site.run("scancel", f"{job}_2")
    site.waits_in_larder(f"{job}_2", "cancelled")
    assert site.larder(f"{job}_1")["state"] == "waiting"
    site.run("scancel", job)
    for task in (1, 3):
        site.waits_in_larder(f"{job}_{task}", "cancelled")


def test_interactive_job_is_placed_and_not_preempted(site: PlaceSite) -> None:
    ran = site.run("srun", "--gpus-per-node=1", "sh", "-c", "echo $LARDER_JOB $LARDER_NODE_RANK")
    assert ran.returncode == 0, ran.stderr
    name, rank = ran.stdout.split()
    assert rank == "0"
    assert site.waits_in_larder(name.removeprefix("slurm-"), "succeeded")["preemptible"] is False


def test_job_that_waits_for_another_is_mirrored_once_it_may_run(site: PlaceSite) -> None:
    first = site.submit(until_file("go-first"))
    second = site.submit("true", f"--dependency=afterok:{first}")
    site.waits(first, "RUNNING")
    third = site.submit("true")
    site.waits(third, "COMPLETED")
    assert site.larder(second) == {}
    (site.jobs / "go-first").touch()
    site.waits(second, "COMPLETED")
    site.waits_in_larder(second, "succeeded")


def test_limit_of_slurm_is_a_rejection_for_now(site: PlaceSite) -> None:
    site.scontrol("update", "PartitionName=p", "MaxTime=1")
    try:
        job = site.submit("true", "--time=10")
        site.until(lambda: "rejected by the cluster manager: PartitionTimeLimit" in site.log_of(job))
    finally:
        site.scontrol("update", "PartitionName=p", "MaxTime=UNLIMITED")
    site.waits(job, "COMPLETED")


def test_agent_that_is_killed_finds_its_jobs(site: PlaceSite) -> None:
    running = site.submit(f"echo once >>runs; {until_file('go-agent')}", gpus=2)
    site.waits(running, "RUNNING")
    site.waits_in_larder(running, "running")
    ending = site.submit(f"echo once >>ends; {until_file('end-agent')}; exit 4")
    site.waits(ending, "RUNNING")
    site.waits_in_larder(ending, "running")
    cancelled = site.submit("sleep 1000")
    site.waits(cancelled, "RUNNING")
    site.waits_in_larder(cancelled, "running")
    site.kill_agent()
    (site.jobs / "end-agent").touch()
    site.waits(ending, "FAILED")
    site.run("scancel", cancelled)
    while_away = site.submit("true")
    site.start_agent()
    site.waits_in_larder(ending, "failed")
    assert site.larder(ending)["exit_code"] == 4
    site.waits_in_larder(cancelled, "cancelled")
    site.waits(while_away, "COMPLETED")
    (site.jobs / "go-agent").touch()
    assert site.waits_in_larder(running, "succeeded")["attempt"] == 1
    assert (site.jobs / "runs").read_text() == "once\n"


def test_allocator_that_is_killed_finds_its_jobs(site: PlaceSite) -> None:
    running = site.submit(f"echo once >>kept; {until_file('go-allocator')}", gpus=2)
    site.waits(running, "RUNNING")
    site.waits_in_larder(running, "running")
    site.allocator.kill()
    (site.jobs / "go-allocator").touch()
    site.waits(running, "COMPLETED")
    site.start_allocator(*site.options)
    assert site.waits_in_larder(running, "succeeded")["attempt"] == 1
    assert (site.jobs / "kept").read_text() == "once\n"


def test_job_of_a_lost_queue_is_requeued_and_becomes_one_of_the_new_queue(site: PlaceSite) -> None:
    job = site.submit(f"trap 'echo asked >>lost; exit 1' TERM; echo began >>lost; {until_file('go-lost')} & wait", gpus=2)
    site.waits(job, "RUNNING")
    first = site.waits_in_larder(job, "running")
    site.until((site.jobs / "lost").exists, "its script has not begun")
    # The allocator's state outlives the queue, and has what the queue has registered.
    assert f"slurm-{job}" in [known["name"] for known in site.allocator.ask("GET", "/v1/jobs").json()["jobs"]]
    site.allocator.kill()
    shutil.rmtree(site.directory / "queue")
    site.start_allocator(*site.options)
    site.until(lambda: (site.jobs / "lost").read_text() == "began\nasked\nbegan\n", "it does not run again")
    again = site.waits_in_larder(job, "running")
    assert again["attempt"] == 1 and again["submitted_unix_s"] > first["submitted_unix_s"]
    (site.jobs / "go-lost").touch()
    site.waits_in_larder(job, "succeeded")
    site.waits(job, "COMPLETED")


def test_slurmctld_that_restarts_in_mid_start_starts_each_job_once(site: PlaceSite) -> None:
    jobs = [site.submit(f"echo {number} >>started", gpus=2) for number in range(12)]
    site.until(lambda: any(site.larder(job).get("attempt") for job in jobs), "no job has begun")
    site.server.ask({"do": "restart"})
    for job in jobs:
        site.waits(job, "COMPLETED")
        assert site.waits_in_larder(job, "succeeded")["preemptions"] == 0
    assert sorted(map(int, (site.jobs / "started").read_text().split())) == list(range(12))


HANDLERS = {
    "saves its state": 'trap "touch saved; exit 0" TERM; ',
    "is killed after its grace": 'trap "touch asked" TERM; ',
}


@pytest.mark.parametrize("handler", HANDLERS)
def test_preempted_job_is_requeued_with_grace_and_starts_again(site: PlaceSite, handler: str) -> None:
    site.restart_allocator(*TENANTS, "--scheduler.policy", "srtf")
    try:
        with reporting(site.allocator, node_report()):
            slow = site.submit(
                f"{HANDLERS[handler]}touch slow-$LARDER_ATTEMPT; while :; do sleep 0.05; done", "--nodes=8",
                line="dataset=images epochs=100 grace=2", gpus=2,
            )  # fmt: skip
            site.until((site.jobs / "slow-1").exists)
            site.waits_in_larder(slow, "running")
            quick = site.submit("true", "--nodes=8", line="dataset=images epochs=1", gpus=2)
            site.waits(quick, "COMPLETED")
            site.until((site.jobs / "slow-2").exists)
            shown = site.waits_in_larder(slow, "running")
            assert (shown["attempt"], shown["preemptions"]) == (2, 1)
            assert (site.jobs / ("saved" if "saves" in handler else "asked")).exists()
        site.clear()
    finally:
        for left in site.jobs.glob("slow-*"):
            left.unlink()
        site.restart_allocator(*TENANTS)


def test_agent_that_is_killed_while_a_job_stops_goes_on_with_its_grace(site: PlaceSite) -> None:
    job = site.submit('trap "touch told" TERM; touch runs-grace; while :; do sleep 0.05; done', line="grace=3")
    site.until((site.jobs / "runs-grace").exists)
    site.waits_in_larder(job, "running")
    assert site.allocator.ask("DELETE", f"/v1/queue/slurm-{job}").status == 200
    site.until((site.jobs / "told").exists)
    site.kill_agent()
    site.start_agent()
    site.waits_in_larder(job, "cancelled")
    site.until(lambda: site.state(job) == "CANCELLED")


def test_job_that_forbids_a_requeue_is_not_preempted(site: PlaceSite) -> None:
    job = site.submit("true", "--no-requeue")
    assert site.waits_in_larder(job, "succeeded")["preemptible"] is False


def test_nodes_are_those_of_slurm(open_directory: pathlib.Path, larder_bin: pathlib.Path, repository: pathlib.Path) -> None:
    directory = open_directory / "nodes"
    directory.mkdir()
    directory.chmod(0o755)
    site = PlaceSite(larder_bin, repository, directory, nodes=2, agent_has_nodes=True)

    def nodes() -> dict[str, tuple[int, int, bool]]:
        told = site.allocator.ask("GET", "/v1/gpu-nodes").json()["nodes"]
        return {node["node"]: (node["gpus"], node["free_gpus"], node["is_usable"]) for node in told}

    try:
        site.until(lambda: nodes() == {"n1": (2, 2, True), "n2": (2, 2, True)}, nodes)
        refused = site.allocator.ask("PUT", "/v1/gpu-nodes/n1/drain")
        assert (refused.status, "scontrol update nodename=n1 state=drain" in refused.json()["error"]["message"]) == (501, True)
        job = site.submit(until_file("go-nodes"), "--nodes=2", gpus=2)
        site.waits(job, "RUNNING")
        assert nodes() == {"n1": (2, 0, True), "n2": (2, 0, True)}
        devices = [{"node": node, "devices": ["0", "1"]} for node in ("n1", "n2")]
        site.until(lambda: site.larder(job).get("devices") == devices, lambda: site.larder(job))
        site.scontrol("update", "NodeName=n2", "State=drain", "Reason=test")
        site.until(lambda: nodes() == {"n1": (2, 0, True), "n2": (2, 0, False)}, nodes)
        site.restart_allocator()
        assert set(nodes()) == {"n1", "n2"}
        site.until(lambda: nodes() == {"n1": (2, 0, True), "n2": (2, 0, False)}, nodes)
        (site.jobs / "go-nodes").touch()
        site.waits(job, "COMPLETED")
        assert site.waits_in_larder(job, "succeeded")["attempt"] == 1
        site.scontrol("update", "NodeName=n2", "State=resume")
        site.until(lambda: nodes() == {"n1": (2, 2, True), "n2": (2, 2, True)}, nodes)
        # A node that leaves the partition gets no job, until it is back.
        site.scontrol("update", "PartitionName=p", "Nodes=n1")
        site.until(lambda: not nodes().get("n2", (0, 0, False))[2], nodes)
        for _ in range(2):
            alone = site.submit("echo $LARDER_NODES", gpus=1)
            site.waits(alone, "COMPLETED")
            assert site.output(alone) == "n1\n"
        site.scontrol("update", "PartitionName=p", "Nodes=n1,n2")
        both = site.submit("true", "--nodes=2", gpus=2)
        site.waits(both, "COMPLETED")
    finally:
        site.stop()


def test_job_submitted_to_larder_itself_is_refused(site: PlaceSite) -> None:
    answer = site.allocator.ask("POST", "/v1/queue", {"jobs": [{"command": ["true"], "directory": "/"}]})
    assert answer.status == 200
    number = answer.json()["jobs"][0]["id"]

    def failed() -> bool:
        return bool(site.allocator.ask("GET", f"/v1/queue/{number}").json()["state"] == "failed")

    site.until(failed)
    assert "submitted by sbatch" in site.allocator.ask("GET", f"/v1/queue/{number}").json()["end_reason"]
