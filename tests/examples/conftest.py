"""The example's own modules are imported by name, as they are when its agent is loaded from its folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "sudoku"))
