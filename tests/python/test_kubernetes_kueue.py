"""Kueue's Workloads wait for cache and bandwidth: a real control plane with fake nodes, Kueue's own scheduler and
controllers, a real allocator and real daemons."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import kubernetes
import page
import pytest
from kubernetes_cluster import GPUS, NODES, Cluster, Mode

pytestmark = [
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING),
    pytest.mark.control_plane,
]

NAME = "kubernetes-default."
CHECK = "larder"
GIB = 1 << 30
# The daemons have 4.5 GiB of cache. More quota than that, so that the allocator has to refuse.
QUOTA = {"nvidia.com/gpu": "64", "larder.io/cache-gib": "8", "larder.io/remote-mbps": "16000"}


class KueueCluster(Cluster):
    chart_options = ("--set", "kueue.enabled=true", "--set", "node.nodeSelector.storage=fast")
    daemon_disk = "2 GiB"
    controller_options = ("--kueue", "--kueue-patience=3s", "--node-selector=storage=fast")

    def _before_chart(self) -> None:
        programs = kubernetes.install_controllers()
        self.kubectl("create", "-f", programs / "kueue-crds")
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")
        self.kueue = Mode(programs / "kueue", self.directory / "kueue.log", self.kubeconfig)
        self._stack.callback(self.kueue.end)
        kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
        flavor = {"name": "plain", "resources": [{"name": name, "nominalQuota": it} for name, it in QUOTA.items()]}
        self.apply(
            kueue | {"kind": "ResourceFlavor", "metadata": {"name": "plain"}},
            kueue
            | {
                "kind": "ClusterQueue",
                "metadata": {"name": "all"},
                "spec": {
                    "namespaceSelector": {},
                    "resourceGroups": [{"coveredResources": list(QUOTA), "flavors": [flavor]}],
                    "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
                },
            },
            kueue | {"kind": "LocalQueue", "metadata": {"name": "q"}, "spec": {"clusterQueue": "all"}},
        )

    def node(self, name: str) -> dict[str, object]:
        made = super().node(name)
        metadata = made["metadata"]
        assert isinstance(metadata, dict)
        if name in NODES:
            metadata["labels"]["storage"] = "fast"
        return made

    def submit(
        self, name: str, dataset: str = "images", pods: int = 1, gpus: int = 1, **requests: int
    ) -> None:
        """A Job of so many pods; `gpus` and `requests` are of each pod."""
        limits = {f"larder.io/{name.replace('_', '-')}": str(count) for name, count in requests.items()}
        limits["nvidia.com/gpu"] = str(gpus)
        template: dict[str, object] = {
            "metadata": {"labels": {"larder.io/dataset": dataset}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "train", "image": "train:1", "resources": {"limits": limits}}],
            },
        }
        self.apply(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "q"}},
                "spec": {"suspend": True, "parallelism": pods, "completions": pods, "template": template},
            }
        )

    def workload(self, job: str) -> dict:
        """The Workload of a Job; empty: there is none yet."""
        listed = json.loads(self.kubectl("get", "workloads", "--output=json"))["items"]
        return next((one for one in listed if one["metadata"]["ownerReferences"][0]["name"] == job), {})

    def check(self, job: str) -> tuple[str, str]:
        """State and message of the admission check of a Job."""
        checks = self.workload(job).get("status", {}).get("admissionChecks", [])
        return next(((one["state"], one["message"]) for one in checks if one["name"] == CHECK), ("", ""))

    def waits_with(self, job: str, state: str, text: str) -> None:
        def found() -> bool:
            self.revive()
            is_state, message = self.check(job)
            return is_state == state and text in message

        self.until(found)

    def condition(self, job: str, kind: str) -> str:
        conditions = self.workload(job).get("status", {}).get("conditions", [])
        return next((one["status"] for one in conditions if one["type"] == kind), "")

    def nodes_of(self, job: str) -> list[str]:
        """The nodes of the Job's running pods."""
        pods = json.loads(self.kubectl("get", "pods", f"--selector=job-name={job}", "--output=json"))["items"]
        return sorted(pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running")

    def reserved(self, job: str) -> tuple[int, float]:
        """Cache and bandwidth that the allocator keeps for a Job."""
        row = self.rows("jobs").get(NAME + job, {})
        return row.get("cache_bytes", 0), row.get("bandwidth_floor_bytes_per_second", 0.0)


@pytest.fixture(scope="module")
def cluster(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KueueCluster]:
    started = KueueCluster(
        larder_bin, kubernetes.build_larder_kubernetes(), repository, tmp_path_factory.mktemp("q")
    )
    try:
        started.add_images()
        yield started
    finally:
        started.stop()


@pytest.fixture(autouse=True)
def nothing_left(cluster: KueueCluster) -> Iterator[None]:
    yield
    cluster.delete_jobs()


def test_workload_starts_when_its_cache_is_reserved_and_filled(cluster: KueueCluster) -> None:
    cluster.submit("train", pods=2, gpus=GPUS, cache_gib=1, remote_mbps=400)
    cluster.until(lambda: cluster.nodes_of("train") == list(NODES))
    assert cluster.check("train") == ("Ready", "Cache and bandwidth are reserved.")
    assert cluster.reserved("train") == (2 * GIB, 100e6)
    datasets = cluster.rows("datasets")
    assert datasets["images"]["cached_bytes"] >= datasets["images"]["size_bytes"]
    (update,) = cluster.workload("train")["status"]["admissionChecks"][0]["podSetUpdates"]
    assert update["nodeSelector"] == {"storage": "fast"}
    pods = json.loads(cluster.kubectl("get", "pods", "--selector=job-name=train", "--output=json"))["items"]
    for pod in pods:
        assert pod["spec"]["nodeSelector"] == {"storage": "fast"}
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources == {kind: {"nvidia.com/gpu": str(GPUS)} for kind in ("limits", "requests")}
    cluster.until(lambda: cluster.jobs() == {NAME + "train": ("images", list(NODES), 2 * GPUS)})
    assert cluster.reserved("train") == (2 * GIB, 100e6)


def test_reservation_ends_with_the_job(cluster: KueueCluster) -> None:
    cluster.submit("short", remote_mbps=800)
    cluster.until(lambda: cluster.nodes_of("short"))
    assert cluster.reserved("short") == (0, 100e6)
    for pod in cluster.kubectl("get", "pods", "--selector=job-name=short", "--output=name").split():
        cluster.end_pod(pod.removeprefix("pod/"))
    cluster.until(lambda: cluster.condition("short", "Finished") == "True")
    cluster.until(lambda: NAME + "short" not in cluster.rows("jobs"))


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ({"cache_gib": 5}, "larder.io/cache-gib is more than all nodes have: 5 GiB of 4 GiB"),
        ({"remote_mbps": 8001}, "larder.io/remote-mbps is more than the remote gives to all jobs: 8001 of 8000"),
        ({"dataset": "imagenot"}, 'no node has a dataset "imagenot", and there is no such Dataset'),
    ],
)
def test_workload_that_cannot_be_had_is_rejected(cluster: KueueCluster, requests: dict, text: str) -> None:
    cluster.submit("large", **requests)
    cluster.until(lambda: text in cluster.kubectl("events", "--for=job/large"))
    cluster.until(lambda: cluster.workload("large")["spec"]["active"] is False)
    assert cluster.nodes_of("large") == []
    assert NAME + "large" not in cluster.rows("jobs")


