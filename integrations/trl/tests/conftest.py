"""A tiny model, and an app of two turns around it; without TRL there is nothing to test."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if importlib.util.find_spec("langgraph_amc_trl") is None or importlib.util.find_spec("trl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from langchain_core.messages import AnyMessage, HumanMessage
    from langchain_litellm import ChatLiteLLM
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages
    from langgraph_amc_trl.recording import Recorder, recording
    from langgraph_amc_trl.rollouts import Rollouts

    from langgraph_amc.policy.engine import BatchEngine
    from langgraph_amc.policy.engines import get_engine
    from langgraph_amc.policy.litellm_setup import load_litellm
    from langgraph_amc.runtime.settings import read_settings
    from langgraph_amc.tasks import Task, TaskSet
    from langgraph_amc.tasks.rewards import as_reward
    from tests.support.tiny_models import save_tiny

    class State(TypedDict, total=False):
        messages: Annotated[list[AnyMessage], add_messages]

    @pytest.fixture
    def folder(tmp_path: Path) -> Path:
        return save_tiny(tmp_path / "tiny", num_hidden_layers=2)

    @pytest.fixture
    def engine(folder: Path) -> Iterator[BatchEngine]:
        engine = get_engine(folder)
        yield engine
        engine.close()

    @pytest.fixture
    def recorder(engine: BatchEngine) -> Iterator[Recorder]:
        with recording(engine) as recorder:
            yield recorder

    @pytest.fixture
    def make_app(folder: Path) -> Callable[..., Any]:
        """An app that asks the model, says "more", and asks again; ``forgetful``: without what was said before."""

        def make(
            forgetful: bool = False, temperature: float = 1.0, tokens: int = 5, spoilt: str = "", **more: Any
        ) -> Any:
            load_litellm()
            model = ChatLiteLLM(
                model=f"amc-local/{folder}", temperature=temperature, max_tokens=tokens, model_kwargs=more
            )

            async def think(state: State) -> State:
                messages = state["messages"]
                if spoilt and messages[0].text.startswith(spoilt):
                    raise RuntimeError("this task breaks the app")
                return {"messages": [await model.ainvoke(messages[-1:] if forgetful else messages)]}

            def more_please(state: State) -> State:
                return {"messages": [HumanMessage("more")]}

            graph = StateGraph(State)
            graph.add_node("think", think)
            graph.add_node("more", more_please)
            graph.add_edge(START, "think")
            graph.add_edge("more", "think")
            graph.add_conditional_edges("think", lambda s: "more" if len(s["messages"]) < 4 else END, ["more", END])
            return graph.compile()

        return make

    @pytest.fixture
    def tasks() -> TaskSet:
        return TaskSet(Task(f"t{i}", f"{'abcdefgh'[i]} please") for i in range(8))

    @pytest.fixture
    def make_rollouts(recorder: Recorder) -> Callable[..., Rollouts]:
        def make(app: Any, reward: Callable[..., Any], temperature: float = 1.0) -> Rollouts:
            settings = read_settings(app, particles=1)
            return Rollouts(app, as_reward(reward), settings, recorder, temperature, seed=0, concurrency=16)

        return make
