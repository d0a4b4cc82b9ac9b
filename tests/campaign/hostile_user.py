"""A user who attacks an allocator's socket, or the files of their own dataset. hostile.py runs this file as that user,
with the machine's own interpreter, so it needs nothing but the standard library.

    hostile_user.py allocator SOCKET VICTIM_UID SECONDS SEED    registers jobs, and tries what only others may do
    hostile_user.py files TREE SECRETS SECONDS SEED KINDS       changes the files below TREE while a daemon reads them,
                                                                in ways that follow from the number KINDS
    hostile_user.py post SOCKET TARGET BODY...                  posts each body; not an attack

Exit code 4, and a line with BREACH: the allocator did what it must not."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time

BREACH = 4
REGISTERED_MAX = 1000  # limits.jobs_per_owner
SUBMITTED = "run-"  # begins the names of submitted jobs, which the scheduler registers
OTHERS_RUN = "victim-runs"  # a submitted job of the victim that runs
OTHERS_JOBS = ("victim", "victim-later", "operators", OTHERS_RUN)
ROUND = "LARDER_CAMPAIGN_ROUND"  # marks the processes of a round's jobs
OTHERS_TENANT = "theirs"  # only the victim may submit for it


class Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("larder", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def ask_text(path: str, method: str, target: str, body: object = None, connection: Connection | None = None) -> tuple[int, bytes]:
    """The status and the text of the answer; 0: there was none."""
    used = connection or Connection(path)
    try:
        used.request(method, target, None if body is None else json.dumps(body))
        answer = used.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        used.close()
        return 0, b""


def ask(path: str, method: str, target: str, body: object = None, connection: Connection | None = None) -> int:
    return ask_text(path, method, target, body, connection)[0]


def remove_tree(path: pathlib.Path) -> None:
    """rmtree of shutil takes a stack frame and a descriptor for each level."""
    subprocess.run(["rm", "-rf", path], stderr=subprocess.DEVNULL, check=False)


class AllocatorAttack:
    def __init__(self, path: str, victim: int, draw: random.Random) -> None:
        self.path = path
        self.victim = victim
        self.draw = draw

    def must_fail(self, method: str, target: str, body: object = None) -> None:
        status = ask(self.path, method, target, body)
        if status == 200:
            print(f"BREACH: {method} {target} {body} was done", flush=True)
            sys.exit(BREACH)

    def name(self) -> str:
        return f"mine-{self.draw.randrange(5000)}"

    def register_many(self) -> None:
        connection = Connection(self.path)
        first = self.draw.randrange(5000)
        for i in range(self.draw.randrange(1, 1500)):
            ask(self.path, "POST", "/v1/jobs", {"name": f"mine-{(first + i) % 5000}"}, connection)
        connection.close()

    def give_floors(self) -> None:
        floor = self.draw.choice([1e9, 1e6, 1.0, 1e-300])
        self.must_fail("POST", "/v1/jobs", {"name": self.name() + "f", "bandwidth_floor_bytes_per_second": floor})

    def give_weights(self) -> None:
        weight = self.draw.choice([1.0000001, 2, 1e6])
        self.must_fail("POST", "/v1/jobs", {"name": self.name() + "w", "weight": weight})

    def take_names(self) -> None:
        job = self.draw.choice(OTHERS_JOBS)
        more = self.draw.choice([{}, {"bandwidth_cap_bytes_per_second": 1.0}, {"weight": 1e-6}, {"user": self.victim}])
        self.must_fail("POST", "/v1/jobs", {"name": job} | more)

    def remove_registrations(self) -> None:
        self.must_fail("DELETE", f"/v1/jobs/{self.draw.choice(OTHERS_JOBS)}")

    def remove_own(self) -> None:
        for _ in range(20):
            ask(self.path, "DELETE", f"/v1/jobs/{self.name()}")

    def job(self, **more: object) -> dict[str, object]:
        # Its child leaves its session, and must end with it.
        command = ["sh", "-c", "setsid sleep 60 & sleep 0.2"]
        work = str(pathlib.Path(self.path).parents[1])
        return {"command": command, "directory": "/", "gpus": 1, "environment": {ROUND: work}} | more

    def submit(self) -> None:
        for _ in range(self.draw.randrange(1, 4)):
            ask(self.path, "POST", "/v1/queue", {"jobs": [self.job(name=SUBMITTED + self.name())]})

    def submit_wrongly(self) -> None:
        more = self.draw.choice([{"priority": 1}, {"weight": 1.1}, {"tenant": OTHERS_TENANT}, {"name": OTHERS_RUN}])
        # All of a submission are refused or none.
        self.must_fail("POST", "/v1/queue", {"jobs": [self.job(name=SUBMITTED + self.name()), self.job() | more]})

    def take_over_job(self) -> None:
        status, text = ask_text(self.path, "GET", f"/v1/queue/{OTHERS_RUN}")
        if status != 200:
            return
        job = json.loads(text)
        name = self.draw.choice([OTHERS_RUN, job["id"]])
        self.must_fail("DELETE", f"/v1/queue/{name}")
        self.must_fail("GET", f"/v1/queue/{name}/output")
        with contextlib.suppress(OSError):
            mode = self.draw.choice([os.O_RDONLY, os.O_WRONLY])
            os.close(os.open(job["output"], mode))
            print(f"BREACH: {job['output']} was opened", flush=True)
            sys.exit(BREACH)

    def act_as_operator(self) -> None:
        self.must_fail("PUT", "/v1/remote", {"bytes_per_second": 1.0})
        self.must_fail("PUT", "/v1/datasets/data/pin", {"bytes": 0})
        self.must_fail("DELETE", "/v1/nodes/node")
        self.must_fail("POST", "/v1/reports", {"node": "node", "instance": 7})
        self.must_fail("GET", "/v1/nodes/node/plan")

    def use_one(self) -> None:
        weapons = [
            self.register_many, self.give_floors, self.give_weights, self.take_names, self.remove_registrations,
            self.remove_own, self.act_as_operator, self.submit, self.submit_wrongly, self.take_over_job,
        ]  # fmt: skip
        self.draw.choice(weapons)()


class FileAttack:
    """`secrets` has a file of the same path and size for each file of the tree, which this user cannot read."""

    def __init__(self, tree: pathlib.Path, secrets: pathlib.Path, draw: random.Random, kinds: random.Random) -> None:
        self.tree = tree
        self.secrets = secrets
        self.draw = draw
        self.files = sorted(path.relative_to(tree) for path in tree.rglob("*.bin") if path.is_file())
        self.kept = tree / ".kept"  # a copy to restore from; names with a dot are not part of a dataset
        if not self.kept.exists():
            for file in self.files:
                (self.kept / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / file, self.kept / file)
        # Few at a time: an index ends at the first link that leads out, and would not come to the rest.
        self.weapons = kinds.sample(
            [
                self.link_file, self.link_folder, self.swap_fast, self.change_sizes, self.change_bytes, self.make_fifos,
                self.make_sockets, self.make_folders, self.make_deep, self.make_bomb, self.remove,
            ],
            kinds.choice([1, 2, 6]),
        )  # fmt: skip
        self.restore()

    def some_file(self) -> pathlib.Path:
        return self.draw.choice(self.files)

    def put(self, make: object, target: pathlib.Path) -> None:
        """Calls make(path) and renames the result to `target`."""
        made = self.tree / f".new-{os.getpid()}"
        remove_tree(made)
        make(made)  # type: ignore[operator]
        if target.is_dir() and not target.is_symlink():
            os.rename(target, self.tree / f".old-{time.monotonic_ns()}")
        os.rename(made, target)

    def restore(self) -> None:
        with contextlib.suppress(OSError, shutil.Error):
            self.restore_all()

    def restore_all(self) -> None:
        for file in self.files:
            folder = self.tree / file.parent
            if folder.is_symlink():
                folder.unlink()
            folder.mkdir(parents=True, exist_ok=True)
            self.put(lambda made, file=file: shutil.copy2(self.kept / file, made), self.tree / file)
        for old in self.tree.glob(".old-*"):
            remove_tree(old)
        for name in ("deep", "bomb"):
            remove_tree(self.tree / name)

    def way_out(self, target: pathlib.Path, below: pathlib.Path) -> str:
        ups = [str(target), os.path.relpath(target, self.tree / below), f"/proc/self/root{target}"]
        return self.draw.choice(ups)

    def link_file(self) -> None:
        file = self.some_file()
        self.put(lambda made: os.symlink(self.way_out(self.secrets / file, file.parent), made), self.tree / file)

    def link_folder(self) -> None:
        folder = self.some_file().parent
        self.put(lambda made: os.symlink(self.way_out(self.secrets / folder, pathlib.Path()), made), self.tree / folder)

    def swap_fast(self) -> None:
        """A file and a link out, many times a second: an open that checks first and opens then follows the link."""
        file = self.some_file()
        for i in range(200):
            self.put(
                (lambda made: shutil.copy2(self.kept / file, made)) if i % 2
                else (lambda made: os.symlink(self.secrets / file, made)),
                self.tree / file,
            )  # fmt: skip

    def change_sizes(self) -> None:
        file = self.tree / self.some_file()
        status = file.stat()
        os.truncate(file, self.draw.choice([0, 1, max(0, status.st_size - 1), status.st_size + 4096, 1 << 40]))
        if self.draw.random() < 0.5:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def change_bytes(self) -> None:
        file = self.tree / self.some_file()
        status = file.stat()
        with open(file, "r+b") as opened:
            opened.write(self.draw.randbytes(min(1000, status.st_size)))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def make_fifos(self) -> None:
        for _ in range(self.draw.choice([1, 40])):
            self.put(os.mkfifo, self.tree / self.some_file())

    def make_sockets(self) -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
            self.put(lambda path: made.bind(str(path)), self.tree / self.some_file())

    def make_folders(self) -> None:
        self.put(os.mkdir, self.tree / self.some_file())

    def make_deep(self) -> None:
        remove_tree(self.tree / "deep")
        at = os.open(self.tree, os.O_RDONLY)
        for _ in range(self.draw.choice([10, 500, 3000])):
            os.mkdir("deep", dir_fd=at)
            below = os.open("deep", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)

    def make_bomb(self) -> None:
        """Folders that each have links to the next one: few inodes, and more paths than memory."""

        def make(bomb: pathlib.Path) -> None:
            for level in range(30):
                (bomb / f"level-{level}").mkdir(parents=True)
                for link in range(8):
                    os.symlink(f"../level-{level + 1}", bomb / f"level-{level}" / f"link-{link}")
            (bomb / "level-30").mkdir()
            (bomb / "level-30" / "a.bin").write_bytes(b"a")

        self.put(make, self.tree / "bomb")

    def remove(self) -> None:
        (self.tree / self.some_file()).unlink(missing_ok=True)

    def use_one(self) -> None:
        # Another attacker changes the same tree.
        with contextlib.suppress(OSError, shutil.Error):
            self.draw.choice([self.restore, *self.weapons])()
        time.sleep(self.draw.uniform(0, 0.1))


def main() -> int:
    mode, path, *rest = sys.argv[1:]
    if mode == "post":
        return 0 if all(ask(path, "POST", rest[0], json.loads(body)) == 200 for body in rest[1:]) else 1
    about, seconds, seed, *kinds = rest
    draw = random.Random(int(seed))
    attack: AllocatorAttack | FileAttack
    if mode == "allocator":
        attack = AllocatorAttack(path, int(about), draw)
    else:
        attack = FileAttack(pathlib.Path(path), pathlib.Path(about), draw, random.Random(int(kinds[0])))
    ends_s = time.monotonic() + float(seconds)
    used = 0
    while time.monotonic() < ends_s:
        attack.use_one()
        used += 1
    print(f"{mode} {used}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
