"""Queueing and preemption on this machine: eight jobs want 21 GPUs of four nodes, which have eight, under the policy
las and behind a remote of limited bandwidth. Short jobs that come later stop long ones, which save their position and
go on from it when GPUs are free again. No job says its f*. bench/reality_las.py runs all this, and prints what
test_reality_las.py checks. end_to_end_site.py has the cluster, end_to_end_reader.py the jobs."""

from __future__ import annotations

import json
import time

from end_to_end_engines import Processes
from end_to_end_site import ENDED, LIMIT_S, Failure, Job, Setting, Site, simulated

QUEUE_GPU_S = 64  # a job goes down to the second queue after this GPU time
POLL_S = 0.1

SETTING = Setting(
    nodes=tuple(f"n{number}" for number in range(1, 5)),
    remote=14e6,
    datasets={"images": 480, "video": 560, "scans": 320, "speech": 400, "maps": 240},
    scheduler=f'policy = "las"\nqueues = "{QUEUE_GPU_S} s"',
    tenants={"lab": {"weight": 1}},
    declares_rates=False,
    step=6,  # ranks end with a step, so a short one frees the GPUs soon
)

JOBS = (
    Job("resnet", "lab", "images", 4, 11e6, 7, 0.0),
    Job("vit", "lab", "video", 4, 12e6, 6, 0.5),
    Job("detect", "lab", "scans", 2, 6e6, 2, 18.5),  # stops vit, which began later than resnet
    Job("asr", "lab", "speech", 2, 6e6, 2, 20.5),
    Job("pose", "lab", "maps", 4, 8e6, 3, 23.0),  # stops resnet
    Job("lanes", "lab", "maps", 2, 5e6, 3, 25.0),  # waits: the jobs that run are of the first queue, and older
    Job("lm", "lab", "speech", 1, 4e6, 1, 27.0),
    Job("flow", "lab", "scans", 2, 6e6, 3, 57.0),  # stops vit again
)


class Run:
    """The jobs of JOBS on one site, from the first submission to the end of the last job."""

    def __init__(self, site: Site, engine: Processes) -> None:
        self.site = site
        self.engine = engine
        self.submitted: dict[str, float] = {}
        self.nodes: dict[str, dict[int, list[str]]] = {job.name: {} for job in JOBS}  # of each attempt
        self.began = 0.0

    def go(self) -> None:
        self.site.wait_for_leases()
        self.began = time.time()
        to_submit = list(JOBS)
        while True:
            self.engine.check()
            now = time.time()
            if now - self.began > LIMIT_S:
                raise Failure(f"the jobs have not ended: {json.dumps(self.site.queue(), indent=1)}")
            while to_submit and now >= self.began + to_submit[0].submit_s:
                job = to_submit.pop(0)
                self.submitted[job.name] = time.time()
                self.engine.submit(job)
            self.jobs = self.site.queue()
            for name, job in self.jobs.items():
                if job["state"] == "running":
                    self.nodes[name][job["attempt"]] = [share["node"] for share in job["holds"]["placement"]]
            if len(self.jobs) == len(JOBS) and all(job["state"] in ENDED for job in self.jobs.values()):
                break
            time.sleep(max(0.0, now + POLL_S - time.time()))
        # With their logs.
        self.jobs = {name: self.site.allocator.ask("GET", f"/v1/queue/{name}").json() for name in self.jobs}


def notes_of(run: Run, job: Job) -> list[dict]:
    """What the job's ranks have noted, in the order of time."""
    lines = (run.site.directory / f"{job.name}.reads").read_text().splitlines()
    return [json.loads(line) for line in lines]


def restart_seconds(run: Run, job: Job) -> list[float]:
    """From each time that the job got GPUs again until all its ranks began to read."""
    began: dict[int, float] = {}
    for note in notes_of(run, job):
        if "began_unix_s" in note:
            began[note["attempt"]] = max(note["began_unix_s"], began.get(note["attempt"], 0))
    got = [entry["unix_s"] for entry in run.jobs[job.name]["log"] if entry["text"].startswith("gets ")]
    return [began[attempt] - at for attempt, at in enumerate(got, start=1) if attempt > 1]


def epochs_are_whole(run: Run, job: Job) -> bool:
    """Whether the job's loops, in all ranks and attempts, took each sample once in each epoch."""
    taken: list[list[int]] = [[] for _ in range(job.epochs)]
    for note in notes_of(run, job):
        if "epoch" in note:
            taken[note["epoch"]] += note["samples"]
    whole = list(range(run.site.setting.datasets[job.dataset]))
    return all(sorted(samples) == whole for samples in taken)


def report(run: Run) -> dict[str, object]:
    restarts = [seconds for job in JOBS for seconds in restart_seconds(run, job)]
    restart_s = sum(restarts) / len(restarts) if restarts else 0.0
    submitted = {job.name: run.submitted[job.name] - run.began for job in JOBS}
    simulation = simulated(run.site, JOBS, submitted, restart_s, "--policy", "las", "--queues", QUEUE_GPU_S)
    jobs = {}
    for job in JOBS:
        ended, row = run.jobs[job.name], simulation[job.name]
        jobs[job.name] = {
            "gpus": job.gpus,
            "state": ended["state"],
            "submitted_s": submitted[job.name],
            "nodes": list(run.nodes[job.name].values()),
            "epochs_are_whole": epochs_are_whole(run, job),
            "preemptions": ended["preemptions"],
            "simulated_preemptions": int(row["preemptions"]),
            "started_s": ended["first_started_unix_s"] - run.began,
            "simulated_start_s": float(row["start_s"]),
            "ended_s": ended["ended_unix_s"] - run.began,
            "simulated_end_s": float(row["finish_s"]),
            "jct_s": ended["ended_unix_s"] - run.submitted[job.name],
            "simulated_jct_s": float(row["jct_s"]),
        }
    largest = max(abs(job["simulated_jct_s"] / job["jct_s"] - 1) for job in jobs.values())
    return {"jobs": jobs, "restart_s": restart_s, "largest_off": largest}


def show(result: dict) -> None:
    print("JOB      GPUS SUBMITTED   STARTED SIMULATED      JCT SIMULATED     OFF  PREEMPTED SIMULATED")
    for name, job in result["jobs"].items():
        off = 100 * (job["simulated_jct_s"] / job["jct_s"] - 1)
        print(
            f"{name:8} {job['gpus']:4} {job['submitted_s']:7.1f} s {job['started_s']:7.1f} s "
            f"{job['simulated_start_s']:7.1f} s {job['jct_s']:6.1f} s {job['simulated_jct_s']:7.1f} s {off:+5.1f} %  "
            f"{job['preemptions']:9} {job['simulated_preemptions']:9}"
        )
    print(f"\na restart took {result['restart_s']:.2f} s on average, which the simulation has as its restart cost")
    print(f"the largest difference is {100 * result['largest_off']:.1f} %")
