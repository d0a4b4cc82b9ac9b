"""The engines that run the jobs of end_to_end.py."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import kubernetes
from end_to_end_site import GPUS, Failure, Job, Site
from kubernetes_cluster import NAMESPACE
from kubernetes_place import PlaceCluster
from slurm_place import PlaceSite

HERE = pathlib.Path(__file__).resolve().parent
READER = HERE / "end_to_end_reader.py"
AGENT = HERE.parent / "servers" / "process_agent.py"


class Engine:
    """What runs the jobs."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def submit(self, job: Job) -> str:
        """Submits a job. Returns its name in Larder's queue."""
        raise NotImplementedError

    def waits_outside(self, name: str) -> str:
        """What a submitted job that is not in Larder's queue waits for, as `larder job why` would call it."""
        return ""

    @contextlib.contextmanager
    def refusing(self) -> Iterator[str]:
        """While it lasts, the engine refuses jobs for now, for the reason that it gives. Empty: it refuses none."""
        yield ""

    def lose(self, node: str) -> None:
        """Ends the processes of jobs on the node, and lets the engine see that the node is gone."""
        raise NotImplementedError

    def check(self) -> None:
        """Fails if a process of the engine has ended. It is called many times a second."""

    def logs(self) -> str:
        return ""

    def stop(self) -> None:
        pass

    def reader(self, job: Job) -> list[str]:
        """The command of a job."""
        what = (self.site.directory, job.dataset, job.rate, job.epochs, self.site.setting.step)
        return [sys.executable, str(READER), *map(str, what)]


class Processes(Engine):
    """Processes of this machine, which tests/servers/process_agent.py starts as a cluster manager would."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.directory = site.directory / "agent"
        self.directory.mkdir()
        self.log = site.directory / "agent.log"
        self._write_nodes()
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, AGENT, site.allocator.socket, self.directory],
                stdout=log, stderr=log,
            )  # fmt: skip

    def _write_nodes(self, lost: str = "") -> None:
        new = self.directory / "nodes.new"
        nodes = self.site.setting.nodes
        new.write_text("".join(f"{node} {'node_lost' if node == lost else 'node_back'}\n" for node in nodes))
        new.rename(self.directory / "nodes")

    def submit(self, job: Job) -> str:
        after = ["--after", job.after] if job.after else []
        rate = ["--ideal-rate", f"{job.rate / 1e6:g} MB/s"] if self.site.setting.declares_rates else []
        self.site.larder(
            "job", "submit", "--name", job.name, "--tenant", job.tenant, "--gpus", job.gpus, "--dataset", job.dataset,
            "--epochs", job.epochs, *rate, *after, "--", *self.reader(job),
        )  # fmt: skip
        return job.name

    @contextlib.contextmanager
    def refusing(self) -> Iterator[str]:
        (self.directory / "reject").write_text("now the licence server is away")
        yield "the licence server is away"
        (self.directory / "reject").unlink()

    def lose(self, node: str) -> None:
        self._write_nodes(lost=node)

    def check(self) -> None:
        if self.agent.poll() is not None:
            raise Failure(f"the agent has ended: {self.logs()}")

    def logs(self) -> str:
        return self.log.read_text()

    def stop(self) -> None:
        self.agent.kill()
        self.agent.wait()
        for file in self.directory.glob("*/*/pid"):
            try:
                os.killpg(int(file.read_text().split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass


class OurPlaceSite(PlaceSite):
    """A Slurm for an allocator that runs already."""

    def __init__(self, site: Site, directory: pathlib.Path) -> None:
        self.given = site.allocator
        super().__init__(site.programs, HERE.parents[1], directory, nodes=len(site.setting.nodes), gpus=GPUS)

    def start_allocator(self, *options: str) -> None:
        self.allocator = self.given


class Slurm(Engine):
    """A real Slurm, with the agent of larder-slurm."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        directory = site.directory / "s"
        directory.mkdir()
        site.directory.chmod(0o755)
        directory.chmod(0o755)
        self.slurm = OurPlaceSite(site, directory)
        self.numbers: dict[str, str] = {}
        self.begin: list[str] = []  # an option of sbatch

    def submit(self, job: Job) -> str:
        command = shlex.join(self.reader(job))
        line = f"dataset={job.dataset} epochs={job.epochs} ideal-rate={job.rate / 1e6:g}MB/s"
        after = [f"--dependency=afterok:{self.numbers[job.after]}"] if job.after else []
        number = self.slurm.submit(
            f"srun {command}" if job.nodes > 1 else f"exec {command}",
            f"--account={job.tenant}", f"--nodes={job.nodes}", f"--job-name={job.name}", *after, *self.begin,
            line=line, user="root", gpus=job.gpus // job.nodes,
        )  # fmt: skip
        self.numbers[job.name] = number
        return f"slurm-{number}"

    def waits_outside(self, name: str) -> str:
        """Slurm keeps a job that waits for another one; Larder does not know it yet."""
        return "dependencies" if "unfulfilled" in self.slurm.field(self.numbers[name], "Dependency") else ""

    @contextlib.contextmanager
    def refusing(self) -> Iterator[str]:
        self.begin = ["--begin=now+1hour"]
        yield "BeginTime"
        self.begin = []
        self.slurm.scontrol("update", f"JobId={self.numbers['refused']}", "StartTime=now")

    def lose(self, node: str) -> None:
        self.slurm.server.ask({"do": "kill", "node": node})
        for process in self._processes_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # slurmctld would take minutes to see that slurmd is silent.
        self.slurm.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def _processes_of(self, node: str) -> list[int]:
        """The processes of this Slurm's jobs on the node: first those that watch the others, and report their ends."""
        wanted = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.slurm.environment['SLURM_CONF']}".encode()}
        watching, found = [], []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if not wanted <= set((process / "environ").read_bytes().split(b"\0")):
                    continue
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if pathlib.Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                    watching.append(int(parent))
            except OSError:
                continue  # it has just ended
            found.append(int(process.name))
        return watching + found

    def check(self) -> None:
        assert self.slurm.agent is not None
        if self.slurm.agent.poll() is not None:
            raise Failure(f"the agent has ended: {self.logs()}")

    def logs(self) -> str:
        return self.slurm.logs()

    def stop(self) -> None:
        self.slurm.stop()


