"""Checks what `larder COMMAND --json` prints against docs/cli-answers.yaml."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import yaml

DOCUMENT = yaml.safe_load(
    (pathlib.Path(__file__).resolve().parents[2] / "docs" / "cli-answers.yaml").read_text(encoding="utf-8")
)


def checked(command: str, printed: str) -> dict:
    """The answer of a command, which fits its schema."""
    answer = json.loads(printed)
    resolver = jsonschema.RefResolver("", DOCUMENT)
    jsonschema.Draft202012Validator(DOCUMENT["commands"][command], resolver=resolver).validate(answer)
    return answer
