"""``python -m langgraph_amc`` is the command ``amc``."""

from langgraph_amc.cli import main

main()
