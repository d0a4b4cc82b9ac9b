"""Larder decides where gated pods run: a real control plane with fake nodes, a real allocator, and real controllers."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator

import kubernetes
import page
import pytest
import yaml
from cut_relay import CutRelay
from kubernetes_cluster import GPUS, NAMESPACE
from kubernetes_place import JOBS, PLACE_NODES, PODS, PlaceCluster, running

pytestmark = [
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING),
    pytest.mark.control_plane,
]


@pytest.fixture(scope="module")
def cluster(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlaceCluster]:
    yield from running(PlaceCluster, larder_bin, repository, tmp_path_factory.mktemp("k"))


@pytest.fixture(autouse=True)
def nothing_left(cluster: PlaceCluster) -> Iterator[None]:
    yield
    cluster.clean()


def test_gang_runs_where_the_allocator_decides_and_ends(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.places("train") == cluster.decided("train")
    cluster.end_pods("train")
    cluster.until(lambda: cluster.state("train") == "succeeded")
    assert cluster.condition("train", "Complete")
    assert cluster.queue_job("train")["attempt"] == 1


def test_gang_waits_behind_its_gates_until_it_has_all_its_gpus(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("first", pods=2))
    cluster.until(lambda: cluster.state("first") == "running")
    cluster.submit(cluster.gated_job("second", pods=2))
    cluster.until(lambda: cluster.state("second") == "waiting" and cluster.gated("second") == 2)
    assert cluster.places("second") == []
    cluster.delete_job("first")
    cluster.until(lambda: cluster.state("second") == "running")
    assert cluster.places("second") == cluster.decided("second")
    cluster.until(lambda: cluster.state("first") == "cancelled")


def test_controller_killed_between_two_patches_goes_on(cluster: PlaceCluster) -> None:
    cluster.hold_second_pods()
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.between_patches("train"))
    names = sorted(pod["metadata"]["name"] for pod in cluster.pods("train"))
    cluster.controllers["c1"].kill()
    cluster.release()
    assert cluster.gated("train") == 1
    cluster.controllers["c1"].start()
    cluster.until(lambda: cluster.state("train") == "running")
    assert sorted(pod["metadata"]["name"] for pod in cluster.pods("train")) == names
    assert cluster.places("train") == cluster.decided("train")
    assert cluster.queue_job("train")["attempt"] == 1


def test_gang_whose_node_goes_between_two_patches_is_placed_anew(cluster: PlaceCluster) -> None:
    cluster.hold_second_pods()
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.between_patches("train"))
    (placed,) = (pod for pod in cluster.pods("train") if "schedulingGates" not in pod["spec"])
    plan = [word.partition("=")[0] for word in placed["metadata"]["annotations"]["larder.io/plan"].split(",")]
    cluster.api("DELETE", f"/api/v1/nodes/{plan[1]}")
    cluster.until(lambda: f"rejected by the cluster manager: node {plan[1]} is lost" in cluster.log_of("train"))
    cluster.release()
    cluster.until(lambda: cluster.state("train") == "running")
    assert plan[1] not in cluster.places("train")
    assert len(cluster.places("train")) == 2
    assert placed["metadata"]["name"] not in [pod["metadata"]["name"] for pod in cluster.pods("train")]
    shown = cluster.queue_job("train")
    assert (shown["attempt"], shown["preemptions"]) == (2, 0)
    assert cluster.job("train")["status"].get("failed", 0) == 0


def test_preempted_gang_is_suspended_and_runs_again(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("guest", pods=3, **{"larder.io/opportunistic": "true"}))
    cluster.until(lambda: cluster.state("guest") == "running")
    cluster.submit(cluster.gated_job("owner", pods=1))
    cluster.until(lambda: cluster.state("owner") == "running")
    assert cluster.job("guest")["spec"]["suspend"]
    assert cluster.pods("guest") == []
    cluster.delete_job("owner")
    cluster.until(lambda: cluster.state("guest") == "running")
    shown = cluster.queue_job("guest")
    assert (shown["attempt"], shown["preemptions"]) == (2, 1)
    assert len(cluster.places("guest")) == 3
    assert cluster.job("guest")["status"].get("failed", 0) == 0


def test_cordoned_node_takes_no_gang_and_its_gang_goes_on(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: cluster.state("train") == "running")
    (node,) = cluster.places("train")
    cluster.cordon(node)
    cluster.until(
        lambda: f'larder_queue_node_gpus{{node="{node}"}} 0' in cluster.allocator.ask("GET", "/metrics").body.decode()
    )
    cluster.submit(cluster.gated_job("wide", pods=3))
    cluster.until(lambda: cluster.state("wide") == "waiting")
    cluster.delete_job("train")
    cluster.until(lambda: cluster.state("train") == "cancelled")
    assert cluster.state("wide") == "waiting"
    cluster.cordon(node, unschedulable=False)
    cluster.until(lambda: cluster.state("wide") == "running")


def test_gang_of_a_lost_node_is_placed_elsewhere(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.state("train") == "running")
    lost = cluster.places("train")[0]
    cluster.lose(lost)
    cluster.until_runs("train", attempt=2)
    assert f"lost: node {lost} is lost" in cluster.log_of("train")
    assert lost not in cluster.places("train")
    assert len(cluster.places("train")) == 2


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_job_is_cancelled_when_its_job_is_deleted(cluster: PlaceCluster, state: str) -> None:
    if state == "waiting":
        cluster.submit(cluster.gated_job("other", pods=3))
        cluster.until(lambda: cluster.state("other") == "running")
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.state("train") == state)
    first = cluster.queue_job("train")["id"]
    cluster.delete_job("train")
    cluster.until(lambda: cluster.state("train") == "cancelled")
    cluster.submit(cluster.gated_job("train", pods=1))
    cluster.until(lambda: cluster.state("train") == state)
    assert cluster.queue_job("train")["id"] > first


def test_pod_that_others_delete_evicts_its_gang(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.state("train") == "running")
    cluster.delete_pod(cluster.pods("train")[0]["metadata"]["name"])
    cluster.until_runs("train", attempt=2)
    assert "evicted by the cluster manager: a pod was deleted" in cluster.log_of("train")
    assert len(cluster.places("train")) == 2


def test_failed_job_fails_with_the_exit_code_of_its_pod(cluster: PlaceCluster) -> None:
    job = cluster.gated_job("train", pods=2)
    job["spec"]["backoffLimit"] = 0
    cluster.submit(job)
    cluster.until(lambda: cluster.state("train") == "running")
    cluster.end_pod(cluster.pods("train")[0]["metadata"]["name"], 3)
    cluster.until(lambda: cluster.state("train") == "failed")
    assert cluster.queue_job("train")["exit_code"] == 3


def test_failed_pod_is_replaced_in_the_same_attempt(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.state("train") == "running")
    before = cluster.pods("train")
    cluster.end_pod(before[0]["metadata"]["name"], 3)
    cluster.until(lambda: before[0]["spec"]["nodeName"] in cluster.places("train"))
    assert len(cluster.places("train")) == 2
    assert before[1]["metadata"]["name"] in [pod["metadata"]["name"] for pod in cluster.pods("train")]
    assert (cluster.state("train"), cluster.queue_job("train")["attempt"]) == ("running", 1)


def test_job_of_more_completions_than_pods_at_a_time(cluster: PlaceCluster) -> None:
    job = cluster.gated_job("train", pods=2, runs_for="1s")
    job["spec"]["completions"] = 3
    cluster.submit(job)
    cluster.until(lambda: cluster.state("train") == "succeeded")
    assert cluster.job("train")["status"]["succeeded"] == 3
    assert cluster.queue_job("train")["attempt"] == 1


def test_gang_that_kubernetes_cannot_schedule_is_pending(cluster: PlaceCluster) -> None:
    others = [cluster.pod(f"other-{node}", "none", node, GPUS, labels={}) for node in PLACE_NODES]
    cluster.submit(*others)
    cluster.until(lambda: all(pod["status"]["phase"] == "Running" for pod in cluster.pods()))
    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: "Insufficient nvidia.com/gpu" in cluster.queue_job("train").get("pending_for", ""))
    cluster.delete_pods()
    cluster.until(lambda: cluster.state("train") == "running")


def test_gang_waits_for_gpus_that_pods_of_others_have(cluster: PlaceCluster) -> None:
    def gpus() -> dict[str, int]:
        nodes = cluster.allocator.ask("GET", "/v1/gpu-nodes").json()["nodes"]
        return {node["node"]: node["gpus"] for node in nodes}

    cluster.restart_allocator(has_nodes=False)
    try:
        busy, free = PLACE_NODES[:2], PLACE_NODES[2]
        cluster.submit(*(cluster.pod(f"other-{node}", "none", node, GPUS - 1, labels={}) for node in busy))
        cluster.until(lambda: gpus() == dict.fromkeys(busy, 1) | {free: GPUS})
        refused = cluster.allocator.ask("PUT", f"/v1/gpu-nodes/{free}/drain")
        assert (refused.status, f"kubectl cordon {free}" in refused.json()["error"]["message"]) == (501, True), refused.body
        cluster.submit(cluster.gated_job("first"))
        cluster.until(lambda: cluster.state("first") == "running")
        assert cluster.places("first") == [free]
        cluster.submit(cluster.gated_job("second"))
        cluster.until(lambda: cluster.state("second") == "waiting" and cluster.gated("second") == 1)
        cluster.delete_pod(f"other-{busy[1]}")
        cluster.until(lambda: cluster.state("second") == "running")
        assert cluster.places("second") == [busy[1]]
        assert gpus() == {busy[0]: 1, busy[1]: GPUS, free: GPUS}
        cluster.clean()
    finally:
        cluster.restart_allocator()


def test_cancelled_job_suspends_its_job(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.allocator.ask("DELETE", "/v1/queue/kubernetes-default.train").status == 200
    cluster.until(lambda: cluster.state("train") == "cancelled")
    cluster.until(lambda: cluster.annotation("train", "larder.io/ended").startswith("cancelled"))
    assert cluster.job("train")["spec"]["suspend"]


def test_job_that_the_allocator_refuses_says_why(cluster: PlaceCluster) -> None:
    job = cluster.gated_job("train", pods=4)
    cluster.submit(job)
    cluster.until(lambda: "24" in cluster.annotation("train", "larder.io/refused"))
    # The Job may still be creating its pods.
    cluster.until(lambda: cluster.gated("train") == 4)
    assert cluster.places("train") == []


def test_labelled_pods_are_one_gang(cluster: PlaceCluster) -> None:
    spec = cluster.gated_job("none")["spec"]["template"]["spec"]
    metadata = {"labels": {"larder.io/gang": "pair"}, "annotations": {"larder.io/gang-size": "2"}}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name} | metadata, "spec": spec} for name in "ab"]
    cluster.submit(pods[0])
    cluster.until(lambda: "1 pods of 2 are there" in cluster.controllers["c1"].log.read_text())
    cluster.submit(pods[1])
    cluster.until(lambda: cluster.state("pair") == "running")
    placed = sorted(cluster.get("pod", name)["spec"]["nodeName"] for name in "ab")
    assert placed == cluster.decided("pair")
    cluster.delete_pods()
    cluster.until(lambda: cluster.state("pair") == "cancelled")


def test_second_controller_takes_over(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("before"))
    cluster.until(lambda: cluster.state("before") == "running")
    first = cluster.leader()
    second = cluster.start_controller("c2")
    cluster.controllers.pop("c1").kill()
    cluster.submit(cluster.gated_job("after"))
    cluster.until(lambda: cluster.state("after") == "running")
    assert cluster.leader() != first
    assert cluster.queue_job("before")["attempt"] == 1
    assert second.log.read_text().count("attached to the allocator") == 1
    cluster.controllers["c1"] = cluster.controllers.pop("c2")


def test_stopped_leader_ends_once_another_leads(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("before"))
    cluster.until(lambda: cluster.state("before") == "running")
    first = cluster.leader()
    second = cluster.start_controller("c3")
    stopped = cluster.controllers.pop("c1")
    stopped.signal(signal.SIGSTOP)
    try:
        cluster.until(lambda: cluster.leader() not in ("", first))
        cluster.submit(cluster.gated_job("during"))
        cluster.until(lambda: cluster.state("during") == "running")
    finally:
        stopped.signal(signal.SIGCONT)
    cluster.until(lambda: not stopped.runs())
    assert "another controller leads" in stopped.log.read_text()
    assert second.log.read_text().count("attached to the allocator") == 1
    for job in ("before", "during"):
        assert cluster.state(job) == "running"
        assert cluster.queue_job(job)["attempt"] == 1
    cluster.controllers["c1"] = cluster.controllers.pop("c3")


def test_job_that_is_deleted_while_no_controller_runs_starts_no_more(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: cluster.state("train") == "running")
    cluster.controllers.pop("c1").kill()
    cluster.delete_job("train")
    cluster.until(lambda: not cluster.pods("train"))
    cluster.start_controller("c1")
    cluster.until(lambda: cluster.state("train") == "cancelled")
    assert cluster.queue_job("train")["attempt"] == 1


def test_job_that_is_resumed_while_no_controller_runs_goes_on(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: cluster.state("train") == "running")
    cluster.patch(f"{JOBS}/train", {"spec": {"suspend": True}})
    cluster.until(lambda: cluster.state("train") == "cancelled")
    cluster.controllers.pop("c1").kill()
    cluster.patch(f"{JOBS}/train", {"spec": {"suspend": False}})
    cluster.start_controller("c1")
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.annotation("train", "larder.io/ended") == ""


def test_restarted_api_server_loses_nothing(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("before"))
    cluster.until(lambda: cluster.state("before") == "running")
    cluster.server.ask({"do": "stop", "name": "kube-apiserver"})
    cluster.server.ask({"do": "start", "name": "kube-apiserver"})
    cluster.until(lambda: not cluster.try_kubectl("get", "pods").returncode)
    cluster.submit(cluster.gated_job("after", pods=2))

    def runs() -> bool:
        cluster.revive()
        return cluster.state("after") == "running"

    cluster.until(runs)
    assert cluster.queue_job("before")["attempt"] == 1


@pytest.fixture
def relay(cluster: PlaceCluster) -> Iterator[CutRelay]:
    """Between the API server and the only controller, which does not end while the relay is cut."""
    started = CutRelay(cluster.api_port())
    cluster.controllers.pop("c1").end()
    cluster.start_controller("relayed", lease_s=600, account=cluster.account_through("controller", started.port))
    yield started
    started.mend()  # so that the controller gives its lease back
    cluster.controllers.pop("relayed").end()
    started.close()
    cluster.start_controller("c1")


def test_changes_while_the_watches_are_away_and_gone_are_seen(cluster: PlaceCluster, relay: CutRelay) -> None:
    """When the controller's watches come back, the API server has forgotten the revisions since."""
    for name in ("deleted", "failing", "stays"):
        cluster.submit(cluster.gated_job(name))
    cluster.until(lambda: all(cluster.state(name) == "running" for name in ("deleted", "failing", "stays")))
    relay.cut()
    pods = cluster.api("GET", PODS)
    assert pods is not None
    revision = pods["metadata"]["resourceVersion"]
    cluster.delete_job("deleted")
    cluster.patch(f"{JOBS}/failing", {"spec": {"backoffLimit": 0}})
    (failing,) = cluster.pods("failing")
    cluster.end_pod(failing["metadata"]["name"], 7)
    cluster.submit(cluster.gated_job("new"))
    cluster.until(lambda: cluster.condition("failing", "Failed") and cluster.gated("new") == 1)
    cluster.until(lambda: not cluster.pods("deleted"))
    cluster.server.ask({"do": "stop", "name": "kube-apiserver"})
    cluster.server.ask({"do": "compact"})
    cluster.server.ask({"do": "start", "name": "kube-apiserver"})
    assert cluster.watch_status(PODS, revision) == cluster.watch_status(JOBS, revision) == 410
    assert cluster.state("deleted") == cluster.state("failing") == "running"
    relay.mend()
    cluster.until(lambda: cluster.state("deleted") == "cancelled" and cluster.state("failing") == "failed")
    cluster.until(lambda: cluster.state("new") == "running")
    assert cluster.queue_job("failing")["exit_code"] == 7
    assert cluster.queue_job("stays")["attempt"] == cluster.queue_job("new")["attempt"] == 1
    assert cluster.state("stays") == "running"
    controller = cluster.controllers["relayed"]
    assert controller.runs() and controller.log.read_text().count("attached to the allocator") == 1


