#!/usr/bin/python3
"""process_agent.py SOCKET[,SOCKET...] DIRECTORY: an agent of larder-allocator's /v1/engine that runs attempts as processes of this
machine, one for each task. It stands for a cluster manager in tests. All it must remember is in DIRECTORY, so that an
agent that is started there later goes on with the processes of the former one. It ends with its parent.

A test steers it by files in DIRECTORY: `nodes` has a line "NAME KIND [GPUS [TYPE [LABEL=TEXT ...]]]" for each node
(node_back, node_drained, node_lost, which ends what runs there); `hold` with a reason keeps attempts pending; `reject`
with "now REASON" or "good REASON" rejects them; `devices` with a prefix reports the devices of attempts that have
started; `evict` with "JOB.ATTEMPT" ends that attempt for the manager's own reasons; `hold-resize` keeps resizes waiting;
`refuse-resize` with a reason refuses those that change an attempt's nodes; with `rigid` the agent takes none."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

# The shell outlives a SIGTERM to its group, writes down how the command ended, and ends what the command has left.
_WRAPPER = 'trap : TERM; "$@"; code=$?; echo $code >exit.new; mv exit.new exit; kill -9 0'


_PARENT = os.getppid()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("larder", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask(paths: str, method: str, target: str, body: object = None) -> tuple[int, dict]:
    """Asks allocators that stand in for each other, in turn, until one answers other than "try again" or "not me"."""
    for path in itertools.cycle(paths.split(",")):
        connection = _Connection(path)
        try:
            connection.request(method, target, None if body is None else json.dumps(body))
            response = connection.getresponse()
            status, text = response.status, response.read()
            if status not in (421, 503):
                return status, json.loads(text)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        if os.getppid() != _PARENT:  # the test is gone, and its allocator will not come back
            sys.exit(1)
        time.sleep(0.05)


def _start_time(process: int) -> str | None:
    """When the process began, in ticks; None: there is none, or it is a zombie."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def key_of(message: dict) -> tuple[str, int, int]:
    """Names an attempt: a queue that was made anew numbers its jobs from 1 again."""
    return message["queue"], message["job"], message["attempt"]


