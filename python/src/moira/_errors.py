"""What can go wrong between a program and the service."""

from __future__ import annotations

from typing import Any, Mapping, Optional

__all__ = ["MoiraError", "Problem", "ServiceUnavailable"]


class MoiraError(Exception):
    """What the client raises of its own accord."""


class Problem(MoiraError):
    """The service said no: the problem details of RFC 9457.

    ``field`` names what is to be changed, as a path like ``resources.gpus``; ``errors`` lists everything that is wrong
    where there is more than one thing.
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self._document = document
        self.kind: str = document.get("type", "about:blank")
        self.title: str = document.get("title", "The request failed")
        self.detail: str = document.get("detail", "")
        self.field: Optional[str] = document.get("field")
        self.suggestion: Optional[str] = document.get("suggestion")
        self.errors: list[Mapping[str, Any]] = list(document.get("errors", []))
        super().__init__(self.detail or self.title)

    def __reduce__(self) -> tuple[Any, ...]:
        return Problem, (self.status, self._document)


class ServiceUnavailable(MoiraError, ConnectionError):
    """No service answers. ``asked`` says whether it may have received the request all the same."""

    def __init__(self, message: str, *, asked: bool = False) -> None:
        self.asked = asked
        super().__init__(message)
