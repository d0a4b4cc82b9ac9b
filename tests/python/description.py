"""Checks the answers of a daemon against its OpenAPI file in docs/openapi."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable

import jsonschema
import yaml
from http_api import Answer

METHODS = ("get", "post", "put", "delete", "patch")


def schemas_in(part: object) -> list[dict]:
    if isinstance(part, list):
        return [schema for item in part for schema in schemas_in(item)]
    if not isinstance(part, dict):
        return []
    own = [part["schema"]] if isinstance(part.get("schema"), dict) else []
    return own + [schema for item in part.values() for schema in schemas_in(item)]


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
        matching = [
            path for path in self.document["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), target)
        ]  # fmt: skip
        assert len(matching) == 1, f"{target}: {matching}"
        return matching[0]

    def check_answer(self, method: str, target: str, answer: Answer) -> None:
        path = self.path_of(target)
        responses = self.operations()[method, path]["responses"]
        status = str(answer.status)
        assert status in responses, f"{method} {path}: {status} is not described: {answer.body!r}"
        content = self.resolved(responses[status]).get("content")
        if content is None:
            assert answer.body == b"", f"{method} {path}: {status} has no body: {answer.body!r}"
        else:
            assert answer.content_type in content, f"{method} {path}: {answer.content_type}"
            # The schema says nothing about the bytes of a binary body.
            if answer.content_type != "application/octet-stream":
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

    def check_document(self) -> None:
        """Checks the file itself: its schemas, its operations' names, and that every schema is used."""
        assert self.document["openapi"].startswith("3.1.")
        components = self.document["components"]
        named = list(components["schemas"].values())
        for schema in named + schemas_in(self.document["paths"]) + schemas_in(components["responses"]):
            jsonschema.Draft202012Validator.check_schema(schema)
        ids = [operation["operationId"] for operation in self.operations().values()]
        assert len(ids) == len(set(ids))
        for (method, path), operation in self.operations().items():
            assert operation["summary"], (method, path)
            named_in_path = re.findall(r"\{(\w+)\}", path)
            parameters = self.document["paths"][path].get("parameters", [])
            given = [self.resolved(parameter)["name"] for parameter in parameters]
            assert named_in_path == given, path
        used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(self.document)))
        assert used == set(components["schemas"]), "every schema is used, and every schema that is used exists"

    def check_routes(self, ask: Callable[..., Answer]) -> None:
        """Compares the operations with the routes that GET /v1 lists, and tries every other method on every path."""
        listed = ask("GET", "/v1").json()["routes"]
        served = {(route["method"], route["path"]) for route in listed}
        assert len(served) == len(listed)
        assert served == set(self.operations())
        for path in self.document["paths"]:
            allowed = {method for method, served_path in served if served_path == path}
            for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - allowed:
                answer = ask(method, re.sub(r"\{\w+\}", "x", path))
                assert answer.status == 405, (method, path)
                assert set(answer.headers["Allow"].split(", ")) == allowed
                self.validate(answer.json(), {"$ref": "#/components/schemas/Error"})

    def check_all_seen(self) -> None:
        """Fails unless check_answer has seen every described answer, apart from default answers."""
        described = {
            (method, path, status)
            for (method, path), operation in self.operations().items()
            for status in operation["responses"]
            if status != "default"
        }
        assert self.seen == described, "every described answer was given"
