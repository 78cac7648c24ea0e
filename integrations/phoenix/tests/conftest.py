"""Without the package nothing is tested: ``pip install -e integrations/phoenix``, with its extras for all of it."""

import importlib.util
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

collect_ignore_glob = [] if importlib.util.find_spec("langgraph_amc_phoenix") else ["test_*.py"]
if importlib.util.find_spec("langfuse") is None:
    collect_ignore_glob.append("test_langfuse.py")
