"""Draws the results of `larder bench joint --json` (read from standard input) as an SVG: for each policy, each job's
measured rate over its equal share's, beside what the model predicted, and the remote bytes taken."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main(path: str) -> None:
    policies = json.load(sys.stdin)
    figure, (rates, remote) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 1))
    names = [job["name"] for job in policies[0]["jobs"]]
    width = 0.8 / len(policies)
    for i, policy in enumerate(policies):
        at = [j + i * width for j in range(len(names))]
        rates.bar(at, [job["measured"] / job["equal_share"] for job in policy["jobs"]], width, label=policy["policy"])
        predicted = [
            (x, job["predicted"] / job["equal_share"]) for x, job in zip(at, policy["jobs"]) if job["predicted"]
        ]
        if predicted:
            rates.plot([x for x, _ in predicted], [ratio for _, ratio in predicted], "k_", markersize=8)
    rates.set(ylabel="rate / equal share's rate", xticks=[j + 0.4 - width / 2 for j in range(len(names))])
    rates.set_xticklabels(names, rotation=20)
    rates.legend(title="bars: measured, lines: predicted")
    remote.bar([policy["policy"] for policy in policies], [policy["remote_per_byte"] for policy in policies])
    remote.set(ylabel="remote bytes per byte read")
    remote.tick_params(axis="x", rotation=20)
    figure.suptitle(f"{len(names)} jobs under {', '.join(policy['policy'] for policy in policies)}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