def test_users_cannot_write_the_annotations_of_the_controller(cluster: PlaceCluster) -> None:
    def refusal(*command: object, text: str | None = None) -> str:
        ran = cluster.try_kubectl(*command, text=text)
        return ran.stderr if ran.returncode else ""

    def patch(kind: str, name: str, values: dict[str, str | None]) -> str:
        changed = json.dumps({"metadata": {"annotations": {f"larder.io/{key}": text for key, text in values.items()}}})
        return refusal("patch", kind, name, "--type=merge", f"--patch={changed}")

    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: cluster.state("train") == "running")
    (pod,) = (one["metadata"] for one in cluster.pods("train"))
    alone = "larder-kubernetes alone writes this annotation"
    assert alone in patch("pod", pod["name"], {"attempt": "9.1"})
    assert alone in patch("job", "train", {"ended": "cancelled"})
    assert alone in patch("job", "train", {"resize": "1 1 1"}) and alone in patch("job", "train", {"size": "9"})
    assert alone in patch("job", "train", {"attempt": pod["annotations"]["larder.io/attempt"], "plan": "n1=8"})
    assert "needs its annotations" in patch("pod", pod["name"], {"attempt": None})
    forged = cluster.gated_job("forged")
    forged["spec"]["template"]["metadata"]["annotations"]["larder.io/rank"] = "0"
    assert alone in refusal("create", "-f", "-", text=json.dumps(forged))
    assert patch("pod", pod["name"], {"epochs": "3"}) == ""
    assert patch("job", "train", {"suspended": None}) == ""
    assert cluster.queue_job("train")["attempt"] == 1


