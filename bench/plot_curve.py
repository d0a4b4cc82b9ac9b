"""Draws the points of `larder bench curve --json` (read from standard input) as an SVG: measured throughput of uniform
caching and of LRU over cache size, with the model's lines.

The background is transparent and all text is grey, so that the picture is readable on light and on dark pages.
"""

import json
import math
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

GREY = "#808080"
LARDER = "#2f8fd8"
LRU = "#e8743b"
STYLE = {
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "lines.linewidth": 1.8,
    "savefig.transparent": True,
    "svg.hashsalt": "larder bench curve",  # the same points give the same file
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def main(path: str) -> None:
    points = json.load(sys.stdin)
    kappa = [point["kappa"] for point in points]

    def mb(key: str) -> list[float]:
        return [point[key] / 1e6 for point in points]

    # The model's lines have more points than were measured, because their kink lies between two measured points.
    remote, ideal = mb("predicted")[kappa.index(0)], max(mb("predicted"))
    shares = [step / 200 for step in range(201)]
    lru_hits = [k + (1 - k) * math.log(1 - k) if k < 1 else 1 for k in shares]

    def model(hit_ratios: list[float]) -> list[float]:
        return [min(ideal, remote / (1 - h)) if h < 1 else ideal for h in hit_ratios]

    plt.rcParams.update(STYLE)
    figure, (throughput, hits) = plt.subplots(1, 2, figsize=(10, 4))
    throughput.plot(shares, model(shares), "-", color=LARDER, label="model: min(f*, b/(1-h)), h = c/d")
    throughput.plot(kappa, mb("measured"), "o", color=LARDER, label="Larder, measured")
    throughput.plot(shares, model(lru_hits), "--", color=LRU, label="model with LRU's h")
    throughput.plot(kappa, mb("lru_measured"), "s", color=LRU, label="LRU, measured")
    throughput.set(xlabel="cache size / dataset size", ylabel="throughput (MB/s)", ylim=(0, None))
    throughput.legend()
    hits.plot(shares, shares, "-", color=LARDER, label="c/d")
    hits.plot(kappa, [point["hit_ratio"] for point in points], "o", color=LARDER, label="Larder, measured")
    hits.plot(shares, lru_hits, "--", color=LRU, label="k + (1-k) ln(1-k), k = c/d")
    hits.plot(kappa, [point["lru_hit_ratio"] for point in points], "s", color=LRU, label="LRU, measured")
    hits.set(xlabel="cache size / dataset size", ylabel="hit ratio")
    hits.legend()
    figure.suptitle("Throughput and hit ratio over cache size, one job: uniform caching and LRU")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
