"""Draws what was simulated (JSON on standard input) as SVGs. `larder simulate --plot DIRECTORY` draws three files
there: jct.svg (the distribution of completion times), utilisation.svg (GPUs over time) and datasets.svg (cache and
remote bandwidth of each dataset). `larder simulate compare --plot FILE` draws its table in one file."""

import json
import pathlib
import sys

try:
    import matplotlib
except ImportError as error:
    sys.exit(f"larder: a plot needs matplotlib ({error}): apt-get install python3-matplotlib")

matplotlib.use("svg")
import matplotlib.pyplot as plt

HOUR_S = 3600


def scale_of(most: float, units: list[str]) -> tuple[float, str]:
    """The largest unit that `most` reaches, and its size. Each unit is a thousand of the one before."""
    step = 0
    while step + 1 < len(units) and most >= 1000 ** (step + 1):
        step += 1
    return 1000.0**step, units[step]


BYTES = ["B", "kB", "MB", "GB", "TB", "PB"]
BYTES_PER_SECOND = [f"{unit}/s" for unit in BYTES]


def finish(figure: plt.Figure, title: str, path: pathlib.Path) -> None:
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def draw_jct(title: str, jct_s: list[float], path: pathlib.Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4))
    ordered = sorted(max(value, 1) / HOUR_S for value in jct_s)
    axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post")
    axes.set(xscale="log", xlabel="job completion time (hours)", ylabel="part of jobs", ylim=(0, 1))
    axes.grid(alpha=0.3)
    finish(figure, title, path)


def draw_utilisation(title: str, samples: list[dict], gpus: int, path: pathlib.Path) -> None:
    hours = [sample["at_s"] / HOUR_S for sample in samples]
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.step(hours, [sample["gpus_allocated"] for sample in samples], where="post", label="allocated")
    axes.step(hours, [sample["gpus_useful"] for sample in samples], where="post", label="useful: not waiting for data")
    axes.axhline(gpus, color="grey", linewidth=0.8, label="all")
    axes.set(xlabel="hours", ylabel="GPUs", ylim=(0, None))
    axes.legend()
    finish(figure, title, path)


def draw_datasets(title: str, samples: list[dict], datasets: list[str], path: pathlib.Path) -> None:
    hours = [sample["at_s"] / HOUR_S for sample in samples]
    figure, panels = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    for axes, what, key, units in (
        (panels[0], "cached", "cached_bytes", BYTES),
        (panels[1], "remote", "dataset_bytes_per_second", BYTES_PER_SECOND),
    ):
        most = max((sum(sample[key]) for sample in samples), default=0)
        scale, unit = scale_of(most, units)
        if datasets and samples:
            axes.stackplot(hours, *([s[key][d] / scale for s in samples] for d in range(len(datasets))), labels=datasets)
        axes.set(ylabel=f"{what} ({unit})", ylim=(0, None if most > 0 else 1))
    if datasets and samples:
        panels[0].legend(fontsize="small")
    panels[1].set(xlabel="hours")
    finish(figure, title, path)


def cluster_of(row: dict) -> str:
    cache, cache_unit = scale_of(row["cache_bytes"], BYTES)
    rate, rate_unit = scale_of(row["remote_bytes_per_second"], BYTES_PER_SECOND)
    text = f"{row['cache_bytes'] / cache:g} {cache_unit} of cache,\n{row['remote_bytes_per_second'] / rate:g} {rate_unit}"
    return text if row["arrivals_faster"] == 1 else f"{text},\narrivals × {row['arrivals_faster']:g}"


def draw_comparison(title: str, rows: list[dict], path: pathlib.Path) -> None:
    clusters = list(dict.fromkeys(cluster_of(row) for row in rows))
    choices = list(dict.fromkeys((row["policy"], row["cache_system"]) for row in rows))
    policies = {row["policy"] for row in rows}
    width = 0.8 / len(choices)
    figure, panels = plt.subplots(2, 1, figsize=(max(7, 2.5 * len(clusters) + 3), 7), sharex=True)
    for place, (policy, cache) in enumerate(choices):
        rows_of_choice = [row for row in rows if (row["policy"], row["cache_system"]) == (policy, cache)]
        at = [clusters.index(cluster_of(row)) + (place + 0.5) * width - 0.4 for row in rows_of_choice]
        label = cache if len(policies) == 1 else f"{policy}, {cache}"
        panels[0].bar(at, [row["jct_s"]["mean"] / HOUR_S for row in rows_of_choice], width, label=label)
        panels[1].bar(at, [100 * row["gpu_utilisation"] for row in rows_of_choice], width)
    panels[0].set(ylabel="mean job completion time (hours)")
    panels[0].legend(fontsize="small")
    panels[1].set(ylabel="GPU utilisation (%)", ylim=(0, 100), xticks=range(len(clusters)))
    panels[1].set_xticklabels(clusters)
    full_title = f"policy {policies.pop()}, {title}" if len(policies) == 1 else title
    finish(figure, full_title, path)


def main(path: str) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "larder"  # the same input gives the same file
    drawn = json.load(sys.stdin)
    title = drawn["title"]
    folder = pathlib.Path(path)
    if "comparison" in drawn:
        draw_comparison(title, drawn["comparison"], pathlib.Path(path))
        return
    if drawn["jct_s"]:
        draw_jct(title, drawn["jct_s"], folder / "jct.svg")
    draw_utilisation(title, drawn["samples"], drawn["gpus"], folder / "utilisation.svg")
    draw_datasets(title, drawn["samples"], drawn["datasets"], folder / "datasets.svg")


if __name__ == "__main__":
    main(sys.argv[1])
