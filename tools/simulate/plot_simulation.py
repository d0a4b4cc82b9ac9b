"""Draws what `larder simulate --plot DIRECTORY` found (JSON on standard input) as SVGs in that directory: jct.svg, the
distribution of completion times; utilisation.svg, GPUs over time; datasets.svg, cache and remote bandwidth of each."""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HOUR_S = 3600


def draw_jct(jct_s: list[float], path: pathlib.Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4))
    ordered = sorted(max(value, 1) / HOUR_S for value in jct_s)
    axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post")
    axes.set(xscale="log", xlabel="job completion time (hours)", ylabel="part of jobs", ylim=(0, 1))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def draw_utilisation(samples: list[dict], gpus: int, path: pathlib.Path) -> None:
    hours = [sample["at_s"] / HOUR_S for sample in samples]
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.step(hours, [sample["gpus_allocated"] for sample in samples], where="post", label="allocated")
    axes.step(hours, [sample["gpus_useful"] for sample in samples], where="post", label="useful: not waiting for data")
    axes.axhline(gpus, color="grey", linewidth=0.8, label="all")
    axes.set(xlabel="hours", ylabel="GPUs", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def draw_datasets(samples: list[dict], datasets: list[str], path: pathlib.Path) -> None:
    hours = [sample["at_s"] / HOUR_S for sample in samples]
    figure, (cache, remote) = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    if datasets and samples:
        cache.stackplot(hours, *([s["cached_bytes"][d] / 1e9 for s in samples] for d in range(len(datasets))), labels=datasets)
        remote.stackplot(
            hours, *([s["dataset_bytes_per_second"][d] / 1e6 for s in samples] for d in range(len(datasets))), labels=datasets
        )
        cache.legend(fontsize="small")
    cache.set(ylabel="cached (GB)")
    remote.set(ylabel="remote (MB/s)", xlabel="hours")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main(directory: str) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "larder"  # the same input gives the same file
    drawn = json.load(sys.stdin)
    folder = pathlib.Path(directory)
    if drawn["jct_s"]:
        draw_jct(drawn["jct_s"], folder / "jct.svg")
    draw_utilisation(drawn["samples"], drawn["gpus"], folder / "utilisation.svg")
    draw_datasets(drawn["samples"], drawn["datasets"], folder / "datasets.svg")


if __name__ == "__main__":
    main(sys.argv[1])
