"""A folder to evolve in, and one where that was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluate.evolve_world import made, run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    """A folder with a run of one generation, and its tuned model."""
    run(world, world / "whole", generations=1)
    return world / "whole"
