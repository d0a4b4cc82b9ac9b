"""docs/tutorial.md as a newcomer follows it: runs its commands and programs in an empty home on a bucket of this test."""

from __future__ import annotations

import io
import pathlib
import random
import re
import subprocess

import page
import PIL.Image
import pytest
from servers import S3

# A smaller quota, as this test's bucket has less data than the page's, and a shorter interval.
SMALLER = {"15MB": "3MB", "--interval 10": "--interval 1"}
IMAGES = 1000  # of about 6 kB
# Waits until the job in the background reads, as the page's `sleep 5` does, or has ended.
READING = "while kill -0 $! && ! larder top --count 1 --interval 0.2 | grep -q '^train .* %$'; do sleep 0.1; done"
# Commands that check what the page says about the next start of the daemon.
NEXT_START = [page.Command(0, text) for text in ("larder up -d", "larder dataset ls", "larder down")]


def image(seed: int) -> bytes:
    made = io.BytesIO()
    PIL.Image.frombytes("RGB", (80, 80), random.Random(seed).randbytes(80 * 80 * 3)).save(made, "JPEG", quality=90)
    return made.getvalue()


def programs(repository: pathlib.Path) -> dict[str, str]:
    """The Python programs of the page by the names that it gives them, from top to bottom."""
    text = (repository / "docs" / "tutorial.md").read_text()
    names = list(dict.fromkeys(re.findall(r"`(\w+\.py)`", text)))
    return dict(zip(names, re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL), strict=True))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def walk(repository: pathlib.Path, larder_bin: pathlib.Path, own_s3: S3, home: pathlib.Path) -> dict[page.Command, page.Ran]:
    own_s3.client.create_bucket("training")
    for i in range(IMAGES):
        own_s3.client.put("training", f"birds/v2/{('gull', 'heron', 'owl', 'wren')[i % 4]}/{i:04}.jpg", image(i))
    for name, text in programs(repository).items():
        (home / name).write_text(text)
    steps = page.commands(repository / "docs" / "tutorial.md")
    bucket = {"https://s3.example.org": own_s3.endpoint, "YOUR_KEY_ID": own_s3.key_id, "YOUR_SECRET": own_s3.secret}
    for written, changed in {**SMALLER, **bucket}.items():
        assert any(written in step.text for step in steps), written
        steps = [page.Command(step.line, step.text.replace(written, changed), step.shown) for step in steps]
    steps = [page.Command(step.line, READING) if step.text == "sleep 5" else step for step in steps]
    try:
        return page.run([*steps, *NEXT_START], home, larder_bin)
    finally:
        # Only an interrupted walk leaves a daemon.
        subprocess.run([larder_bin / "larder", "down", "--state", home / ".local" / "share" / "larder"], capture_output=True)


def output(walk: dict[page.Command, page.Ran], command: str) -> str:
    (found,) = [ran.output for step, ran in walk.items() if step.text == command]
    return found


def test_every_command_works(walk: dict[page.Command, page.Ran]) -> None:
    assert len(walk) >= 19
    for step, ran in walk.items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"


def test_output_has_the_shape_that_the_page_shows(walk: dict[page.Command, page.Ran]) -> None:
    shown = {step: ran for step, ran in walk.items() if step.shown}
    assert len(shown) == 4
    for step, ran in shown.items():
        assert page.shapes("\n".join(step.shown)) == page.shapes(ran.output), f"line {step.line}: {step.text}\n{ran.output}"


def test_half_of_each_later_epoch_is_cached(walk: dict[page.Command, page.Ran]) -> None:
    hits = [float(line.split()[-1]) for line in output(walk, "python3 train.py 3").splitlines()]
    assert hits[0] == 0 and hits[1:] == pytest.approx([0.5, 0.5], abs=0.1)


def test_hit_ratios_of_the_curve_are_the_cached_parts(walk: dict[page.Command, page.Ran]) -> None:
    rows = [[float(cell) for cell in line.split()] for line in output(walk, "python3 curve.py").splitlines()[1:]]
    cached = [row[0] for row in rows]
    assert cached == sorted(set(cached)) and cached[0] == 0 and cached[-1] == 1
    assert [row[1] for row in rows] == pytest.approx(cached, abs=0.02)
    assert all(rows[i][2] == rows[i][3] for i in (0, -1)), "the first and the last row are the measured b and f*"


def test_dataset_outlives_the_daemon(walk: dict[page.Command, page.Ran]) -> None:
    (listed,) = [ran.output for step, ran in walk.items() if step.line == 0 and step.text == "larder dataset ls"]
    assert re.search(r"^birds +raw +sample +1,000 ", listed, re.MULTILINE)
