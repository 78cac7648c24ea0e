"""What can go wrong with an environment on a server."""

from __future__ import annotations

from langgraph_amc.errors import AMCError


class AgentGymError(AMCError):
    """Base class of this package's errors."""


class AgentGymTaskError(AgentGymError, ValueError):
    """A task that is none of this server's, or a world used outside an episode."""


class ServerUnreachableError(AgentGymError, ConnectionError):
    """Nobody listens at the address."""


class ServerRefusedError(AgentGymError, RuntimeError):
    """The server answered with an error.

    Attributes
    ----------
    status: of HTTP; 200 where the error stood in the answer.
    said: the server's own words, cut.
    """

    def __init__(self, request: str, status: int, said: str, advice: str) -> None:
        self.status, self.said = status, said
        super().__init__(f"{request} was refused ({'' if status == 200 else f'HTTP {status}: '}{said}): {advice}")


class UnexpectedAnswerError(AgentGymError, ValueError):
    """An answer of another shape than the dialect's."""


class LeakedEnvironmentWarning(UserWarning):
    """Environments that could not be closed stay on the server until it ends."""
