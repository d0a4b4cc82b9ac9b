"""Draws the points of `larder bench curve --json` (read from standard input) as an SVG: measured throughput of uniform
caching and of LRU over cache size, with the model's lines."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main(path: str) -> None:
    points = json.load(sys.stdin)
    kappa = [point["kappa"] for point in points]

    def mb(key: str) -> list[float]:
        return [point[key] / 1e6 for point in points]

    figure, (throughput, hits) = plt.subplots(1, 2, figsize=(10, 4))
    throughput.plot(kappa, mb("predicted"), "-", color="C0", label="model: min(f*, b/(1-h)), h = c/d")
    throughput.plot(kappa, mb("measured"), "o", color="C0", label="Larder, measured")
    throughput.plot(kappa, mb("lru_predicted"), "--", color="C1", label="model with LRU's h")
    throughput.plot(kappa, mb("lru_measured"), "s", color="C1", label="LRU, measured")
    throughput.set(xlabel="cache size / dataset size", ylabel="throughput (MB/s)", ylim=(0, None))
    throughput.legend()
    hits.plot(kappa, kappa, "-", color="C0", label="c/d")
    hits.plot(kappa, [point["hit_ratio"] for point in points], "o", color="C0", label="Larder")
    hits.plot(kappa, [point["lru_hit_ratio_predicted"] for point in points], "--", color="C1", label="k + (1-k) ln(1-k)")
    hits.plot(kappa, [point["lru_hit_ratio"] for point in points], "s", color="C1", label="LRU")
    hits.set(xlabel="cache size / dataset size", ylabel="hit ratio")
    hits.legend()
    figure.suptitle("Throughput and hit ratio over cache size, one job: uniform caching and LRU")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
