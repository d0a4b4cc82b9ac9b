"""A whole cluster on this machine, once: two tenants' jobs read six datasets on eight nodes, behind a remote of limited
bandwidth, under the policy max-min, and one node is lost on the way. The nodes, the allocator and the remote are
machines with networks of their own (end_to_end_site.py). end_to_end_engines.py has the engines that run the jobs.
bench/end_to_end.py runs all this, and prints what test_end_to_end.py compares."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
from typing import Protocol

from end_to_end_site import ENDED, GPUS, LIMIT_S, SAMPLE, Failure, Job, Setting, Site, simulated, until

ROUND_H = 1000  # rounds begin at multiples of their length since 1970: none begins during a run
SETTLE_S = 2.0  # plans follow changes after a report or two
REPORT_S = 1.2  # from one report of a node to the next, and its answer
JUMP = 0.1  # part of a rate
RANK_BYTES = 4 << 20  # ranks may be a step of several batches ahead of others
POLL_S = 0.25
WHY_EVERY_S = 1.0

SETTING = Setting(
    nodes=tuple(f"n{number}" for number in range(1, 9)),
    remote=36e6,
    datasets={"images": 640, "video": 800, "scans": 560, "maps": 400, "speech": 480, "text": 360},
    scheduler=f'policy = "max-min"\nround = "{ROUND_H} h"',
    tenants={"vision": {"weight": 2}, "speech": {"gpu_quota": 4}},
    declares_rates=True,
    step=8,
)

JOBS = (
    Job("resnet", "vision", "images", 2, 12e6, 4, 0.0),
    Job("vit", "vision", "video", 4, 14e6, 5, 0.5),
    Job("detect", "vision", "scans", 2, 9e6, 4, 1.0),
    Job("depth", "vision", "images", 1, 6e6, 3, 1.5),
    Job("asr", "speech", "speech", 2, 8e6, 3, 2.0),
    Job("lanes", "vision", "maps", 1, 5e6, 4, 2.5),
    Job("lm", "speech", "text", 2, 5e6, 3, 3.0),
    Job("flow", "vision", "video", 2, 8e6, 2, 3.5),
    Job("tts", "speech", "speech", 1, 6e6, 3, 4.0),  # the tenant's quota is used
    Job("pose", "vision", "scans", 2, 9e6, 3, 5.0),  # too few GPUs are free
    Job("distil", "vision", "maps", 1, 6e6, 3, 5.5, after="lanes"),
)
LOST_AT_S = 12.0
LOST_JOB = "flow"  # its node is lost


@dataclasses.dataclass
class Rate:
    """What a job was to read by the plan, and has read, in some seconds."""

    seconds: float = 0.0
    plan_bytes: float = 0.0
    read_bytes: float = 0.0


def held_gpus(job: dict) -> int:
    return sum(len(share["gpus"]) for share in job.get("holds", {}).get("placement", []))


def expected_binding(job: dict, jobs: dict[str, dict], lost: str) -> str:
    """What a waiting job lacks, told from the whole queue; empty: nothing, or the job does not wait."""
    if job["state"] != "waiting":
        return ""
    if job["waits_for_jobs"]:
        return "dependencies"
    active = [other for other in jobs.values() if "ended_unix_s" not in other]
    quota = SETTING.tenants[job["tenant"]].get("gpu_quota", GPUS * len(SETTING.nodes))
    if sum(held_gpus(other) for other in active if other["tenant"] == job["tenant"]) + job["gpus"] > quota:
        return "quota"
    free = dict.fromkeys(SETTING.nodes, GPUS)
    for other in active:
        for share in other.get("holds", {}).get("placement", []):
            free[share["node"]] -= len(share["gpus"])
    free.pop(lost, None)
    return "gpus" if sum(free.values()) < job["gpus"] else ""


@dataclasses.dataclass
class Look:
    """The cluster at one time."""

    at: float
    jobs: dict[str, dict]  # of JOBS, by their names there
    predicted: dict[str, float]  # the rate of each job by the plan, bytes/s
    # The bytes that each job's loop has taken on each node that is left, in all attempts.
    taken_on: dict[str, dict[str, int]]

    def taken(self, name: str) -> int:
        return sum(self.taken_on[name].values())

    def running(self) -> set[tuple[str, int]]:
        return {(name, job["attempt"]) for name, job in self.jobs.items() if job["state"] == "running"}


class EngineOfSite(Protocol):
    """What a run needs of its engine."""

    def submit(self, job: Job) -> str: ...
    def waits_outside(self, name: str) -> str: ...
    def refusing(self) -> contextlib.AbstractContextManager[str]: ...
    def lose(self, node: str) -> None: ...
    def check(self) -> None: ...


class Run:
    """The jobs of JOBS on one site, from the first submission to the end of the last job."""

    def __init__(self, site: Site, engine: EngineOfSite) -> None:
        self.site = site
        self.engine = engine
        self.names: dict[str, str] = {}  # in the queue
        self.submitted: dict[str, float] = {}
        self.attempts: dict[str, dict[int, list[str]]] = {job.name: {} for job in JOBS}  # the nodes of each
        self.bindings: dict[str, list[str]] = {}  # that were found right, by job
        self.looks: list[Look] = []
        self.last_bindings: dict[str, str] = {}
        self.lost = ""  # node
        self.lost_at = 0.0
        self.began = 0.0

    def go(self) -> None:
        self.site.wait_for_leases()
        self.began = time.time()
        sent = self.site.machines.sent_bytes("remote")
        to_submit = list(JOBS)
        asked_at = self.began
        while True:
            self.engine.check()
            now = time.time()
            if now - self.began > LIMIT_S:
                raise Failure(f"the jobs have not ended: {json.dumps(self.jobs(), indent=1)}")
            while to_submit and now >= self.began + to_submit[0].submit_s:
                self.submit(to_submit.pop(0))
            look = self.look()
            self.looks.append(look)
            for name, job in look.jobs.items():
                if job["state"] == "running":
                    self.attempts[name][job["attempt"]] = [share["node"] for share in job["holds"]["placement"]]
            runs = look.jobs.get(LOST_JOB, {}).get("state") == "running"
            if not self.lost and now >= self.began + LOST_AT_S and runs:
                self.lose(look)
            if now >= asked_at + WHY_EVERY_S:
                asked_at = now
                self.check_why()
            if len(look.jobs) == len(JOBS) and all(job["state"] in ENDED for job in look.jobs.values()):
                break
            time.sleep(max(0.0, now + POLL_S - time.time()))
        self.ended = look.jobs
        if not self.lost:
            raise Failure(f"{LOST_JOB} did not run after {LOST_AT_S} s, so its node was not lost: {look.jobs[LOST_JOB]}")
        seconds = time.time() - self.began
        self.sent_bytes_per_second = (self.site.machines.sent_bytes("remote") - sent) / seconds
        self.submit_refused()

    def submit(self, job: Job) -> None:
        self.submitted[job.name] = time.time()
        self.names[job.name] = self.engine.submit(job)

    def submit_refused(self) -> None:
        """Submits a job that the engine refuses for now: it waits to be placed again, and then runs."""
        job = Job("refused", "vision", "text", 1, 50e6, 1, 0.0)
        with self.engine.refusing() as reason:
            if not reason:
                return  # this engine refuses none
            name = self.engine.submit(job)

            def refused() -> int:
                """The attempt that was refused last; 0: none was, or another one begins."""
                shown = self.site.queue().get(name, {})
                return int(shown["attempt"]) if shown.get("pending_for") == reason else 0

            def says_why() -> bool:
                attempt = refused()
                why = json.loads(self.site.larder("--json", "job", "why", name))
                if attempt == 0 or refused() != attempt:
                    return False  # it was being placed again
                if why["binding"] != "engine" or reason not in why["why"]:
                    raise Failure(f"{name} was refused because of {reason}, and larder job why says {why}")
                return True

            until(refused, f"{name} is not refused for {reason}")
            until(says_why, f"{name} is placed again each time that it is looked at")
            self.bindings[job.name] = ["engine"]
        until(lambda: self.site.queue()[name]["state"] in ENDED, "the refused job has not ended")
        if self.site.queue()[name]["state"] != "succeeded":
            raise Failure(f"the refused job has not succeeded: {self.site.queue()[name]}")

    def jobs(self) -> dict[str, dict]:
        queue = self.site.queue()
        return {name: queue[there] for name, there in self.names.items() if there in queue}

    def look(self) -> Look:
        jobs = self.jobs()
        predicted = self.site.predicted()
        samples = self.site.samples()
        taken: dict[str, dict[str, int]] = {name: {} for name in self.names}
        jobs_there = {there: name for name, there in self.names.items()}
        for (node, there), count in samples.items():
            if there in jobs_there:
                taken[jobs_there[there]][node] = SAMPLE * count
        planned = {name: predicted[there] for name, there in self.names.items() if there in predicted}
        return Look(time.time(), jobs, planned, taken)

    def lose(self, look: Look) -> None:
        self.lost = look.jobs[LOST_JOB]["holds"]["placement"][0]["node"]
        self.lost_at = time.time()
        self.site.lose(self.lost)
        self.engine.lose(self.lost)

    def check_why(self) -> None:
        """Compares what `larder job why` says of each waiting job with the queue before and after."""
        queue = self.site.queue()
        for name, there in self.names.items():
            if there not in queue and (outside := self.engine.waits_outside(name)):
                self.bindings[name] = [outside]
        before = {
            name: expected_binding(queue[there], queue, self.lost)
            for name, there in self.names.items()
            if there in queue
        }
        said = {
            name: json.loads(self.site.larder("--json", "job", "why", self.names[name]))
            for name, binding in before.items()
            if binding and self.last_bindings.get(name) == binding  # else it has perhaps begun to wait just now
        }
        queue = self.site.queue()
        for name, why in said.items():
            binding = expected_binding(queue[self.names[name]], queue, self.lost)
            if binding != before[name]:
                continue
            if why["binding"] != binding:
                raise Failure(f"{name} waits for {binding}, and larder job why says {why}")
            if binding not in self.bindings.setdefault(name, []):
                self.bindings[name].append(binding)
        self.last_bindings = before


def rate_of(job: Job, looks: list[Look], lost_at: float) -> Rate:
    """What the job was to read, and has read, while the plan stood: no job had begun or ended, no node was lost, and
    the job's own rate had not jumped, as it does when an epoch ends, for SETTLE_S. A node reports once a second. So a
    jump in what is read comes before that of the plan."""
    pairs = list(itertools.pairwise(looks))
    changes = [lost_at] + [after.at for before, after in pairs if before.running() != after.running()]
    jumps = [
        after.at for before, after in pairs
        if abs(after.predicted.get(job.name, 0) - (rate := before.predicted.get(job.name, 0))) > JUMP * rate
    ]  # fmt: skip
    rate = Rate()
    attempt = 0
    taken_before: dict[str, int] = {}
    for before, after in pairs:
        if job.name not in before.jobs or before.jobs[job.name]["state"] != "running":
            continue
        if before.jobs[job.name]["attempt"] != attempt:
            taken_before = before.taken_on[job.name] if attempt else {}
            attempt = before.jobs[job.name]["attempt"]
        ranks = [taken - taken_before.get(node, 0) for node, taken in after.taken_on[job.name].items()]
        if any(taken >= SETTING.bytes_of(job) / job.nodes - RANK_BYTES for taken in ranks):
            continue  # it has read all, and its end is on its way to Larder
        if any(before.at - SETTLE_S < change <= after.at for change in changes):
            continue
        if any(before.at - SETTLE_S < jump <= after.at + REPORT_S for jump in jumps):
            continue
        if job.name not in before.predicted or job.name not in after.predicted:
            continue
        seconds = after.at - before.at
        rate.seconds += seconds
        rate.plan_bytes += seconds * (before.predicted[job.name] + after.predicted[job.name]) / 2
        rate.read_bytes += after.taken(job.name) - before.taken(job.name)
    return rate


def simulate(run: Run) -> dict[str, dict[str, str]]:
    """The rows of `larder simulate`, by job, for the same cluster, jobs, arrivals and loss. A job that waits for
    another one is submitted when that one ends, which a first simulation says; its time counts from its own
    submission."""
    submitted = {job.name: run.submitted[job.name] - run.began for job in JOBS}
    ended: dict[str, float] = {}
    while True:
        late = {job.name: ended.get(job.after, submitted[job.name]) for job in JOBS}
        jobs = [job for job in JOBS if not job.after or job.after in ended]
        jobs.sort(key=lambda job: late[job.name])
        rows = simulated(
            run.site, jobs, late, 0, "--policy", "max-min", "--round", ROUND_H * 3600,
            "--lose-node", f"n-{SETTING.nodes.index(run.lost)}@{run.lost_at - run.began:.3f}",
        )  # fmt: skip
        if len(rows) == len(JOBS):
            for row in rows.values():
                row["jct_s"] = str(float(row["finish_s"]) - submitted[row["name"]])
            return rows
        ended = {name: float(row["finish_s"]) for name, row in rows.items()}


def report(run: Run) -> dict[str, object]:
    simulated = simulate(run)
    jobs = {}
    for job in JOBS:
        ended = run.ended[job.name]
        rate = rate_of(job, run.looks, run.lost_at)
        jobs[job.name] = {
            "tenant": job.tenant,
            "state": ended["state"],
            "nodes": list(run.attempts[job.name].values()),
            "settled_s": rate.seconds,
            "plan_bytes_per_second": rate.plan_bytes / rate.seconds if rate.seconds else None,
            "read_bytes_per_second": rate.read_bytes / rate.seconds if rate.seconds else None,
            "jct_s": ended["ended_unix_s"] - run.submitted[job.name],
            "started_s": ended["started_unix_s"] - run.began,
            "simulated_start_s": float(simulated[job.name]["start_s"]),
            "simulated_jct_s": float(simulated[job.name]["jct_s"]),
            "simulated_failures": int(simulated[job.name]["failures"]),
            "waited_for": run.bindings.get(job.name, []),
        }
    jct, simulated_jct = (sum(job[key] for job in jobs.values()) / len(jobs) for key in ("jct_s", "simulated_jct_s"))
    return {
        "jobs": jobs,
        "jct_s": jct,
        "simulated_jct_s": simulated_jct,
        "refused_waited_for": run.bindings.get("refused", []),
        "lost_node": run.lost,
        "lost_s": run.lost_at - run.began,
        "remote_bytes_per_second": SETTING.remote,
        "sent_bytes_per_second": run.sent_bytes_per_second,
    }


def part(value: float | None, of: float | None) -> str:
    return f"{100 * (value / of - 1):+.1f} %" if value is not None and of else "-"


def show(result: dict) -> None:
    print("JOB      SETTLED       PLAN       READ     OFF     JCT SIMULATED     OFF  WAITED FOR")
    for name, job in result["jobs"].items():
        plan, read = job["plan_bytes_per_second"], job["read_bytes_per_second"]
        rates = [f"{rate / 1e6:.2f} MB/s" if rate else "-" for rate in (plan, read)]
        print(
            f"{name:8} {job['settled_s']:5.1f} s {rates[0]:>10} {rates[1]:>10} {part(read, plan):>7} "
            f"{job['jct_s']:5.1f} s {job['simulated_jct_s']:7.1f} s {part(job['simulated_jct_s'], job['jct_s']):>7}  "
            f"{', '.join(job['waited_for']) or '-'}"
        )
    jct, simulated = result["jct_s"], result["simulated_jct_s"]
    lost = ", ".join(name for name, job in result["jobs"].items() if len(job["nodes"]) > 1)
    print(f"\nmean completion time {jct:.1f} s, simulated {simulated:.1f} s, off by {part(simulated, jct)}")
    print(f"node {result['lost_node']} was lost after {result['lost_s']:.1f} s, and with it {lost}")
    sent, remote = result["sent_bytes_per_second"] / 1e6, result["remote_bytes_per_second"] / 1e6
    print(f"the remote sent {sent:.1f} MB/s of {remote:.0f} on average")
