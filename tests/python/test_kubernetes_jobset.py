"""The pods of a JobSet are one gang: a real control plane with fake nodes, JobSet's own controller, a real allocator, and
a real controller of Larder."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import kubernetes
import page
import pytest
from kubernetes_cluster import GPUS, Mode
from kubernetes_place import PODS, PlaceCluster, running

pytestmark = [
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING),
    pytest.mark.control_plane,
]

SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
OPPORTUNISTIC = {"larder.io/opportunistic": "true"}


# JobSet's own webhook sets these values, and does not run here.
DEFAULTS = """
    Object{spec: Object.spec{
      successPolicy: Object.spec.successPolicy{operator: object.spec.?successPolicy.?operator.orValue("All")},
      startupPolicy: Object.spec.startupPolicy{
        startupPolicyOrder: object.spec.?startupPolicy.?startupPolicyOrder.orValue("AnyOrder")},
      network: Object.spec.network{enableDNSHostnames: true, publishNotReadyAddresses: true}
    }}"""


def defaulting() -> tuple[dict, dict]:
    """An admission policy, with its binding, that sets the defaults of JobSets."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "defaults"}}
    rule = {"apiGroups": ["jobset.x-k8s.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["jobsets"]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": DEFAULTS}}],
    }
    return (
        kind | {"kind": "MutatingAdmissionPolicy", "spec": policy},
        kind | {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "defaults"}},
    )


class JobSetCluster(PlaceCluster):
    def _start(self) -> None:
        super()._start()
        # Larder's controller runs already: it must follow a kind that comes later.
        programs = kubernetes.install_controllers()
        self.kubectl("create", "-f", programs / "jobset-crds")
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")
        self.apply(*defaulting())
        probe = self.jobset_of("probe", self.part("a"))
        create = ("create", "-f", "-", "--dry-run=server", "--output=jsonpath={.spec.successPolicy}")
        self.until(lambda: "All" in self.try_kubectl(*create, text=json.dumps(probe)).stdout)
        self.jobset = Mode(programs / "jobset", self.directory / "jobset.log", self.kubeconfig)
        self._stack.callback(self.jobset.end)

    def part(self, name: str, jobs: int = 1, pods: int = 1, **more: object) -> dict:
        """A ReplicatedJob, of which each pod has all GPUs of a node."""
        spec = self.gated_job(name, pods)["spec"] | {"backoffLimit": 0}
        return {"name": name, "replicas": jobs, "template": {"spec": spec}} | more

    def jobset_of(self, name: str, *parts: dict, **spec: object) -> dict:
        made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
        return made | {"spec": {"replicatedJobs": list(parts)} | spec}

    def submit_set(self, name: str, *parts: dict, annotations: dict[str, str] | None = None, **spec: object) -> None:
        for part in parts:
            part["template"]["spec"]["template"]["metadata"]["annotations"].update(annotations or {})
        self.api("POST", SETS, self.jobset_of(name, *parts, **spec))

    def set(self, name: str) -> dict:
        found = self.api("GET", f"{SETS}/{name}")
        assert found is not None
        return found

    def set_is(self, name: str, condition: str) -> bool:
        conditions = self.set(name).get("status", {}).get("conditions", [])
        return any(one["type"] == condition and one["status"] == "True" for one in conditions)

    def suspend(self, name: str, suspended: bool) -> None:
        self.patch(f"{SETS}/{name}", {"spec": {"suspend": suspended}})

    def delete_set(self, name: str) -> None:
        self.api("DELETE", f"{SETS}/{name}?propagationPolicy=Background")

    def pods(self, job: str = "") -> list[dict]:
        """The pods of a JobSet or a Job, or all, that have not ended and are not being deleted."""
        labels = ("jobset.sigs.k8s.io/jobset-name", "job-name")
        return [
            pod for pod in super().pods() if not job or job in [pod["metadata"]["labels"].get(label) for label in labels]
        ]

    def of_part(self, part: str) -> list[dict]:
        label = "jobset.sigs.k8s.io/replicatedjob-name"
        return [pod for pod in self.pods() if pod["metadata"]["labels"].get(label) == part]

    def attempts(self, job: str) -> tuple[int, int]:
        shown = self.queue_job(job)
        return shown["attempt"], shown["preemptions"]

    def clean(self) -> None:
        self.revive()
        self.api("DELETE", f"{SETS}?propagationPolicy=Background")
        self.until(lambda: not (self.api("GET", SETS) or {})["items"])
        super().clean()


