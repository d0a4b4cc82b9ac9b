"""docs/compared.md as a reader checks it: every command runs, the figures of the text agree with the outputs
and the benchmarks, and every source that the text cites is listed."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import page
import pytest

# Short runs and less data than on the page, so that the test takes a minute.
SMALLER = {
    "larder bench hits": "larder bench hits --quick",
    "larder bench python": "larder bench python --quick --data IMAGES",
    "larder bench layout": "larder bench layout --quick",
    "larder bench curve": "larder bench curve --quick",
    "larder bench joint": "larder bench joint --quick",
    "larder bench peers": "larder bench peers --quick",
    "python3 bench/readers.py": "python READERS --samples 256 --sample-bytes 65536 --rounds 1",
    "python3 bench/readers.py --copy --rounds 5": "python READERS --samples 256 --sample-bytes 65536 --copy --rounds 1",
}
PACKAGES = {"WebDataset": "webdataset", "MosaicML Streaming": "streaming", "LitData": "litdata"}


@pytest.fixture(scope="module")
def text(repository: pathlib.Path) -> str:
    return (repository / "docs" / "compared.md").read_text()


@pytest.fixture(scope="module")
def walk(
    repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[page.Command, page.Ran]:
    images = tmp_path_factory.mktemp("images")
    for i in range(60):
        (images / f"{i}.png").write_bytes(b"%d" % i * 4000)
    steps = page.commands(repository / "docs" / "compared.md")
    assert {step.text for step in steps} == set(SMALLER)
    paths = {"IMAGES": str(images), "READERS": str(repository / "bench" / "readers.py")}
    changed = []
    for step in steps:
        command = re.sub("|".join(paths), lambda found: paths[found[0]], SMALLER[step.text])
        changed.append(page.Command(step.line, command, step.shown))
    return page.run(changed, tmp_path_factory.mktemp("walk"), larder_bin)


def test_every_block_is_commands(repository: pathlib.Path, text: str) -> None:
    path = repository / "docs" / "compared.md"
    commands = {step.line for step in page.commands(path)}
    for first, _ in page.blocks(path):
        assert first in commands, f"line {first}"
    assert "```" not in text


def test_every_command_runs(walk: dict[page.Command, page.Ran]) -> None:
    for step, ran in walk.items():
        assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"


def test_tables_name_the_commands_that_run(text: str) -> None:
    named = set(re.findall(r"`(larder bench \w+)`", text))
    assert named == {command for command in SMALLER if command.startswith("larder ")}


def readers(walk: dict[page.Command, page.Ran]) -> list[tuple[page.Command, page.Ran]]:
    """The two runs of bench/readers.py: without and with copies."""
    found = [(step, ran) for step, ran in walk.items() if "readers.py" in step.text]
    assert len(found) == 2
    return found


def test_readers_print_the_rows_that_the_page_shows(walk: dict[page.Command, page.Ran]) -> None:
    """Libraries that are not installed are left out, with a note. All other rows are printed, in the page's order."""
    missing = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is None]
    for step, ran in readers(walk):
        notes = [line for line in ran.output.splitlines() if line.endswith(" is not installed")]
        assert sorted(notes) == sorted(f"{name} is not installed" for name in missing)
        expected = [line for line in step.shown if line.strip() and not line.startswith(tuple(missing))]
        printed = [line for line in ran.output.splitlines() if line not in notes and "max_cache_size" not in line]
        assert page.shapes("\n".join(expected)) == page.shapes("\n".join(printed))


def test_larder_fetches_half_of_the_dataset_with_a_cache_of_half(walk: dict[page.Command, page.Ran]) -> None:
    for step, ran in readers(walk):
        for output in (ran.output, "\n".join(step.shown)):
            fetched = re.search(r"^Larder +(0\.\d+)$", output, re.MULTILINE)
            assert fetched and float(fetched[1]) == pytest.approx(0.52, abs=0.04)


def test_text_repeats_the_figures_of_the_output(walk: dict[page.Command, page.Ran], text: str) -> None:
    plain, copies = (
        dict(re.findall(r"^(\S+(?: \S+)*) {2,}.*?([\d.]+)$", "\n".join(step.shown[:5]), re.MULTILINE))
        for step, _ in readers(walk)
    )
    assert f"without copies it takes {plain['mmap']} of Larder's CPU time, with copies {copies['mmap']}" in text
    assert float(copies["LitData"]) == pytest.approx(6, abs=0.5) and "a sixth of LitData's" in text
    for step, _ in readers(walk):
        fetched = dict(line.rsplit(None, 1) for line in step.shown[6:9])
        assert f"Larder fetches {fetched['Larder']}" in text
        assert 0.84 <= float(fetched["MosaicML Streaming"]) <= 1.03
        assert fetched["LitData"] == "1.00"


def test_figures_of_the_table_are_those_of_the_benchmarks(repository: pathlib.Path, text: str) -> None:
    figures = (repository / "README.md").read_text() + (repository / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\| `larder bench \w+` \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for cells in rows:
        for number in re.findall(r"\d[\d,.]*", " ".join(cells)):
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", figures), f"{number} of {cells}"


def test_sources_are_those_that_the_text_names(text: str) -> None:
    body, sources = text.split("## Sources\n")
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", sources, re.MULTILINE)]
    assert listed == list(range(1, len(listed) + 1))
    assert {int(number) for number in re.findall(r"\[(\d+)\]", body)} == set(listed)
    for source in re.split(r"^\d+\. ", sources, flags=re.MULTILINE)[1:]:
        assert re.search(r"<https://\S+>", source), source
