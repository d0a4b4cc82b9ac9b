#!/usr/bin/python3
"""Makes the n-th call of one function fail, once, for n from 1 until a whole scenario passes before the call: start a
daemon, add, index and warm a dataset, read an epoch, stop, start again, read an epoch, stop; or start an allocator,
submit jobs, stop, start again, stop. The program gives an error, works on with less, or ends with a message and an
exit code that is not 0: it never crashes and never hangs. Afterwards it starts again from what is on the disk,
without the failure, and all that it had acknowledged is there.

DIR keeps how far each function is. See nth_failure.cc for the functions. For malloc and other functions that are
called very often, the calls that fail are the first ones from each stack."""

from __future__ import annotations

import contextlib
import json
import mmap
import pathlib
import random
import struct
import subprocess
import sys
from typing import Any

from programs import BROKEN, Campaign, Failure, Reader, Server, add_data, allocator, larderd, wait_until, write_files

CALLS = ("memfd_create", "eventfd", "fork", "thread", "sync", "mmap", "open", "write", "read", "malloc")
# Called too often to fail each call; the first call from each stack fails.
BY_STACK = ("mmap", "open", "write", "read", "malloc")
STACKS = 1 << 17
HEADER = struct.Struct("<4Q29Q")
SCENARIOS = ("daemon", "allocator")
HANG_S = 60.0
BANDWIDTH = 1_000_000_000  # of the remote, until it is set through the API


class Injection:
    """The file that the programs share with this one; see Shared in nth_failure.cc."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(HEADER.size + 8 * STACKS))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), HEADER.size + 8 * STACKS)

    def arm(self, at: int) -> None:
        """Call number `at` fails; 0: the first whose stack never failed."""
        self._memory[: HEADER.size] = HEADER.pack(at, *[0] * 32)

    def fired(self) -> int:
        return int(HEADER.unpack_from(self._memory)[2])

    def calls(self) -> int:
        return int(HEADER.unpack_from(self._memory)[1])

    def stack(self) -> list[int]:
        values = HEADER.unpack_from(self._memory)
        return list(values[4 : 4 + values[3]])

    def forget_stacks(self) -> None:
        self._memory[HEADER.size :] = bytes(8 * STACKS)


class Progress:
    """DIR/progress.json: for each scenario and function, the next n and whether all calls have failed once."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.values: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, key: str) -> dict[str, int]:
        return self.values.setdefault(key, {"next": 1, "passes": 0})

    def save(self) -> None:
        copy = self._path.with_suffix(".new")
        copy.write_text(json.dumps(self.values))
        copy.rename(self._path)


def without_random_addresses(server: Server, environment: dict[str, str]) -> Server:
    """A stack has the same addresses in each run only if the kernel does not choose them at random."""
    return Server(["/usr/bin/setarch", "-R", *server.command], server.socket, server.log, environment)


def check_end(server: Server, asked: bool) -> None:
    """Raises Failure unless the program ended as one may under a failure: with exit code 0 after SIGTERM, or with
    another and a message."""
    code = server.returncode()
    assert code is not None
    if code < 0:
        raise Failure(f"ended by signal {-code}:\n{server.tail()}")
    if code == 0 and not asked:
        raise Failure(f"ended with exit code 0 without being asked:\n{server.tail()}")
    if code != 0 and not server.tail().strip():
        raise Failure(f"ended with exit code {code} and no message")


def stop(server: Server) -> None:
    if server.returncode() is None:
        server.process.terminate()
        try:
            server.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"did not end within {HANG_S:g} s after SIGTERM:\n{server.tail()}") from None
        check_end(server, asked=True)
    else:
        check_end(server, asked=False)


class Ended(Exception):
    """The program under test has ended by itself."""


def ask(server: Server, method: str, target: str, body: object = None) -> Any:
    """The answer's status and body; status 0 if the connection broke."""
    if server.returncode() is not None:
        raise Ended
    try:
        answer = server.ask(method, target, body)
    except BROKEN:
        if server.returncode() is not None:
            raise Ended from None
        return 0, {}
    if answer.status >= 400 and b"error" not in answer.body and b"message" not in answer.body:
        raise Failure(f"{method} {target} answered {answer.status} without a message: {answer.body!r}")
    try:
        return answer.status, answer.json()
    except ValueError:
        return answer.status, {}


def settle(server: Server, holds: Any, what: str) -> None:
    def check() -> None:
        if server.returncode() is not None:
            raise Ended

    wait_until(holds, HANG_S, what, check)


def wait_for_task(daemon: Server, started: Any) -> str:
    """The state in which the task ended; empty if the daemon did not say."""
    status, body = started
    if status != 202 or "task" not in body:
        return ""
    state = ""

    def has_ended() -> bool:
        nonlocal state
        state = ask(daemon, "GET", f"/v1/tasks/{body['task']}")[1].get("state", "")
        return state != "running"

    settle(daemon, has_ended, "a task ends")
    return state