def test_forged_annotations_take_nothing_from_a_gang(cluster: PlaceCluster) -> None:
    """Without the admission policy, also at a restart of the controller."""
    cluster.kubectl("delete", "validatingadmissionpolicybinding", "larder-annotations")
    for name in ("victim", "thief"):
        cluster.submit(cluster.gated_job(name))
        cluster.until(lambda name=name: cluster.state(name) == "running")
    (pod,) = cluster.pods("victim")
    keys = ("larder.io/attempt", "larder.io/plan", "larder.io/rank", "larder.io/nodes")
    forged = {"metadata": {"annotations": {key: pod["metadata"]["annotations"][key] for key in keys}}}
    probe = ("patch", "job", "thief", "--type=merge", "--dry-run=server", f"--patch={json.dumps(forged)}")
    cluster.until(lambda: cluster.try_kubectl(*probe).returncode == 0)
    for attempt, restarts in ((1, False), (2, True)):
        cluster.until_runs("thief", attempt)
        (stolen,) = cluster.pods("thief")
        if restarts:
            cluster.controllers["c1"].kill()
        cluster.patch(f"{JOBS}/thief", forged)
        cluster.patch(f"{PODS}/{stolen['metadata']['name']}", forged)
        if restarts:
            cluster.controllers["c1"].start()
        gone = f"{PODS}/{stolen['metadata']['name']}"
        cluster.until(lambda gone=gone: cluster.api("GET", gone) is None)
        assert cluster.state("victim") == "running"
    assert [one["metadata"]["uid"] for one in cluster.pods("victim")] == [pod["metadata"]["uid"]]
    assert cluster.queue_job("victim")["attempt"] == 1
    cluster.helm("upgrade", "larder", cluster.chart, "--namespace", NAMESPACE, "--reuse-values")
    cluster.get("validatingadmissionpolicybinding", "larder-annotations")


