"""Language models as value functions: `judge` (zero-shot), `foa_judge` (examples), `vote_judge` (states compared)."""

from langgraph_amc.value.judges.judging import Judge, MissingScoreWarning, foa_judge, judge
from langgraph_amc.value.judges.prompts import Example
from langgraph_amc.value.judges.voting import VoteJudge, vote_judge

__all__ = ["Example", "Judge", "MissingScoreWarning", "VoteJudge", "foa_judge", "judge", "vote_judge"]