class DaemonScenario:
    def __init__(self, campaign: Campaign, work: pathlib.Path, call: str) -> None:
        self.campaign = campaign
        self.work = work
        self.files = work / "files"
        write_files(self.files, 24, 30_000, 7)
        # Blocks that shrink, for the compressor.
        for i in range(24):
            (self.files / "class_0" / f"zeros-{i:05}.bin").write_bytes(b"0" * (8_000 + 100 * i))
        self.has_dataset = False  # the daemon said that it was added
        # libc's reads and writes are the data plane's only without io_uring.
        self.io = "threads" if call in ("write", "read") else "auto"

    def server(self, environment: dict[str, str]) -> Server:
        made = larderd(self.campaign, self.work, "--io", self.io)
        return without_random_addresses(made, environment)

    def reader(self, name: str) -> Reader:
        return Reader(
            self.campaign.bin / "larder-test-reader", self.work / "d" / "larderd.sock", self.files, self.work / name,
            epochs=1,
        )  # fmt: skip

    def with_failure(self, daemon: Server) -> None:
        settle(daemon, daemon.serves, "the daemon serves or ends")
        body = {
            "name": "data",
            "url": f"file://{self.files}",
            "compression": "zstd:1",
            "quota": {"memory_bytes": 400_000, "disk_bytes": 8_000_000},
        }
        self.has_dataset = wait_for_task(daemon, ask(daemon, "POST", "/v1/datasets", body)) == "done"
        wait_for_task(daemon, ask(daemon, "POST", "/v1/datasets/data/warm", {}))
        self.read_with_failure(daemon)
        ask(daemon, "GET", "/v1/datasets/data")
        ask(daemon, "GET", "/metrics")

    def again_with_failure(self, daemon: Server) -> None:
        settle(daemon, daemon.serves, "the daemon serves or ends")
        self.read_with_failure(daemon)

    def read_with_failure(self, daemon: Server) -> None:
        reader = self.reader("reader-1.log")
        try:
            settle(daemon, reader.has_ended, "the reader ends")
            if reader.wait(1) not in (0, 1):
                raise Failure(f"the reader ended with {reader.wait(1)}: {reader.output()}")
        finally:
            reader.discard()

    def without_failure(self, daemon: Server) -> None:
        daemon.start()
        if daemon.ask("GET", "/v1/datasets/data").status != 200:
            listed: Any = daemon.get("/v1/datasets")
            if listed["damaged"]:
                raise Failure(f"the dataset is damaged after the failure: {listed['damaged']}")
            if self.has_dataset:
                raise Failure("the dataset, whose addition had ended, is gone")
            add_data(daemon, self.files, 400_000, 8_000_000)
        reader = self.reader("reader-2.log")
        try:
            if reader.wait(HANG_S) != 0:
                raise Failure(f"after the failure the reader ended with {reader.wait(1)}: {reader.output()}")
        except subprocess.TimeoutExpired:
            raise Failure("after the failure the reader does not end") from None
        finally:
            reader.discard()
        daemon.end()


class AllocatorScenario:
    def __init__(self, campaign: Campaign, work: pathlib.Path, call: str) -> None:
        self.campaign = campaign
        self.work = work
        self.acknowledged: dict[int, str] = {}  # what each job writes, by number
        # The bandwidth last acknowledged, and the one that was asked for since.
        self.rates: set[float] = {BANDWIDTH}
        self.output = work / "ran"

    def server(self, environment: dict[str, str]) -> Server:
        made = allocator(
            self.campaign, self.work, "--remote-bandwidth", f"{BANDWIDTH} B/s", "--scheduler.gpus", "2",
            "--scheduler.directory", self.work / "jobs",
        )  # fmt: skip
        return without_random_addresses(made, environment)

    def with_failure(self, scheduler: Server) -> None:
        settle(scheduler, scheduler.serves, "the allocator serves or ends")
        for i in range(2):
            job = {"name": f"n{i}x", "command": ["sh", "-c", f"echo {i} >>{self.output}"], "directory": "/", "gpus": 1}
            status, body = ask(scheduler, "POST", "/v1/queue", {"jobs": [job]})
            if status == 200:
                self.acknowledged[int(body["jobs"][0]["id"])] = f"{i}\n"
        self.rates.add(5e8)
        if ask(scheduler, "PUT", "/v1/remote", {"bytes_per_second": 5e8})[0] == 200:
            self.rates = {5e8}
        settle(
            scheduler, lambda: self.ended(ask(scheduler, "GET", "/v1/history?limit=100")[1]), "the jobs end",
        )  # fmt: skip

    def again_with_failure(self, scheduler: Server) -> None:
        settle(scheduler, scheduler.serves, "the allocator serves or ends")
        ask(scheduler, "GET", "/v1/queue")

    def ended(self, history: Any) -> bool:
        return set(self.acknowledged) <= {job["id"] for job in history.get("jobs", [])}

    def check_jobs(self, history: Any) -> None:
        ran = self.output.read_text().splitlines(keepends=True) if self.output.exists() else []
        for job in history["jobs"]:
            text = self.acknowledged.get(job["id"])
            if text is not None and job["state"] == "succeeded" and text not in ran:
                raise Failure(f"job {job['id']} succeeded, but wrote nothing: {job}")

    def without_failure(self, scheduler: Server) -> None:
        scheduler.start()
        rate = scheduler.get("/v1/status")["remote_bytes_per_second"]
        if rate not in self.rates:
            raise Failure(f"the remote bandwidth is {rate}, not one of {self.rates}")
        wait_until(
            lambda: self.ended(scheduler.get("/v1/history?limit=100")), HANG_S, f"jobs {self.acknowledged} have ended",
            scheduler.check,
        )  # fmt: skip
        self.check_jobs(scheduler.get("/v1/history?limit=100"))
        scheduler.end()


