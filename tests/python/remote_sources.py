"""The data at the tests' remotes: files with awkward names, compared with what is read from them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
from typing import Any

import larder
from http_api import UnixConnection


@dataclasses.dataclass
class Source:
    """Samples by key, in a directory called `name` below the web server's root and in the bucket."""

    name: str
    directory: pathlib.Path
    field: str  # the field of a sample that holds its bytes
    contents: dict[str, bytes]

    def read(self, daemon: Any, dataset: str, **options: Any) -> dict[str, bytes]:
        """Reads one epoch of all samples."""
        with larder.Loader(dataset=dataset, socket=daemon.socket, batch_size=16, **options) as loader:
            return {sample.key: bytes(sample[self.field]) for batch in loader for sample in batch}


def write_list(directory: pathlib.Path) -> None:
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.*") if path.suffix != ".txt")
    (directory / "list.txt").write_text("# what is here\n" + "".join(f"{name}\n" for name in names))


def make_images(root: pathlib.Path, name: str, count: int, bytes_max: int = 40_000) -> Source:
    """One file per sample, in class directories. Some names need escaping."""
    directory = root / name
    draw = random.Random(name)
    keys = [f"{'ant' if i % 3 else 'bee'}/{i:05}.png" for i in range(count)]
    keys += ["ant/a b+c&d=e.png", "bee/ü~(1)'!*,;:@$.png", "bee/50%25.png"]
    contents = {key: draw.randbytes(draw.choice([1, 4096, draw.randrange(1, bytes_max)])) for key in keys}
    for key, data in contents.items():
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(data)
    write_list(directory)
    return Source(name, directory, "png", contents)


def environment(tmp_path: pathlib.Path, **variables: str) -> dict[str, str]:
    """The environment of a daemon: `variables`, and none of this machine's settings for stores and proxies."""
    of_machine = ("AWS_", "HTTP", "GOOGLE_", "GCE_", "CLOUDSDK_", "STORAGE_EMULATOR", "AZURE_")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(of_machine)}
    without_roles = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
    return kept | {"HOME": str(tmp_path)} | without_roles | variables


def traces(daemon: Any, name: str) -> str:
    """Everything visible outside the daemon: its log, its metrics, the output of its commands and its files."""
    with_json = ("--json", "dataset", "info", name)
    commands = [
        daemon.try_command(*words) for words in (("dataset", "info", name), with_json, ("--json", "dataset", "ls"))
    ]
    connection = UnixConnection(daemon.state / "admin.sock")
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read()
    connection.close()
    files = [path.read_bytes() for path in daemon.state.rglob("*") if path.is_file()]
    text = "".join(ran.stdout + ran.stderr for ran in commands) + daemon.log.read_text()
    return text + b"".join([metrics, *files]).decode("latin-1")
