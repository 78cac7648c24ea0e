"""Without the package there is nothing to test: ``pip install -e integrations/miniwob`` first."""

import importlib.util
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

if importlib.util.find_spec("langgraph_amc_miniwob") is None:
    collect_ignore_glob = ["test_*.py"]
