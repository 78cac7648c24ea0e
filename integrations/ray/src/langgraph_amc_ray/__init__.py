"""Jobs of langgraph-amc on Ray: worker processes with the app, and a copy of its model where that is evolved."""

from langgraph_amc_ray.errors import LostWorkersError, RemoteError
from langgraph_amc_ray.executor import RayExecutor, executor
from langgraph_amc_ray.replicas import RayReplicas, replicas

__all__ = ["LostWorkersError", "RayExecutor", "RayReplicas", "RemoteError", "executor", "replicas"]