@pytest.fixture(scope="module")
def cluster(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JobSetCluster]:
    yield from running(JobSetCluster, larder_bin, repository, tmp_path_factory.mktemp("k"))


@pytest.fixture(autouse=True)
def nothing_left(cluster: JobSetCluster) -> Iterator[None]:
    yield
    cluster.clean()


def test_all_pods_of_a_jobset_wait_for_all_gpus_and_end_as_one_job(cluster: JobSetCluster) -> None:
    cluster.submit(cluster.gated_job("first"))
    cluster.until(lambda: cluster.state("first") == "running")
    cluster.submit_set("train", cluster.part("head"), cluster.part("workers", jobs=2))
    cluster.until(lambda: cluster.state("train") == "waiting" and cluster.gated("train") == 3)
    assert cluster.queue_job("train")["gpus"] == 3 * GPUS
    assert cluster.places("train") == []
    cluster.delete_job("first")
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.places("train") == cluster.decided("train") == ["n1", "n2", "n3"]
    cluster.end_pods("train")
    cluster.until(lambda: cluster.state("train") == "succeeded")
    assert cluster.set_is("train", "Completed")
    assert cluster.attempts("train") == (1, 0)


def test_ranks_follow_the_order_of_the_jobs(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("head"), cluster.part("workers", pods=2))
    cluster.until(lambda: cluster.state("train") == "running")

    def ranks(part: str) -> list[str]:
        index = "batch.kubernetes.io/job-completion-index"
        pods = sorted(cluster.of_part(part), key=lambda pod: str(pod["metadata"]["annotations"][index]))
        return [pod["metadata"]["annotations"]["larder.io/rank"] for pod in pods]

    assert (ranks("head"), ranks("workers")) == (["0"], ["1", "2"])


def test_preempted_jobset_is_suspended_and_runs_again(cluster: JobSetCluster) -> None:
    cluster.submit_set("guest", cluster.part("a"), cluster.part("b", jobs=2), annotations=OPPORTUNISTIC)
    cluster.until(lambda: cluster.state("guest") == "running")
    cluster.submit(cluster.gated_job("owner"))
    cluster.until(lambda: cluster.state("owner") == "running")
    assert cluster.set("guest")["spec"]["suspend"]
    assert cluster.pods("guest") == []
    # Another controller finds all in the annotations of the JobSet.
    cluster.controllers["c1"].kill()
    cluster.controllers["c1"].start()
    cluster.delete_job("owner")
    cluster.until_runs("guest", attempt=2)
    assert cluster.attempts("guest") == (2, 1)
    assert cluster.places("guest") == ["n1", "n2", "n3"]
    assert cluster.set("guest")["status"].get("restarts", 0) == 0
    assert "larder.io/suspended" not in cluster.set("guest")["metadata"]["annotations"]


