"""A Kubernetes whose pods run: a kubelet for tests starts the command of a pod as a process of this machine. There are
no containers, images or volumes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.client
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from allocator_process import Allocator
from kubernetes_cluster import NAMESPACE, Mode
from kubernetes_place import GATE, JOBS, PODS, PlaceCluster, refusing

RUN_NODES = ("n1", "n2")
NODE_GPUS = 4
POLL_S = 0.05
HEARTBEAT_S = 10


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass
class Running:
    """A pod whose command has been started."""

    process: subprocess.Popen[bytes]
    kill_at: float = math.inf
    ended: bool = False


class Kubelet:
    """Runs the pods of all nodes, in a thread of its own."""

    def __init__(self, cluster: PlaceCluster) -> None:
        self._cluster = cluster
        self._running: dict[str, Running] = {}
        self.lost_nodes: frozenset[str] = frozenset()
        self._stops = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()
        for running in self._running.values():
            if running.process.poll() is None:
                running.process.kill()
            running.process.wait()

    def _run(self) -> None:
        beat = 0.0
        told_lost = self.lost_nodes
        while not self._stops.wait(POLL_S):
            try:
                lost = self.lost_nodes
                if time.monotonic() - beat > HEARTBEAT_S or lost != told_lost:
                    beat, told_lost = time.monotonic(), lost
                    for node in RUN_NODES:
                        self._beat(node, node not in lost)
                for pod in (self._cluster.api("GET", PODS) or {"items": []})["items"]:
                    if pod["spec"].get("nodeName"):
                        self._sync(pod)
            except (OSError, http.client.HTTPException):
                continue  # the API server is away
            except BaseException as failure:
                self.failure = failure
                raise

    def _beat(self, node: str, is_ready: bool) -> None:
        status = "True" if is_ready else "Unknown"
        ready = {"type": "Ready", "status": status, "reason": "Test", "lastHeartbeatTime": now()}
        self._cluster.api(
            "PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready]}},
            "application/strategic-merge-patch+json",
        )  # fmt: skip

    def _sync(self, pod: dict) -> None:
        metadata = pod["metadata"]
        running = self._running.get(metadata["uid"])
        deleted = "deletionTimestamp" in metadata
        if running is None:
            if deleted or pod["status"]["phase"] != "Pending":
                return self._remove(pod) if deleted else None
            running = self._running[metadata["uid"]] = Running(self._start(pod))
            state = {"running": {"startedAt": now()}}
            return self._tell(pod, "Running", True, state)
        if deleted and not running.ended:
            if running.kill_at == math.inf:
                running.process.send_signal(signal.SIGTERM)
            # A later request may make the grace shorter.
            running.kill_at = min(running.kill_at, time.monotonic() + metadata["deletionGracePeriodSeconds"])
        if time.monotonic() >= running.kill_at and not running.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
        status = running.process.poll()
        if status is not None and not running.ended:
            running.ended = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)  # as a container ends with its first process
            code = status if status >= 0 else 128 - status
            state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
            self._tell(pod, "Succeeded" if code == 0 else "Failed", False, state)
        if running.ended and deleted:
            self._remove(pod)
        return None

    def _start(self, pod: dict) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        environment = dict(os.environ)
        for one in container.get("env", []):
            environment[one["name"]] = one.get("value", "")
            field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if field == "spec.nodeName":
                environment[one["name"]] = pod["spec"]["nodeName"]
            elif field:
                key = re.fullmatch(r"metadata\.(annotations|labels)\['(.*)'\]", field)
                assert key, field
                environment[one["name"]] = pod["metadata"][key[1]][key[2]]
        directory = pathlib.Path(container["workingDir"])
        with open(directory / f"{pod['metadata']['name']}.log", "ab") as log:
            return subprocess.Popen(
                container["command"], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _tell(self, pod: dict, phase: str, is_ready: bool, state: dict) -> None:
        container = {"name": "train", "image": "none", "imageID": "", "restartCount": 0}
        container |= {"ready": is_ready, "state": state}
        conditions = [{"type": kind, "status": str(is_ready)} for kind in ("Ready", "ContainersReady")]
        status = {"phase": phase, "containerStatuses": [container], "conditions": conditions}
        self._cluster.api(
            "PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": status},
            "application/strategic-merge-patch+json",
        )  # fmt: skip

    def _remove(self, pod: dict) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._cluster.api("DELETE", f"{PODS}/{pod['metadata']['name']}", options)


class RunCluster(PlaceCluster):
    """A control plane for several cases. Each case has an allocator and a controller of its own."""

    def _start(self) -> None:
        self._start_plane(RUN_NODES)
        self.kubectl("create", "namespace", NAMESPACE)
        self.helm("install", "larder", self.chart, "--namespace", NAMESPACE, "--set", "place.enabled=true")
        self.kubelet = Kubelet(self)
        self._stack.callback(self.kubelet.stop)

    def node(self, name: str) -> dict[str, object]:
        resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(NODE_GPUS)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": resources, "allocatable": resources},
        }

    def begin(self, allocator: Allocator) -> Mode:
        self.allocator = allocator
        return self.start_controller("c1")

    def finish(self) -> None:
        """Removes all Jobs and pods, with nobody left who makes new ones."""
        self.controllers.pop("c1").end()
        self.api("DELETE", f"{JOBS}?propagationPolicy=Background")
        self.api("DELETE", f"{PODS}?gracePeriodSeconds=1")
        self.until(lambda: not (self.api("GET", PODS) or {})["items"] and not (self.api("GET", JOBS) or {})["items"])
        assert self.kubelet.failure is None, self.kubelet.failure

    def refuse_sizes(self, reason: str) -> None:
        """From now on, no Job that runs gets another size."""
        self.apply(*refusing("rigid", "batch", "jobs", RIGID, reason))
        probe = self.gated_job("probe") | {"apiVersion": "batch/v1", "kind": "Job"}
        probe["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "test"}]
        self.submit(probe)
        patch = json.dumps({"spec": {"parallelism": 2, "completions": 2}})
        command = ("patch", "job", "probe", "--type=merge", "--dry-run=server", f"--patch={patch}")
        self.until(lambda: reason in self.try_kubectl(*command).stderr)
        self.delete_job("probe")

    def allow_sizes(self) -> None:
        self.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "rigid")

    def run(self, directory: pathlib.Path, script: str, given_options: tuple[str, ...]) -> str:
        """Makes a Job of the options of `larder job submit`, and returns the name of Larder's job."""
        options: dict[str, str] = {}
        variables: list[str] = []
        words = iter(given_options)
        for option in words:
            value = "" if option == "--elastic" else next(words)
            if option == "--env":
                variables.append(value)
            else:
                options[option] = value
        gpus = int(options.pop("--gpus", "1"))
        pods = -(-gpus // NODE_GPUS)
        name = options.pop("--name", "") or f"run-{os.urandom(4).hex()}"
        fields = {"LARDER_KEY": "attempt", "LARDER_NODES": "nodes", "LARDER_NODE_RANK": "rank"}
        paths = {variable: f"metadata.annotations['larder.io/{field}']" for variable, field in fields.items()}
        environment: list[dict[str, object]] = [
            {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for variable, path in (paths | {"NODE": "spec.nodeName"}).items()
        ]
        for given in variables:
            variable, _, value = given.partition("=")
            environment.append({"name": variable, "value": value})
        metadata: dict[str, dict[str, str]] = {"labels": {}, "annotations": {}}
        if dataset := options.pop("--dataset", ""):
            metadata["labels"]["larder.io/dataset"] = dataset
        if epochs := options.pop("--epochs", ""):
            metadata["annotations"]["larder.io/epochs"] = epochs
        least, most = (int(options.pop(name, gpus)) * pods // gpus for name in ("--gpus-min", "--gpus-max"))
        if options.pop("--elastic", None) is not None:
            metadata["annotations"]["larder.io/elastic"] = f"{least}-{most}"
        grace = max(1, math.ceil(float(options.pop("--grace", "5"))))
        assert not options, options
        key = "export LARDER_JOB_ID=${LARDER_KEY%%.*} LARDER_ATTEMPT=${LARDER_KEY#*.}; LARDER_ATTEMPT=${LARDER_ATTEMPT%%.*}"
        container = {
            "name": "train",
            "image": "none",
            "command": ["sh", "-c", f"{key}\n{script}"],
            "workingDir": str(directory),
            "env": environment,
            "resources": {"limits": {"nvidia.com/gpu": str(gpus // pods)}},
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {
                    "metadata": metadata,
                    "spec": {
                        "restartPolicy": "Never",
                        "schedulingGates": [GATE],
                        "terminationGracePeriodSeconds": grace,
                        "containers": [container],
                    },
                },
            },
        }
        self.submit(job)
        return f"kubernetes-default.{name}"


# A Job that runs keeps its size. It may get another while it is suspended, and when it is resumed.
RIGID = "oldObject.spec.?suspend.orValue(false) || object.spec.parallelism == oldObject.spec.parallelism"
