"""The package without a daemon: its imports, names, documentation and argument errors."""

import ast
import importlib.metadata
import json
import pathlib
import pickle
import socket
import subprocess
import sys

import larder
import larder.errors
import larder.state
import pytest
from larder import Statistics


def test_import_loads_neither_torch_nor_numpy() -> None:
    program = "import larder, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "False"]


def test_package_is_typed_and_public_names_are_documented() -> None:
    folder = pathlib.Path(larder.__file__).parent
    assert (folder / "py.typed").exists()
    for name in larder.__all__:
        assert getattr(larder, name).__doc__, name


@pytest.mark.parametrize("kind", [larder.Batch, larder.Sample])
def test_stub_lists_every_method(kind: type) -> None:
    stub = ast.parse((pathlib.Path(larder.__file__).parent / "_larder.pyi").read_text())
    (body,) = [node.body for node in stub.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    named = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert {name for name in named if not name.startswith("_")} == public
    for name in public:
        assert getattr(kind, name).__doc__, name


@pytest.mark.parametrize("kind", [larder.Batch, larder.Sample])
def test_loader_objects_cannot_be_constructed(kind: type) -> None:
    with pytest.raises(TypeError):
        kind()


def test_every_error_class_is_a_larder_error() -> None:
    for code, kind in larder.errors.BY_CODE.items():
        assert issubclass(kind, larder.Error) and kind.code == code
        copied = pickle.loads(pickle.dumps(kind("what went wrong")))
        assert type(copied) is kind and str(copied) == "what went wrong"
    assert issubclass(larder.InvalidArgument, ValueError)
    assert issubclass(larder.Timeout, TimeoutError)


def test_missing_daemon_is_unavailable_and_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = str(tmp_path / "none.sock")
    with pytest.raises(larder.Unavailable, match="larder up") as raised:
        larder.Loader("pets", socket=named, reconnect_timeout_s=0)
    assert named in str(raised.value)
    monkeypatch.setenv("LARDER_SOCKET", named)
    with pytest.raises(larder.Unavailable, match="none.sock"):
        larder.Dataset("pets", reconnect_timeout_s=0)


def test_loader_on_admin_socket_is_refused(tmp_path: pathlib.Path) -> None:
    admin = str(tmp_path / "admin.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(admin)
        listening.listen()
        with pytest.raises(larder.InvalidArgument, match="admin.sock is not the socket for training jobs.*larderd.sock"):
            larder.Loader("pets", socket=admin)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be from 1"),
        ({"batch_size": "8"}, "batch_size is '8'; it must be a whole number"),
        ({"batch_size": 2**32}, "batch_size"),
        ({"seed": -1}, "seed is -1"),
        ({"shuffle_window_blocks": 0}, "shuffle_window_blocks"),
        ({"world_size": 0}, "world_size"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not below world_size 2"),
        ({"worker": 1}, "worker 1 is not below worker_count 1"),
        ({"deal": "random"}, "deal is 'random'; it must be one of automatic, interleaved, contiguous"),
        ({"memory_budget": "lots"}, "memory_budget: "),
        ({"memory_budget": 0}, "memory_budget is 0"),
        ({"memory_budget": "900TiB"}, "a memory budget of 900.00 TiB is more than there is: "),
        ({"reconnect_timeout_s": -1}, "reconnect_timeout_s is -1"),
        ({"first_epoch": -1}, "first_epoch"),
        ({"job": ""}, "job is ''"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(larder.InvalidArgument) as raised:
        larder.Loader("pets", socket="/nowhere", **arguments)
    assert says in str(raised.value)


def test_statistics_add_and_subtract() -> None:
    assert Statistics().hit_ratio == 0
    first = Statistics(samples=4, memory_blocks=1, disk_blocks=1, remote_blocks=2, stall_s=0.5)
    second = Statistics(samples=10, memory_blocks=4, disk_blocks=4, remote_blocks=2, stall_s=0.75)
    assert first.hit_ratio == 0.5
    assert (second - first).hit_ratio == 1
    assert (second - first).stall_s == 0.25
    assert (second - first) + first == second


def test_state_is_plain_data() -> None:
    state = larder.state.to_dict("pets", b"\x00\xff any bytes")
    assert larder.state.to_bytes(json.loads(json.dumps(state))) == b"\x00\xff any bytes"
    for wrong in ({}, {"state": 5}, {"state": "ä"}, {"state": "abc"}, None):
        with pytest.raises(larder.InvalidArgument, match="state_dict"):
            larder.state.to_bytes(wrong)


def test_version_is_that_of_the_installed_package() -> None:
    assert larder.__version__ == importlib.metadata.version("larder")