def test_gangs_go_on_while_the_allocator_restarts(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("runs", pods=2), cluster.gated_job("ends"))
    cluster.until(lambda: [cluster.state(name) for name in ("runs", "ends")] == ["running", "running"])
    cluster.submit(cluster.gated_job("waits", pods=2))
    cluster.until(lambda: cluster.state("waits") == "waiting")
    cluster.allocator.kill()
    cluster.end_pods("ends")
    cluster.until(lambda: cluster.condition("ends", "Complete"))
    cluster.start_allocator()
    cluster.until(lambda: cluster.state("ends") == "succeeded")
    assert [cluster.state(name) for name in ("runs", "waits")] == ["running", "waiting"]
    cluster.delete_job("runs")
    cluster.until(lambda: cluster.state("waits") == "running")
    assert [cluster.queue_job(name)["attempt"] for name in ("waits", "ends")] == [1, 1]


def test_gang_that_does_not_begin_in_time_is_placed_again(cluster: PlaceCluster) -> None:
    cluster.restart_allocator("--scheduler.start_timeout", "1 s")
    cluster.submit(*(cluster.pod(f"other-{node}", "none", node, GPUS, labels={}) for node in PLACE_NODES))
    cluster.until(lambda: all(pod["status"]["phase"] == "Running" for pod in cluster.pods()))
    cluster.submit(cluster.gated_job("train"))
    cluster.until(lambda: "did not begin within" in cluster.log_of("train"))
    cluster.delete_pods()
    cluster.restart_allocator()
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.queue_job("train")["attempt"] >= 2


