"""ScienceWorld's 30 kinds of task, with the size of their splits, known without starting Java.

The numbers are those of ScienceWorld 1.2.3. Its own splits are by variation: the first ones are train, then come dev
and test. ``python -m langgraph_amc_scienceworld kinds`` compares the table with the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from langgraph_amc.errors import AMCError


class ScienceWorldError(AMCError, ValueError):
    """A task that is none of ScienceWorld's, or a world used outside an episode."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of task.

    Attributes
    ----------
    number: as the ScienceWorld paper counts them, for example 4-1.
    name: as the simulator calls it.
    variations: how many there are: the first ``train``, then ``dev``, the rest for test.
    """

    number: str
    name: str
    variations: int
    train: int
    dev: int

    def split(self, variation: int) -> str:
        """Where ScienceWorld has this variation: ``train``, ``tune`` (its dev) or ``test``."""
        if type(variation) is not int or not 0 <= variation < self.variations:
            raise ScienceWorldError(f"{self.name} has the variations 0 to {self.variations - 1}, not {variation!r}")
        return "train" if variation < self.train else "tune" if variation < self.train + self.dev else "test"


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("1-1", "boil", 30, 14, 7),
            Kind("1-2", "melt", 30, 14, 7),
            Kind("1-3", "freeze", 30, 14, 7),
            Kind("1-4", "change-the-state-of-matter-of", 30, 14, 7),
            Kind("2-1", "use-thermometer", 540, 270, 135),
            Kind("2-2", "measure-melting-point-known-substance", 436, 218, 109),
            Kind("2-3", "measure-melting-point-unknown-substance", 300, 150, 75),
            Kind("3-1", "power-component", 20, 10, 5),
            Kind("3-2", "power-component-renewable-vs-nonrenewable-energy", 20, 10, 5),
            Kind("3-3", "test-conductivity", 900, 450, 225),
            Kind("3-4", "test-conductivity-of-unknown-substances", 600, 300, 150),
            Kind("4-1", "find-living-thing", 300, 150, 75),
            Kind("4-2", "find-non-living-thing", 300, 150, 75),
            Kind("4-3", "find-plant", 300, 150, 75),
            Kind("4-4", "find-animal", 300, 150, 75),
            Kind("5-1", "grow-plant", 126, 62, 31),
            Kind("5-2", "grow-fruit", 126, 62, 31),
            Kind("6-1", "chemistry-mix", 32, 16, 8),
            Kind("6-2", "chemistry-mix-paint-secondary-color", 36, 18, 9),
            Kind("6-3", "chemistry-mix-paint-tertiary-color", 36, 18, 9),
            Kind("7-1", "lifespan-longest-lived", 125, 62, 31),
            Kind("7-2", "lifespan-shortest-lived", 125, 62, 31),
            Kind("7-3", "lifespan-longest-lived-then-shortest-lived", 125, 62, 31),
            Kind("8-1", "identify-life-stages-1", 14, 6, 3),
            Kind("8-2", "identify-life-stages-2", 10, 4, 2),
            Kind("9-1", "inclined-plane-determine-angle", 168, 84, 42),
            Kind("9-2", "inclined-plane-friction-named-surfaces", 1386, 692, 346),
            Kind("9-3", "inclined-plane-friction-unnamed-surfaces", 162, 80, 40),
            Kind("10-1", "mendelian-genetics-known-plant", 120, 60, 30),
            Kind("10-2", "mendelian-genetics-unknown-plant", 480, 240, 120),
        )
    }
)
"""By name, in the order of the paper's numbers."""

AMC_KINDS: tuple[str, ...] = tuple(
    name for name, kind in KINDS.items() if kind.number not in {"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"}
)
"""The 23 kinds that AgentGym and, through it, the AMC paper use."""

SIMPLIFICATIONS = (
    "easy",
    "noElectricalAction",
    "openContainers",
    "openDoors",
    "selfWateringFlowerPots",
    "teleportAction",
)
"""What can make a task easier; ``easy`` is all of them that the task allows."""


def kind(name: str) -> Kind:
    """The kind of task with this name; raises `ScienceWorldError`."""
    if name not in KINDS:
        raise ScienceWorldError(f"ScienceWorld has no task {name!r}; it has {', '.join(KINDS)}")
    return KINDS[name]