def test_workload_of_a_dataset_that_is_not_there_yet_gives_its_quota_back(cluster: KueueCluster) -> None:
    cluster.add_dataset("late", f"file://{cluster.directory}/late", format="raw")
    cluster.submit("early", dataset="late")
    cluster.until(lambda: 'no node has dataset "late" yet' in cluster.kubectl("events", "--for=job/early"))
    cluster.until(lambda: "StorageRetry" in cluster.kubectl("events", "--for=job/early"))
    cluster.until(lambda: cluster.condition("early", "Requeued") == "True")
    cluster.add_dataset("late", f"file://{cluster.directory}/images", format="raw")
    cluster.until(lambda: cluster.nodes_of("early"))
    cluster.delete("job", "early")
    cluster.delete("dataset", "late")


def test_workload_waits_while_another_has_the_bandwidth(cluster: KueueCluster) -> None:
    cluster.submit("first", remote_mbps=5000)
    cluster.until(lambda: cluster.nodes_of("first"))
    cluster.submit("second", remote_mbps=5000)
    cluster.waits_with("second", "Pending", "Waits for cache and bandwidth")
    assert cluster.reserved("second") == (0, 0)
    # Its quota is for others, now and then.
    cluster.until(lambda: cluster.condition("second", "Requeued") == "True")
    assert cluster.nodes_of("second") == []
    cluster.delete("job", "first")
    cluster.until(lambda: cluster.nodes_of("second"))
    assert cluster.reserved("second") == (0, 625e6)


def test_quota_of_kueue_counts_the_cache(cluster: KueueCluster) -> None:
    cluster.submit("first", cache_gib=4)
    cluster.until(lambda: cluster.nodes_of("first"))
    cluster.submit("second", cache_gib=4)
    cluster.until(lambda: cluster.nodes_of("second"))  # one dataset's cache is there once
    cluster.submit("third", cache_gib=1)
    cluster.until(lambda: cluster.condition("third", "QuotaReserved") == "False")
    assert NAME + "third" not in cluster.rows("jobs")
    cluster.delete("job", "first")
    cluster.until(lambda: cluster.nodes_of("third"))