def test_queue_that_was_lost_is_made_again(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("train", pods=2))
    cluster.until(lambda: cluster.state("train") == "running")
    before = {pod["metadata"]["uid"] for pod in cluster.pods("train")}
    cluster.allocator.kill()
    (cluster.directory / "queue").rename(cluster.directory / "lost")
    cluster.start_allocator()
    cluster.until(lambda: cluster.state("train") == "running")
    # Nobody wanted the former attempt.
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods("train")}


def test_elastic_job_changes_its_size_while_it_runs(cluster: PlaceCluster) -> None:
    def uids(pods: int) -> list[str]:
        """Of the running pods, by index, once there are so many."""
        cluster.until(lambda: cluster.state("train") == "running" and len(cluster.places("train")) == pods)
        cluster.until(lambda: "resizes_to" not in cluster.queue_job("train"))
        assert cluster.places("train") == cluster.decided("train")
        spec = cluster.job("train")["spec"]
        assert (spec["parallelism"], spec["completions"]) == (pods, pods)
        found = sorted(cluster.pods("train"), key=lambda pod: int(pod["metadata"]["annotations"]["larder.io/rank"]))
        return [pod["metadata"]["uid"] for pod in found]

    cluster.restart_allocator("--scheduler.policy", "las")
    try:
        cluster.submit(cluster.gated_job("train", **{"larder.io/elastic": "1-3"}))
        before = uids(3)
        cluster.submit(cluster.gated_job("other", pods=2))
        cluster.until(lambda: cluster.state("other") == "running")
        assert uids(1) == before[:1]
        cluster.controllers["c1"].kill()
        cluster.controllers["c1"].start()
        cluster.delete_job("other")
        again = uids(3)
        assert again[0] == before[0] and not set(before[1:]) & set(again)
        assert cluster.queue_job("train")["attempt"] == 1
        # Somebody else ends it. It is submitted again as it was made.
        cluster.patch(f"{JOBS}/train", {"spec": {"suspend": True}})
        cluster.until(lambda: cluster.state("train") == "cancelled")
        cluster.patch(f"{JOBS}/train", {"spec": {"suspend": False}})
        assert not set(uids(3)) & set(again)
        assert cluster.queue_job("train")["gpus"] == GPUS
        # The Job starts again with fewer pods.
        cluster.submit(cluster.gated_job("other", pods=2))
        cluster.until(lambda: cluster.state("other") == "running")
        cluster.delete_pod(cluster.pods("train")[0]["metadata"]["name"])
        cluster.until(lambda: cluster.queue_job("train")["attempt"] == 2)
        uids(1)
    finally:
        cluster.restart_allocator()


