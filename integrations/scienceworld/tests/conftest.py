"""Without the package there is nothing to test: ``pip install -e integrations/scienceworld`` first."""

import importlib.util
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

if importlib.util.find_spec("langgraph_amc_scienceworld") is None:
    collect_ignore_glob = ["test_*.py"]