def test_reservation_of_an_evicted_workload_is_released(cluster: KueueCluster) -> None:
    cluster.submit("train", remote_mbps=800)
    cluster.until(lambda: cluster.nodes_of("train"))
    workload = cluster.workload("train")["metadata"]["name"]
    for active in (False, True):
        patch = json.dumps({"spec": {"active": active}})
        cluster.kubectl("patch", "workload", workload, "--type=merge", "--patch", patch)
        cluster.until(lambda: bool(cluster.nodes_of("train")) == active)
        cluster.until(lambda: cluster.reserved("train") == (0, 100e6 if active else 0.0))


@pytest.mark.parametrize("away", ["controller", "allocator"])
def test_reservation_outlives_a_restart(cluster: KueueCluster, away: str) -> None:
    """The second Workload waits all the time, the third gets its reservation only after the restart."""
    cluster.submit("first", remote_mbps=5000)
    cluster.until(lambda: cluster.nodes_of("first"))
    cluster.submit("second", remote_mbps=5000)
    cluster.waits_with("second", "Pending", "Waits for cache and bandwidth")
    if away == "controller":
        cluster.controllers["c1"].kill()
    else:
        cluster.allocator.kill()
        (cluster.directory / "state").rename(cluster.directory / "lost")
    cluster.submit("third", remote_mbps=1000)
    cluster.until(lambda: cluster.condition("third", "QuotaReserved") == "True")
    assert cluster.check("third")[0] != "Ready"
    if away == "controller":
        cluster.controllers["c1"].start()
    else:
        cluster.start_allocator()
    cluster.until(lambda: cluster.nodes_of("third"))
    cluster.until(lambda: cluster.reserved("first") == (0, 625e6) and cluster.reserved("third") == (0, 125e6))
    assert cluster.check("second")[0] != "Ready"  # it is Pending, or in between
    assert cluster.nodes_of("second") == []


def test_only_node_with_the_data_is_selected(cluster: KueueCluster) -> None:
    daemon = cluster.daemons["n2"]
    daemon.command("dataset", "add", "mine", cluster.directory / "images", "--format", "raw")
    cluster.until(lambda: "mine" in cluster.rows("datasets"))
    cluster.submit("near", dataset="mine", pods=2)
    cluster.until(lambda: cluster.nodes_of("near") == ["n2", "n2"])
    daemon.command("dataset", "rm", "mine")


def test_pods_without_dataset_start_at_once(cluster: KueueCluster) -> None:
    cluster.submit("plain", dataset="")
    cluster.until(lambda: cluster.nodes_of("plain"))
    assert cluster.check("plain") == ("Ready", "There is nothing to reserve.")


def test_page_works_as_written(cluster: KueueCluster, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """docs/kubernetes.md: the section "Kueue"."""
    text = repository / "docs" / "kubernetes.md"
    headings = {line: number for number, line in enumerate(text.read_text().splitlines(), 1) if line.startswith("## ")}
    first, last = headings["## Kueue"], headings["## When something is away"]
    commands = [command for command in page.commands(text) if first < command.line < last]
    cluster.add_dataset("imagenet", f"file://{cluster.directory}/images", format="raw")
    cluster.until(lambda: len(cluster.rows("datasets").get("imagenet", {}).get("nodes", [])) == len(NODES))
    (tmp_path / "bin").mkdir()
    for name in ("kubectl", "helm"):
        (tmp_path / "bin" / name).symlink_to(cluster.server.values[name])
    (tmp_path / "scheduler").symlink_to(repository / "scheduler")
    environment = os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path)
    }  # fmt: skip
    script = "\n".join(command.text for command in commands)
    ran = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("Cache and bandwidth are reserved.")
    assert cluster.reserved("queued") == (4 * GIB, 250e6)
    deployment = cluster.get("deployment", "larder-controller", "larder")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--kueue" in arguments and "--node-selector=storage=fast" in arguments
    cluster.delete("dataset", "imagenet")


def test_controller_has_the_rights_of_kueue(cluster: KueueCluster) -> None:
    def may(*what: str) -> bool:
        account = "--as=system:serviceaccount:larder:larder-controller"
        return cluster.try_kubectl("auth", "can-i", *what, account).returncode == 0

    assert may("patch", "workloads.kueue.x-k8s.io", "--subresource=status")
    assert not may("patch", "workloads.kueue.x-k8s.io")
    assert not may("patch", "jobs.batch")