def test_job_that_cannot_be_elastic_says_why(cluster: PlaceCluster) -> None:
    cluster.submit(cluster.gated_job("mistaken", **{"larder.io/elastic": "many"}))
    cluster.until(lambda: "must be a range of pods" in cluster.annotation("mistaken", "larder.io/refused"))
    cluster.until(lambda: "must be a range of pods" in cluster.kubectl("events", "--for", "job/mistaken"))
    assert cluster.state("mistaken") == ""


def test_job_that_goes_while_the_controller_is_away_is_cancelled(cluster: PlaceCluster) -> None:
    for name in ("goes", "ends"):
        cluster.submit(cluster.gated_job(name))
        cluster.until(lambda name=name: cluster.state(name) == "running")
    cluster.controllers["c1"].kill()
    cluster.delete_job("goes")
    cluster.end_pods("ends")
    cluster.until(lambda: cluster.condition("ends", "Complete"))
    cluster.controllers["c1"].start()
    cluster.until(lambda: [cluster.state(name) for name in ("goes", "ends")] == ["cancelled", "succeeded"])


def test_job_that_is_no_gang_fails(cluster: PlaceCluster) -> None:
    job = {"name": "stranger", "command": ["true"], "directory": "/", "gpus": 1}
    assert cluster.allocator.ask("POST", "/v1/queue", {"jobs": [job]}).status == 200

    def shown() -> dict:
        answer: dict = cluster.allocator.ask("GET", "/v1/queue/stranger").json()
        return answer

    cluster.until(lambda: shown()["state"] == "failed")
    assert shown()["end_reason"].endswith("it is no gang of Kubernetes: submit it there")


