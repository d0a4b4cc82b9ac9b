"""The steps of training that an example of loader/python/examples prints."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Step:
    """What one rank printed of one step."""

    name: str  # with the number
    samples: tuple[int, ...]


def steps_in(output: str) -> list[Step]:
    """The steps in the order of their ranks, if there are several."""
    found = re.findall(r"((?:epoch \d+ )?step \d+(?: rank (\d+))?) samples \[([\d, ]*)\]", output)
    return [Step(name, tuple(map(int, samples.split(",")))) for name, _, samples in found]
