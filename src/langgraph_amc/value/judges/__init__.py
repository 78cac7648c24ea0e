"""Language models as value functions: `judge` (zero-shot) and `foa_judge` (examples and votes)."""

from langgraph_amc.value.judges.judging import Judge, MissingScoreWarning, foa_judge, judge
from langgraph_amc.value.judges.prompts import Example

__all__ = ["Example", "Judge", "MissingScoreWarning", "foa_judge", "judge"]