def test_page_gives_torchrun_its_rank_and_the_name_of_rank_0(cluster: PlaceCluster, repository: pathlib.Path) -> None:
    text = (repository / "docs" / "kubernetes.md").read_text()
    (written,) = re.findall(r"^### torchrun\n[^#]*?^((?:    .*\n)+)", text, re.M)
    job = cluster.gated_job("gang", pods=2)
    job["spec"]["template"]["spec"] |= yaml.safe_load(textwrap.dedent(written))
    cluster.submit(job)
    cluster.until(lambda: cluster.state("gang") == "running" and len(cluster.places("gang")) == 2)
    names: dict[str, str] = {}
    for pod in cluster.pods("gang"):
        (container,) = pod["spec"]["containers"]
        values = {}  # as the kubelet finds them
        for variable in container["env"]:
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if field.startswith("metadata.annotations"):
                values[variable["name"]] = pod["metadata"]["annotations"][field.split("'")[1]]
        nodes = values["LARDER_NODES"].split(",")
        assert nodes[int(values["LARDER_NODE_RANK"])] == pod["spec"]["nodeName"]
        options = [word.replace("$(LARDER_NODE_RANK)", values["LARDER_NODE_RANK"]) for word in container["command"]]
        names[f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}"] = options[2]
        (address,) = (word.partition("=")[2] for word in container["args"] if word.startswith("--master-addr="))
    assert names == {"gang-0.gang": "--node-rank=0", "gang-1.gang": "--node-rank=1"}
    assert address == "gang-0.gang"


def test_page_works_as_written(
    cluster: PlaceCluster, larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """docs/kubernetes.md: the section "Larder decides", without the JobSet."""
    text = repository / "docs" / "kubernetes.md"
    headings = {line: number for number, line in enumerate(text.read_text().splitlines(), 1) if line.startswith("## ")}
    first, last = headings["## Larder decides"], headings["## Remote bandwidth"]
    commands = [command.text for command in page.commands(text) if first < command.line < last]
    commands = [command for command in commands if "jobset" not in command]
    assert [command.split()[0] for command in commands] == ["cat", "helm"] + ["kubectl"] * 5
    (tmp_path / "scheduler").symlink_to(repository / "scheduler")
    printed = cluster.run_as_written(commands, tmp_path)
    assert all(node in printed for node in cluster.decided("gang"))
    # The allocator takes the file that the chart makes of these values.
    config = tmp_path / "allocator.toml"
    config.write_text(cluster.get("configmap", "larder-scheduler", NAMESPACE)["data"]["allocator.toml"])
    checked = subprocess.run(
        [larder_bin / "larder-allocator", "--config", config, "--state", tmp_path / "state", "--check",
         "--remote-bandwidth", "1 GB/s"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    deployment = cluster.get("deployment", "larder-controller", NAMESPACE)
    assert "--place" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_controller_has_the_rights_of_the_mode(cluster: PlaceCluster) -> None:
    def may(*what: str) -> bool:
        account = f"--as=system:serviceaccount:{NAMESPACE}:larder-controller"
        return cluster.try_kubectl("auth", "can-i", *what, "--all-namespaces", account).returncode == 0

    assert may("patch", "jobs") and may("delete", "pods")
    assert not may("delete", "jobs") and not may("create", "pods") and not may("patch", "nodes")