def describe(injection: Injection, build: pathlib.Path, server: Server) -> str:
    """The stack of the call that failed, if the program's place in memory is known."""
    program = pathlib.Path(str(server.command[2]))
    base = 0x555555554000  # where the kernel puts a program without random addresses
    addresses = [hex(address - base) for address in injection.stack() if base <= address < base + (1 << 30)]
    if not addresses:
        return ""
    ran = subprocess.run(
        ["addr2line", "-Cfpe", program, *addresses], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    return ran.stdout


def run_once(campaign: Campaign, scenario_name: str, call: str, at: int, injection: Injection) -> bool:
    """Returns whether the failure was injected."""
    repeat = campaign.command(only=f"{scenario_name}.{call}", at=at if at else injection.fired() or 1)
    with campaign.directory(f"{scenario_name}-{call}-{at}") as work:
        scenario = (DaemonScenario if scenario_name == "daemon" else AllocatorScenario)(campaign, work, call)
        library = campaign.bin / "larder_nth_failure.so"
        failing = {"LD_PRELOAD": str(library), "LARDER_FAIL_FILE": str(injection.path), "LARDER_FAIL_CALL": call}
        server = scenario.server(failing)
        again = scenario.server(failing)
        later = scenario.server({})
        injection.arm(at)
        try:
            server.spawn()
            with contextlib.suppress(Ended):
                scenario.with_failure(server)
            stop(server)
            if not injection.fired():
                again.spawn()
                with contextlib.suppress(Ended):
                    scenario.again_with_failure(again)
                stop(again)
            fired = injection.fired()
            if fired:
                scenario.without_failure(later)
        except Failure as failure:
            repeat = campaign.command(only=f"{scenario_name}.{call}", at=injection.fired())
            where = describe(injection, campaign.build, server)
            campaign.fail(f"{scenario_name}: call {injection.fired()} of {call} failed, and then: {failure}\nat {where}", repeat)
            fired = injection.fired() or 1
        finally:
            server.discard()
            again.discard()
            later.discard()
    campaign.report(rounds=1)
    return fired != 0


def main() -> int:
    campaign = Campaign(
        __doc__,
        only={"help": "SCENARIO.FUNCTION, for example daemon.malloc"},
        at={"type": int, "help": "only this call fails"},
    )
    if campaign.sanitizer:
        campaign.report(skipped="a sanitizer's runtime must be the first library of a program")
        return 0
    keys = [f"{scenario}.{call}" for call in CALLS for scenario in SCENARIOS]
    if campaign.options.only:
        keys = [campaign.options.only]
    if campaign.options.at is not None:
        injection = Injection(campaign.state / "single")
        run_once(campaign, *keys[0].split("."), campaign.options.at, injection)
        return campaign.exit_code()
    progress = Progress(campaign.state / "progress.json")
    draw = random.Random(campaign.seed)
    turn = campaign.seed
    while campaign.left_s() > 0:
        open_keys = [key for key in keys if progress.of(key)["passes"] == 0]
        # When all calls have failed once, others fail at random: by then threads run in another order.
        key = open_keys[turn % len(open_keys)] if open_keys else draw.choice(keys)
        turn += 1
        scenario, call = key.split(".")
        injection = Injection(campaign.state / key)
        state = progress.of(key)
        by_stack = call in BY_STACK
        if state["passes"] == 0:
            at = 0 if by_stack else state["next"]
        else:
            at = draw.randrange(1, max(2, state.get("calls", 100)))
        fired = run_once(campaign, scenario, call, at, injection)
        if state["passes"] == 0:
            state["next"] += 1
            if not fired:
                state["passes"] = 1
                state["calls"] = injection.calls()
                campaign.report(functions_done=1)
        campaign.report(**{key: 1})
        progress.save()
    return campaign.exit_code()


if __name__ == "__main__":
    sys.exit(main())