def test_jobset_that_begins_anew_keeps_its_places_until_it_fails(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("a"), cluster.part("b", jobs=2), failurePolicy={"maxRestarts": 1})
    cluster.until(lambda: cluster.state("train") == "running")
    places = {pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"] for pod in cluster.pods("train")}
    before = {pod["metadata"]["uid"] for pod in cluster.pods("train")}
    cluster.end_pod(cluster.of_part("a")[0]["metadata"]["name"], code=3)

    def runs_anew() -> bool:
        pods = cluster.pods("train")
        are_new = not before & {pod["metadata"]["uid"] for pod in pods}
        return are_new and len(cluster.places("train")) == 3

    cluster.until(runs_anew)
    assert cluster.state("train") == "running"
    assert cluster.attempts("train") == (1, 0)
    assert {pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"] for pod in cluster.pods("train")} == places
    cluster.end_pod(cluster.of_part("a")[0]["metadata"]["name"], code=3)
    cluster.until(lambda: cluster.state("train") == "failed")
    assert cluster.set_is("train", "Failed")
    # The job at the allocator ends only when all pods have freed their GPUs.
    assert cluster.pods("train") == []
    shown = cluster.queue_job("train")
    assert (shown["attempt"], shown["exit_code"]) == (1, 3)


@pytest.mark.parametrize("how", ["InOrder", "dependsOn"])
def test_jobset_that_makes_its_jobs_in_order_has_all_places_first(cluster: JobSetCluster, how: str) -> None:
    head, workers = cluster.part("head"), cluster.part("workers", jobs=2)
    order: dict[str, object] = {}
    if how == "InOrder":
        order["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    else:
        workers["dependsOn"] = [{"name": "head", "status": "Complete"}]
    cluster.submit(cluster.gated_job("first"))
    cluster.until(lambda: cluster.state("first") == "running")
    cluster.submit_set("train", head, workers, **order)
    # There is a node for the first pod, and none for one of the later ones.
    cluster.until(lambda: cluster.state("train") == "waiting" and cluster.gated("train") == 1)
    cluster.delete_job("first")
    cluster.until(lambda: cluster.state("train") == "running")
    if how == "dependsOn":
        assert cluster.of_part("workers") == []
        cluster.end_pod(cluster.of_part("head")[0]["metadata"]["name"])
    cluster.until(lambda: len(cluster.places("train")) == (3 if how == "InOrder" else 2))
    cluster.end_pods("train")
    cluster.until(lambda: cluster.state("train") == "succeeded")
    assert cluster.attempts("train") == (1, 0)


def test_jobset_of_which_one_job_is_enough_frees_all_gpus(cluster: JobSetCluster) -> None:
    cluster.submit_set("search", cluster.part("tries", jobs=3), successPolicy={"operator": "Any"})
    cluster.until(lambda: cluster.state("search") == "running")
    cluster.end_pod(cluster.pods("search")[0]["metadata"]["name"])
    cluster.until(lambda: cluster.state("search") == "succeeded")
    assert cluster.pods("search") == []


def test_jobset_that_somebody_suspends_is_submitted_again_when_it_is_resumed(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("a", jobs=2))
    cluster.until(lambda: cluster.state("train") == "running")
    cluster.suspend("train", True)
    cluster.until(lambda: cluster.state("train") == "cancelled")
    first = cluster.queue_job("train")["id"]
    cluster.until(lambda: cluster.pods("train") == [])
    cluster.suspend("train", False)
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.queue_job("train")["id"] > first
    cluster.delete_set("train")
    cluster.until(lambda: cluster.state("train") == "cancelled")


def test_cancelled_jobset_stays_suspended(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("a", jobs=2))
    cluster.until(lambda: cluster.state("train") == "running")
    cancelled = cluster.allocator.ask("DELETE", f"/v1/queue/{cluster.queue_job('train')['id']}")
    assert cancelled.status in (200, 202, 204), cancelled.body
    cluster.until(lambda: "larder.io/ended" in cluster.set("train")["metadata"].get("annotations", {}))
    assert cluster.set("train")["spec"]["suspend"]
    assert cluster.pods("train") == []


def test_jobset_of_a_lost_node_runs_elsewhere(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("a", jobs=2))
    cluster.until(lambda: cluster.state("train") == "running")
    lost = cluster.places("train")[0]
    cluster.lose(lost)
    cluster.until_runs("train", attempt=2)
    assert lost not in cluster.decided("train")


def test_users_cannot_write_the_annotations_of_the_controller(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("a"))
    cluster.until(lambda: cluster.state("train") == "running")
    patch = '{"metadata": {"annotations": {"larder.io/ended": "cancelled"}}}'
    refused = cluster.try_kubectl("patch", "jobset", "train", "--type=merge", f"--patch={patch}")
    assert "larder-kubernetes alone writes this annotation" in refused.stderr
    removed = cluster.try_kubectl("annotate", "jobset", "train", "larder.io/suspended-", "team=a")
    assert removed.returncode == 0, removed.stderr


def test_jobset_of_two_gangs_is_refused(cluster: JobSetCluster) -> None:
    one, other = cluster.part("a"), cluster.part("b")
    for part, gang in ((one, "x"), (other, "y")):
        part["template"]["spec"]["template"]["metadata"]["labels"] = {"larder.io/gang": gang}
    cluster.submit_set("train", one, other)
    refused = "larder.io/refused"
    cluster.until(lambda: refused in cluster.set("train")["metadata"].get("annotations", {}))
    assert "several values of larder.io/gang" in cluster.set("train")["metadata"]["annotations"][refused]
    cluster.until(lambda: "several values" in cluster.kubectl("events", "--for", "jobset/train"))


def test_page_about_jobsets(cluster: JobSetCluster, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """docs/kubernetes.md: the section "JobSets"."""
    found = [command.text for command in page.commands(repository / "docs" / "kubernetes.md") if "jobset" in command.text]
    assert [command.split()[:2] for command in found] == [["kubectl", "apply"], ["kubectl", "wait"]]
    cluster.run_as_written(found, tmp_path)
    assert cluster.places("set") == cluster.decided("set")


def test_jobset_goes_on_when_a_job_of_it_ends_early(cluster: JobSetCluster) -> None:
    early = cluster.part("early", pods=2)
    early["template"]["spec"]["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    cluster.submit_set("train", early, cluster.part("other"))
    cluster.until(lambda: cluster.state("train") == "running")
    index = "batch.kubernetes.io/job-completion-index"
    leader = [pod for pod in cluster.of_part("early") if pod["metadata"]["annotations"][index] == "0"]
    cluster.end_pod(leader[0]["metadata"]["name"])
    # Kubernetes deletes the Job's other pod.
    cluster.until(lambda: cluster.condition("train-early-0", "Complete"))
    cluster.until(lambda: cluster.of_part("early") == [])
    cluster.end_pod(cluster.of_part("other")[0]["metadata"]["name"])
    cluster.until(lambda: cluster.state("train") == "succeeded")
    assert cluster.attempts("train") == (1, 0)


def test_jobset_begins_anew_while_no_controller_runs(cluster: JobSetCluster) -> None:
    restart = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
    cluster.submit_set("train", cluster.part("a"), cluster.part("b", jobs=2), failurePolicy=restart)
    cluster.until(lambda: cluster.state("train") == "running")
    places = {pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"] for pod in cluster.pods("train")}
    cluster.controllers["c1"].kill()
    cluster.end_pod(cluster.of_part("a")[0]["metadata"]["name"], code=3)
    # No pod is left that says which attempt it is.
    cluster.until(lambda: cluster.gated("train") == len(cluster.api("GET", PODS)["items"]) == 3)
    cluster.controllers["c1"].start()
    cluster.until(lambda: len(cluster.places("train")) == 3 and cluster.state("train") == "running")
    assert {pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"] for pod in cluster.pods("train")} == places
    assert cluster.attempts("train") == (1, 0)


def test_jobset_that_begins_anew_leaves_a_cordoned_node(cluster: JobSetCluster) -> None:
    cluster.submit_set("train", cluster.part("a", jobs=2), failurePolicy={"maxRestarts": 1})
    cluster.until(lambda: cluster.state("train") == "running")
    first, second = cluster.places("train")
    cluster.cordon(second)
    failing = next(pod for pod in cluster.pods("train") if pod["spec"]["nodeName"] == first)
    cluster.end_pod(failing["metadata"]["name"], code=3)
    cluster.until_runs("train", attempt=2)
    assert len(cluster.places("train")) == 2
    assert second not in cluster.places("train")
