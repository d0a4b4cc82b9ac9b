"""A Kubernetes on which Larder places gated pods: a real control plane with fake nodes, and a real allocator."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import ssl
import subprocess
from collections.abc import Iterator
from typing import TypeVar

import kubernetes
from allocator_process import Allocator
from kubernetes_cluster import GPUS, NAMESPACE, Cluster, Mode

PLACE_NODES = ("n1", "n2", "n3")
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
GATE = {"name": "larder.io/placement"}


class PlaceCluster(Cluster):
    """The controllers act with the rights of the chart's service account. The allocator is on a Unix socket."""

    def _start(self) -> None:
        self._start_plane(PLACE_NODES)
        self.kubectl("create", "namespace", NAMESPACE)
        self.helm("install", "larder", self.chart, "--namespace", NAMESPACE, "--set", "place.enabled=true")
        self.start_allocator()
        self.start_controller("c1")

    def start_allocator(self, *options: str, has_nodes: bool = True) -> None:
        """Without nodes of its own, the allocator takes those that the controller names."""
        nodes = [word for name in PLACE_NODES for word in (f"--scheduler.node.{name}.gpus", str(GPUS))]
        if not has_nodes:
            nodes = ["--scheduler.nodes", "agent"]
        self.allocator = Allocator(
            self._programs, self.directory, "--state", str(self.directory / "state"), "--scheduler.directory",
            str(self.directory / "queue"), "--scheduler.engine", "agent", *nodes, *options,
        )  # fmt: skip
        self._stack.callback(self.allocator.kill)

    def restart_allocator(self, *options: str, has_nodes: bool = True) -> None:
        self.allocator.kill()
        self.start_allocator(*options, has_nodes=has_nodes)

    def start_controller(self, name: str, lease_s: int = 6, account: str = "controller") -> Mode:
        self.controllers[name] = self.mode(
            account, name, "controller", f"--allocator={self.allocator.socket}", "--place",
            f"--leader-election-namespace={NAMESPACE}", f"--lease-duration={lease_s}s", "--interval=1s",
        )  # fmt: skip
        return self.controllers[name]

    def run_as_written(self, commands: list[str], directory: pathlib.Path) -> str:
        """Runs commands of a page in a directory, and returns what they print."""
        (directory / "bin").mkdir()
        for name in ("kubectl", "helm"):
            (directory / "bin" / name).symlink_to(self.server.values[name])
        paths = {"PATH": f"{directory}/bin:{os.environ['PATH']}", "KUBECONFIG": str(self.kubeconfig), "HOME": str(directory)}
        ran = subprocess.run(
            ["bash", "-ec", "\n".join(commands)], cwd=directory, env=os.environ | paths, capture_output=True, text=True,
            timeout=400,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def account_through(self, account: str, port: int) -> str:
        """An account whose API server is at another port."""
        through = f"{account}-{port}"
        text = self.account(account).read_text()
        (self.directory / f"{through}.kubeconfig").write_text(text.replace(f":{self.api_port()}", f":{port}"))
        return through

    def api_port(self) -> int:
        found = re.search(r"127.0.0.1:(\d+)", self.kubeconfig.read_text())
        assert found
        return int(found[1])

    def _connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.directory / "plane" / "ca.crt"))
        context.load_cert_chain(self.directory / "plane" / "admin.crt", self.directory / "plane" / "admin.key")
        return http.client.HTTPSConnection("127.0.0.1", self.api_port(), context=context, timeout=60)

    def watch_status(self, path: str, revision: str) -> int:
        """The status of a watch that goes on from a revision."""
        connection = self._connect()
        try:
            connection.request("GET", f"{path}?watch=1&timeoutSeconds=5&resourceVersion={revision}")
            response = connection.getresponse()
            first = json.loads(response.readline() or "{}")
            return int(first["object"]["code"]) if first.get("type") == "ERROR" else response.status
        finally:
            connection.close()

    def api(self, method: str, path: str, body: object = None, kind: str = "application/json") -> dict | None:
        """Asks the API server, which takes a hundredth of kubectl's time. None: there is no such object."""
        connection = self._connect()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": kind})
            response = connection.getresponse()
            answer = response.read()
            if response.status == 404:
                return None
            assert response.status < 400, f"{method} {path}: {answer.decode()}"
            parsed: dict = json.loads(answer)
            return parsed
        finally:
            connection.close()

    def submit(self, *objects: dict) -> None:
        """Makes Jobs and pods."""
        for one in objects:
            path = "/api/v1/namespaces/default/pods" if one["kind"] == "Pod" else JOBS
            self.api("POST", path, one)

    def job(self, name: str) -> dict:
        """A Job, as the API server has it."""
        found = self.api("GET", f"{JOBS}/{name}")
        assert found is not None
        return found

    def annotation(self, job: str, name: str) -> str:
        return str(self.job(job)["metadata"].get("annotations", {}).get(name, ""))

    def delete_job(self, name: str) -> None:
        self.api("DELETE", f"{JOBS}/{name}?propagationPolicy=Background")

    def delete_pod(self, name: str) -> None:
        self.api("DELETE", f"{PODS}/{name}")

    def delete_pods(self) -> None:
        self.api("DELETE", PODS)

    def patch(self, path: str, patch: object) -> None:
        self.api("PATCH", path, patch, "application/merge-patch+json")

    def cordon(self, node: str, unschedulable: bool = True) -> None:
        self.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})

    def leader(self) -> str:
        found: str = self.get("lease", "larder-kubernetes", NAMESPACE)["spec"]["holderIdentity"]
        return found

    def gated_job(self, name: str, pods: int = 1, gpus: int = GPUS, runs_for: str = "", **annotations: str) -> dict:
        """A Job of so many pods at a time, which run until they are deleted, or for a time."""
        container = {"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        if runs_for:
            annotations["larder.io/runs-for"] = runs_for
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "template": {
                    "metadata": {"annotations": {re.sub("_", "-", key): text for key, text in annotations.items()}},
                    "spec": {"restartPolicy": "Never", "schedulingGates": [GATE], "containers": [container]},
                },
            },
        }

    def pods(self, job: str = "") -> list[dict]:
        """The pods of a Job, or all, that have not ended and are not being deleted."""
        listed = self.api("GET", f"{PODS}?labelSelector=job-name={job}" if job else PODS)
        assert listed is not None
        found = listed["items"]
        return [
            pod for pod in found
            if pod["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]
        ]  # fmt: skip

    def gated(self, job: str) -> int:
        """How many pods of the Job wait for a place."""
        return sum("schedulingGates" in pod["spec"] for pod in self.pods(job))

    def places(self, job: str) -> list[str]:
        """The nodes of the Job's running pods."""
        return sorted(pod["spec"]["nodeName"] for pod in self.pods(job) if pod["status"]["phase"] == "Running")

    def queue_job(self, job: str, namespace: str = "default") -> dict:
        """Larder's job of a Job; empty: there is none."""
        answer = self.allocator.ask("GET", f"/v1/queue/kubernetes-{namespace}.{job}")
        return answer.json() if answer.status == 200 else {}

    def state(self, job: str) -> str:
        return str(self.queue_job(job).get("state", ""))

    def until_runs(self, job: str, attempt: int) -> None:
        """Waits until that attempt runs."""

        def runs() -> bool:
            shown = self.queue_job(job)
            return (shown.get("state"), shown.get("attempt")) == ("running", attempt)

        self.until(runs)

    def decided(self, job: str) -> list[str]:
        """The nodes that the allocator has decided on, one for each pod of GPUS GPUs."""
        return sorted(share["node"] for share in self.queue_job(job)["holds"]["placement"])

    def log_of(self, job: str) -> str:
        return "\n".join(entry["text"] for entry in self.queue_job(job).get("log", []))

    def condition(self, job: str, kind: str) -> bool:
        conditions = self.job(job)["status"].get("conditions", [])
        return any(one["type"] == kind and one["status"] == "True" for one in conditions)

    def hold_second_pods(self) -> None:
        """From now on, second pods of Jobs keep their gates."""
        self.apply(*HOLD)
        probe = self.gated_job("probe")["spec"]["template"]
        probe["metadata"] = {"name": "probe", "annotations": {"batch.kubernetes.io/job-completion-index": "1"}}
        probe["spec"]["schedulingGates"] = [{"name": "test"}]
        self.apply({"apiVersion": "v1", "kind": "Pod"} | probe)
        patch = json.dumps({"spec": {"schedulingGates": []}})
        command = ("patch", "pod", "probe", "--type=merge", "--dry-run=server", f"--patch={patch}")
        self.until(lambda: "holds this pod" in self.try_kubectl(*command).stderr)
        self.kubectl("delete", "pod", "probe")

    def release(self) -> None:
        self.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "hold")

    def between_patches(self, job: str) -> bool:
        return [("schedulingGates" in pod["spec"]) for pod in self.pods(job)].count(False) == self.gated(job) == 1

    def end_pod(self, pod: str, code: int = 0) -> None:
        """Ends the pod's container with an exit code."""
        reason, phase = ("Completed", "Succeeded") if code == 0 else ("Error", "Failed")
        state = {"terminated": {"exitCode": code, "reason": reason}}
        container = {"name": "train", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0}
        status = {"status": {"phase": phase, "containerStatuses": [container | {"state": state}]}}
        self.patch(f"{PODS}/{pod}/status", status)

    def end_pods(self, job: str) -> None:
        """Ends the pods of a Job, with success."""
        for pod in self.pods(job):
            self.end_pod(pod["metadata"]["name"])

    def lose(self, node: str) -> None:
        """Makes a node not ready: its kubelet no longer answers, and its pods stay."""
        self.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}})
        status = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
        self.patch(f"/api/v1/nodes/{node}/status", status)

    def clean(self) -> None:
        """Ends all gangs, and makes all nodes ready."""
        self.revive()
        for name in PLACE_NODES:
            found = self.api("GET", f"/api/v1/nodes/{name}")
            if found is None:
                self.api("POST", "/api/v1/nodes", self.node(name))
                continue
            self.cordon(name, unschedulable=False)
            self.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}}})
        self.api("DELETE", f"{JOBS}?propagationPolicy=Background")
        self.api("DELETE", PODS)
        self.until(lambda: not (self.api("GET", PODS) or {})["items"] and not (self.api("GET", JOBS) or {})["items"])
        self.until(lambda: not self.allocator.ask("GET", "/v1/queue").json()["jobs"])


Started = TypeVar("Started", bound=PlaceCluster)


def running(
    kind: type[Started], programs: pathlib.Path, repository: pathlib.Path, directory: pathlib.Path
) -> Iterator[Started]:
    """A cluster of this kind, for a fixture."""
    started = kind(programs, kubernetes.build_larder_kubernetes(), repository, directory)
    try:
        yield started
    finally:
        started.stop()


def refusing(name: str, group: str, resource: str, expression: str, message: str) -> tuple[dict, dict]:
    """An admission policy, with its binding, that refuses updates for which the expression is false."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": message}],
    }
    return (
        kind | {"kind": "ValidatingAdmissionPolicy", "spec": policy},
        kind | {"kind": "ValidatingAdmissionPolicyBinding", "spec": {"policyName": name, "validationActions": ["Deny"]}},
    )


# Refuses to remove the gate of a Job's second pod, so that a test finds a gang between two patches.
HOLD = refusing(
    "hold", "", "pods",
    "object.metadata.?annotations['batch.kubernetes.io/job-completion-index'].orValue('') != "
    "'1' || has(object.spec.schedulingGates) || !has(oldObject.spec.schedulingGates)",
    "the test holds this pod",
)  # fmt: skip