class Attempt:
    """The processes of one attempt, in a directory of their own, QUEUE/JOB.ATTEMPT: `action` is what to run, with the tasks
    that are in force, and `resize` is the resize under way. A task has a directory, named by its rank and the number of
    the resize that began it, with the files `node` and `pid`; `leaving` is there once its node is given up."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.action = json.loads((directory / "action").read_text())
        self.key = key_of(self.action)
        self.kill_at: float | None = None
        self.leave_at: dict[str, float] = {}  # by directory of a task
        self.last: dict | None = None  # the last event

    def has(self, flag: str) -> bool:
        return (self.directory / flag).exists()

    def mark(self, flag: str) -> None:
        (self.directory / flag).touch()

    def start(self) -> None:
        self.mark("started")
        for task in self.action["tasks"]:
            self.start_task(task, self.action)

    def start_task(self, task: dict, action: dict) -> None:
        where = self.directory / f"{task['rank']}.{action.get('resize', 0)}"
        where.mkdir()
        (where / "node").write_text(task["node"])
        environment = action["environment"] | task["environment"]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, task["gpus"]))
        environment["NODE"] = task["node"]
        arguments = ["env", "-C", self.action["directory"], *self.action["command"]]
        with open(where / "output", "ab") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WRAPPER, "sh", *arguments],
                cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        (where / "pid").write_text(f"{process.pid} {_start_time(process.pid)}")

    def tasks(self) -> dict[str, pathlib.Path]:
        """The directories of the tasks that do not leave, by node."""
        files = self.directory.glob("*/node")
        return {file.read_text(): file.parent for file in files if not (file.parent / "leaving").exists()}

    def processes(self, which: str = "*") -> list[int]:
        found = []
        for file in self.directory.glob(f"{which}/pid"):
            process, began = file.read_text().split()
            if _start_time(int(process)) == began:
                found.append(int(process))
        return found

    def want(self, resize: dict) -> None:
        if resize["resize"] <= self.action.get("resize", 0):
            return
        (self.directory / "resize.new").write_text(json.dumps(resize))
        (self.directory / "resize.new").rename(self.directory / "resize")

    def wanted(self) -> dict | None:
        try:
            return json.loads((self.directory / "resize").read_text())
        except OSError:
            return None

    def resize(self, is_lost: Callable[[str], bool]) -> None:
        """Goes on with the resize under way. A task that leaves has the grace of the attempt, counted from when this
        agent asks it."""
        resize = self.wanted()
        if resize is None or self.has("stopping") or not self.has("started"):
            return
        nodes = {task["node"] for task in resize["tasks"]}
        for node, where in self.tasks().items():
            if node not in nodes:
                (where / "leaving").touch()
        left = True
        for file in self.directory.glob("*/leaving"):
            which = file.parent.name
            if self.processes(which):
                left = False
                if which not in self.leave_at:
                    self.leave_at[which] = time.monotonic() + self.action["grace_s"]
                    self.send(signal.SIGTERM, which)
                elif time.monotonic() >= self.leave_at[which] or is_lost((file.parent / "node").read_text()):
                    self.send(signal.SIGKILL, which)
        running = self.tasks()
        new = [task for task in resize["tasks"] if task["node"] not in running]
        if not left or any(is_lost(task["node"]) for task in new):
            return
        for task in new:
            self.start_task(task, resize)
        self.action |= {key: resize[key] for key in ("tasks", "environment", "resize")}
        (self.directory / "action.new").write_text(json.dumps(self.action))
        (self.directory / "action.new").rename(self.directory / "action")
        (self.directory / "resize").unlink()

    def send(self, what: signal.Signals, which: str = "*") -> None:
        for process in self.processes(which):
            try:
                os.killpg(process, what)
            except ProcessLookupError:
                pass

    def stop(self) -> None:
        if self.kill_at is not None:
            return
        if not self.has("stopping") and self.processes():
            self.mark("was_stopping")
        self.mark("stopping")
        self.kill_at = time.monotonic() + self.action["grace_s"]
        self.send(signal.SIGTERM)

    def end(self) -> dict | None:
        """The event of its end; None: it has not ended."""
        if self.has("lost"):
            return None if self.processes() else {"kind": "lost", "message": "its node is lost"}
        if not self.has("started"):
            return {"kind": "ended", "exit_code": 0, "was_stopping": True} if self.has("stopping") else None
        if self.processes():
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.send(signal.SIGKILL)
            return None
        if self.has("evicted"):
            return {"kind": "evicted", "message": "the nodes are needed for others"}
        tasks = self.tasks().values()
        codes = [(where / "exit").read_text() for where in tasks if (where / "exit").exists()]
        if len(codes) < len(tasks):
            if self.has("was_stopping"):
                return {"kind": "ended", "exit_signal": 9, "was_stopping": True}
            return {"kind": "lost", "message": "its processes are gone"}
        worst = max(map(int, codes))
        how = {"exit_signal": worst - 128} if 128 < worst <= 128 + signal.SIGRTMAX else {"exit_code": worst}
        return {"kind": "ended", "was_stopping": self.has("was_stopping")} | how


class Agent:
    def __init__(self, path: str, directory: pathlib.Path) -> None:
        self.path = path
        self.directory = directory
        self.attempts: dict[tuple[str, int, int], Attempt] = {}
        self.actions: queue.Queue[tuple[str, dict]] = queue.Queue()
        self.session = ""
        self.number = 0
        self.nodes: dict[str, dict] = {}  # the last of each

    def setting(self, name: str) -> str:
        try:
            return (self.directory / name).read_text().strip()
        except OSError:
            return ""

    def node_events(self) -> list[dict]:
        events = []
        for line in self.setting("nodes").splitlines():
            name, kind, *gpus = line.split()
            event: dict = {"kind": kind, "node": name, "message": "so it was decided"}
            if gpus:
                event["gpus"] = int(gpus[0])
                event["gpu_type"] = gpus[1] if len(gpus) > 1 else ""
                event["labels"] = dict(label.split("=", 1) for label in gpus[2:])
            events.append(event)
        return events

    def node_changes(self) -> list[dict]:
        """What has become of nodes since the last look."""
        events = []
        now = {event["node"]: event for event in self.node_events()}
        for name, event in now.items():
            before = self.nodes.get(name)
            if before == event:
                continue
            if before is None and "gpus" in event:
                events.append(event | {"kind": "node_added"})
                before = event | {"kind": "node_back"}
            elif before is not None and before | {"kind": event["kind"]} != event:
                events.append(event | {"kind": "node_resized"})
            if before is None or before["kind"] != event["kind"]:
                events.append({"kind": event["kind"], "node": name, "message": event["message"]})
        events += [{"kind": "node_removed", "node": name} for name in self.nodes if name not in now]
        self.nodes = now
        return events

    def attach(self) -> None:
        events = [self.event_of(attempt) for attempt in self.attempts.values()]
        nodes = self.node_events()
        self.nodes = {event["node"]: event for event in nodes}
        resizes = not (self.directory / "rigid").exists()
        state = {"agent": "processes", "resizes": resizes, "nodes": nodes, "attempts": events}
        status, answer = _ask(self.path, "POST", "/v1/engine/attach", state)
        assert status == 200, answer
        self.session = answer["session"]
        self.number = 0
        for event in events:
            self.forget_if_ended(event)
        threading.Thread(target=self.poll, args=(self.session,), daemon=True).start()

    def poll(self, session: str) -> None:
        after = 0
        while True:
            status, answer = _ask(self.path, "GET", f"/v1/engine/actions?session={session}&after={after}&wait_s=5")
            if status != 200:
                return self.actions.put((session, {"do": "attach"}))
            for action in answer["actions"]:
                self.actions.put((session, action))
                after = action["number"]

    def event_of(self, attempt: Attempt) -> dict:
        event = attempt.end() or ({"kind": "started"} if attempt.has("started") else {"kind": "pending"})
        if event["kind"] == "started" and (resize := attempt.action.get("resize", 0)):
            event["resize"] = resize
        if event["kind"] == "started" and (prefix := self.setting("devices")):
            event["devices"] = [
                {"node": task["node"], "devices": [f"{prefix}{gpu}" for gpu in task["gpus"]]} for task in attempt.action["tasks"]
            ]
        if event["kind"] == "pending":
            event["message"] = self.setting("hold")
            kind, _, reason = self.setting("reject").partition(" ")
            if kind:
                event = {"kind": "rejected", "for_good": kind == "good", "message": reason}
        return dict(zip(("queue", "job", "attempt"), attempt.key, strict=True)) | {"at_unix_s": time.time()} | event

    def forget_if_ended(self, event: dict) -> None:
        """Forgets an attempt whose end the allocator has on record; its output stays."""
        if event["kind"] in ("ended", "lost", "evicted", "rejected"):
            attempt = self.attempts.pop(key_of(event), None)
            if attempt is not None:
                (attempt.directory / "action").rename(attempt.directory / "reported")

    def report(self, events: list[dict]) -> None:
        self.number += 1
        message = {"session": self.session, "number": self.number, "events": events}
        status, answer = _ask(self.path, "POST", "/v1/engine/events", message)
        if status == 409:
            return self.attach()
        assert status == 200, answer
        for event in events:
            if "job" in event:
                self.forget_if_ended(event)

    def carry_out(self, action: dict) -> None:
        if action["do"] == "attach":
            return self.attach()
        key = key_of(action)
        if action["do"] == "stop":
            if key in self.attempts:
                self.attempts[key].stop()
            else:
                event = {"kind": "ended", "exit_code": 0, "was_stopping": True}
                self.report([dict(zip(("queue", "job", "attempt"), key, strict=True)) | event])
            return None
        if action["do"] == "resize":
            if key in self.attempts:
                self.attempts[key].want(action)
            return None
        directory = self.directory / key[0] / f"{key[1]}.{key[2]}"
        directory.parent.mkdir(exist_ok=True)
        if key in self.attempts or directory.exists():
            return None
        # A whole directory or none, so that no restart finds half of it.
        new = self.directory / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        (new / "action").write_text(json.dumps(action))
        new.rename(directory)
        self.attempts[key] = Attempt(directory)
        return None

    def is_lost(self, node: str) -> bool:
        return self.nodes.get(node, {}).get("kind") == "node_lost"

    def look(self) -> list[dict]:
        """What has changed since the last look, as events."""
        evicted = self.setting("evict")
        for attempt in self.attempts.values():
            lost = any(map(self.is_lost, attempt.tasks() or [task["node"] for task in attempt.action["tasks"]]))
            if lost and not attempt.has("lost"):
                attempt.mark("lost")
                attempt.send(signal.SIGKILL)
            if not attempt.has("started") and not attempt.has("stopping") and not lost:
                if not self.setting("hold") and not self.setting("reject"):
                    attempt.start()
            if evicted == attempt.directory.name and not attempt.has("evicted"):
                attempt.mark("evicted")
                attempt.send(signal.SIGKILL)
        events = []
        refusal = self.setting("refuse-resize")
        for attempt in self.attempts.values():
            resize = attempt.wanted()
            if refusal and resize and {task["node"] for task in resize["tasks"]} != set(attempt.tasks()):
                named = dict(zip(("queue", "job", "attempt"), attempt.key, strict=True))
                events.append(named | {"kind": "resize_refused", "resize": resize["resize"], "message": refusal})
                (attempt.directory / "resize").unlink()
            if not (self.directory / "hold-resize").exists():
                attempt.resize(self.is_lost)
            event = self.event_of(attempt)
            resize = event.get("resize", 0)
            if attempt.last is not None and resize > attempt.last.get("resize", 0):
                event["kind"] = "resized"
            seen = {key: value for key, value in event.items() if key != "at_unix_s"}
            if attempt.last != seen:
                attempt.last = seen
                events.append(event)
        return events + self.node_changes()

    def run(self) -> None:
        for file in self.directory.glob("*/*/action"):
            attempt = Attempt(file.parent)
            self.attempts[attempt.key] = attempt
        self.attach()
        while True:
            try:
                session, action = self.actions.get(timeout=0.02)
                if session == self.session:
                    self.carry_out(action)
            except queue.Empty:
                pass
            if events := self.look():
                self.report(events)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no zombies are left
    Agent(sys.argv[1], pathlib.Path(sys.argv[2])).run()
