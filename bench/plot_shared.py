"""Draws the points of `larder bench shared --json` (read from standard input) as an SVG: bytes from the remote for each
epoch of the fastest job, over the number of jobs, in seeded and in shared order.

The background is transparent and all text is grey, so that the picture is readable on light and on dark pages.
"""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from plot_curve import GREY, LARDER, LRU, STYLE


def main(path: str) -> None:
    points = [point for point in json.load(sys.stdin) if point["start"] == "together" and point["speeds"] == "equal"]
    kappas = sorted({point["kappa"] for point in points})
    plt.rcParams.update({**STYLE, "svg.hashsalt": "larder bench shared"})
    figure, axes = plt.subplots(1, len(kappas), figsize=(3 * len(kappas) + 1, 3.6), sharey=True, squeeze=False)
    for axis, kappa in zip(axes[0], kappas, strict=True):
        chosen = [point for point in points if point["kappa"] == kappa]
        jobs = [point["jobs"] for point in chosen]
        one_job = next(point["seeded_remote_bytes"] for point in chosen if point["jobs"] == 1)
        for key, label, color, mark in (
            ("seeded_remote_bytes", "seeded", LRU, "s"),
            ("remote_bytes_per_epoch", "shared", LARDER, "o"),
        ):
            axis.plot(jobs, [point[key] / one_job for point in chosen], f"{mark}-", color=color, label=label)
        axis.axhline(1, linestyle=":", color=GREY)
        axis.set(title=f"c/d = {kappa:g}", xlabel="jobs", ylim=(0, None))
    axes[0][0].set(ylabel="remote bytes an epoch, as one job")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