class OurPlaceCluster(PlaceCluster):
    """A Kubernetes for an allocator that runs already."""

    def __init__(self, site: Site, directory: pathlib.Path) -> None:
        self.site = site
        super().__init__(site.programs, kubernetes.build_larder_kubernetes(), HERE.parents[1], directory)

    def _start(self) -> None:
        self.allocator = self.site.allocator
        self._start_plane(())
        self.apply(*(self.node(name, GPUS) for name in self.site.setting.nodes))
        for name in (NAMESPACE, *self.site.setting.tenants):
            self.kubectl("create", "namespace", name)
        for name in self.site.setting.tenants:
            self.until(lambda name=name: self.api("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        self.helm("install", "larder", self.chart, "--namespace", NAMESPACE, "--set", "place.enabled=true")
        self.start_controller("c1")


class Kubernetes(Engine):
    """A real Kubernetes without kubelets: a reader is started beside each pod that runs, and its end is the pod's."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        directory = site.directory / "k"
        directory.mkdir()
        self.cluster = OurPlaceCluster(site, directory)
        self.submitted: dict[str, Job] = {}
        self.suspended: dict[str, Job] = {}  # wait for another job
        self.readers: dict[str, tuple[dict, subprocess.Popen[bytes]]] = {}  # by the pod's uid
        self.failure = ""
        self.lost = ""  # node
        self.ending = threading.Event()
        self.kubelets = threading.Thread(target=self._run_kubelets, daemon=True)
        self.kubelets.start()

    @staticmethod
    def _jobs(job: Job) -> str:
        return f"/apis/batch/v1/namespaces/{job.tenant}/jobs"

    def submit(self, job: Job) -> str:
        made = self.cluster.gated_job(job.name, pods=job.nodes, gpus=job.gpus // job.nodes)
        made["metadata"]["namespace"] = job.tenant
        made["spec"]["suspend"] = bool(job.after)
        metadata = made["spec"]["template"]["metadata"]
        metadata["labels"] = {"larder.io/dataset": job.dataset}
        metadata["annotations"] |= {"larder.io/epochs": str(job.epochs), "larder.io/ideal-rate": f"{job.rate:.0f}"}
        self.cluster.api("POST", self._jobs(job), made)
        self.submitted[job.name] = job
        if job.after:
            self.suspended[job.name] = job
        return f"kubernetes-{job.tenant}.{job.name}"

    def waits_outside(self, name: str) -> str:
        """Kubernetes has no jobs that wait for others: this one is suspended until the other has succeeded."""
        return "dependencies" if name in self.suspended else ""

    def lose(self, node: str) -> None:
        self.cluster.lose(node)
        self.lost = node
        for pod, reader in list(self.readers.values()):
            if pod["spec"]["nodeName"] == node:
                reader.kill()

    def _run_kubelets(self) -> None:
        try:
            while not self.ending.wait(0.1):
                self._look_at_pods()
        except Exception as error:  # of this thread; check() raises it
            self.failure = repr(error)

    def _look_at_pods(self) -> None:
        listed = self.cluster.api("GET", "/api/v1/pods?labelSelector=larder.io/dataset")
        assert listed is not None
        pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid, pod in pods.items():
            if uid not in self.readers and pod["status"]["phase"] == "Running" and not self._is_deleted(pod):
                self._start_reader(uid, pod)
        for uid, (_, reader) in list(self.readers.items()):
            if reader.poll() is None and (uid not in pods or self._is_deleted(pods[uid])):
                reader.terminate()
            if reader.poll() is None or uid not in pods:
                continue
            if pods[uid]["spec"]["nodeName"] == self.lost:
                self._remove_pod(pods[uid])
            elif pods[uid]["status"]["phase"] == "Running":
                self._end_pod(pods[uid], reader.returncode)

    def _remove_pod(self, pod: dict) -> None:
        """Removes a pod that was asked to end on the lost node, as who knows that the machine is gone does."""
        if self._is_deleted(pod):
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            self.cluster.api("DELETE", f"{path}?gracePeriodSeconds=0")

    @staticmethod
    def _is_deleted(pod: dict) -> bool:
        return "deletionTimestamp" in pod["metadata"]

    def _start_reader(self, uid: str, pod: dict) -> None:
        job = self.submitted[pod["metadata"]["labels"]["job-name"]]
        annotations = pod["metadata"]["annotations"]
        environment = os.environ | {
            "LARDER_JOB": f"kubernetes-{job.tenant}.{job.name}",
            "LARDER_NODES": annotations["larder.io/nodes"],
            "LARDER_NODE_RANK": annotations["larder.io/rank"],
        }
        with open(self.site.directory / f"reader-{pod['metadata']['name']}.log", "ab") as log:
            reader = subprocess.Popen(self.reader(job), env=environment, stdout=log, stderr=log)
        self.readers[uid] = (pod, reader)

    def _end_pod(self, pod: dict, code: int) -> None:
        metadata = pod["metadata"]
        reason, phase = ("Completed", "Succeeded") if code == 0 else ("Error", "Failed")
        state = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": reason}}
        container = {"name": "train", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0}
        status = {"status": {"phase": phase, "containerStatuses": [container | {"state": state}]}}
        self.cluster.patch(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status", status)

    def check(self) -> None:
        if self.failure:
            raise Failure(f"the kubelets' part has failed: {self.failure}")
        self.cluster.controllers["c1"].start_if_replaced()
        for name, job in list(self.suspended.items()):
            before = self.cluster.api("GET", f"{self._jobs(self.submitted[job.after])}/{job.after}")
            if before is not None and before["status"].get("succeeded", 0) > 0:
                self.cluster.patch(f"{self._jobs(job)}/{name}", {"spec": {"suspend": False}})
                del self.suspended[name]

    def logs(self) -> str:
        return self.cluster.logs()

    def stop(self) -> None:
        self.ending.set()
        self.kubelets.join()
        for _, reader in self.readers.values():
            reader.kill()
            reader.wait()
        self.cluster.stop()


ENGINES = {"processes": Processes, "slurm": Slurm, "kubernetes": Kubernetes}
