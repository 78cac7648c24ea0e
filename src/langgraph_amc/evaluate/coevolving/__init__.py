"""Co-evolution of an app's skills and its local model's weights: the study around `coevolve`."""

from langgraph_amc.evaluate.coevolving.report import Coevolution, Trial
from langgraph_amc.evaluate.coevolving.run import acoevolve, coevolve

__all__ = ["Coevolution", "Trial", "acoevolve", "coevolve"]
