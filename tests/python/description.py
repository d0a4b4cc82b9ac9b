"""Checks answers against docs/openapi/allocator.yaml."""

from __future__ import annotations

import pathlib
import re

import jsonschema
import yaml
from allocator_process import Answer

METHODS = ("get", "post", "put", "delete", "patch")


class Description:
    def __init__(self, path: pathlib.Path) -> None:
        self.document = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._resolver = jsonschema.RefResolver("", self.document)
        self.seen: set[tuple[str, str, str]] = set()  # method, path, status

    def operations(self) -> dict[tuple[str, str], dict]:
        return {
            (method.upper(), path): item[method]
            for path, item in self.document["paths"].items()
            for method in METHODS
            if method in item
        }

    def resolved(self, part: dict) -> dict:
        return self._resolver.resolve(part["$ref"])[1] if "$ref" in part else part

    def validate(self, value: object, schema: dict) -> None:
        jsonschema.Draft202012Validator(schema, resolver=self._resolver).validate(value)

    def path_of(self, target: str) -> str:
        """The path in the description that a request's target matches."""
        target = target.split("?")[0]
        fits = [
            path for path in self.document["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), target)
        ]  # fmt: skip
        assert len(fits) == 1, f"{target}: {fits}"
        return fits[0]

    def check_answer(self, method: str, target: str, answer: Answer) -> None:
        path = self.path_of(target)
        responses = self.operations()[method, path]["responses"]
        status = str(answer.status)
        assert status in responses, f"{method} {path}: {status} is not described: {answer.body!r}"
        content = self.resolved(responses[status])["content"]
        assert answer.content_type in content, f"{method} {path}: {answer.content_type}"
        value = answer.json() if answer.content_type == "application/json" else answer.body.decode()
        self.validate(value, content[answer.content_type]["schema"])
        self.seen.add((method, path, status))

    def fits_request(self, method: str, target: str, body: object) -> bool:
        schema = self.operations()[method, self.path_of(target)]["requestBody"]["content"]["application/json"]["schema"]
        try:
            self.validate(body, schema)
        except jsonschema.ValidationError:
            return False
        return True
