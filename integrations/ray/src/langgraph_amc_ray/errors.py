"""What can go wrong in another process, said in this one."""

from __future__ import annotations

from dataclasses import dataclass

from langgraph_amc.errors import AMCError


class RemoteError(AMCError):
    """The app, the reward or the model failed in a worker in a way that ends the work."""


class LostWorkersError(AMCError):
    """Worker processes die faster than jobs end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text: its class may not be known to, or survive the way to, another process."""

    kind: str
    message: str
    expected: bool
    """Whether it is one of ours, whose message says what to do."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What went wrong."""
        return cls(type(error).__name__, str(error), isinstance(error, AMCError))

    def error(self, worker: str) -> RemoteError:
        """The error to raise here."""
        return RemoteError(f"{worker}: {self.message}" if self.expected else f"{worker}: {self.kind}: {self.message}")
