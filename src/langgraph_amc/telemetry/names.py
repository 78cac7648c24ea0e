"""The names of all spans, attributes, events and metrics, and nothing else; docs/tracing.md is the table of them.

Names under ``gen_ai.`` follow OpenTelemetry's conventions for generative AI and are written out here: the packages
that hold them as constants mark all of them deprecated since the conventions moved to a repository of their own.
``session.id`` and ``openinference.span.kind`` are what viewers file a run and draw a span by.
"""

from __future__ import annotations

_KNOWN: dict[str, list[str]] = {"spans": [], "attributes": [], "metrics": []}


def _span(name: str) -> str:
    """The name of a span, or the first word of it."""
    _KNOWN["spans"].append(name)
    return name


def _attribute(name: str) -> str:
    _KNOWN["attributes"].append(name)
    return name


def _metric(name: str) -> str:
    _KNOWN["metrics"].append(name)
    return name


SCOPE = "langgraph_amc"
"""Instrumentation scope of everything here."""

# -- spans -----------------------------------------------------------------------------------------------

RUN = _span("invoke_workflow")
GENERATION = _span("amc.generation")
SEGMENT = _span("amc.segment")
PARTICLE = _span("amc.particle")
EVALUATE = _span("amc.evaluate")
REWARD = _span("amc.reward")
RESAMPLE = _span("amc.resample")
EFFECT = _span("amc.effect")
COALESCED = _span("amc.coalesced")
VALUE_FIT = _span("amc.value.fit")
VALUE_EPOCH = _span("amc.value.epoch")
ES_RUN = _span("amc.es.run")
ES_GENERATION = _span("amc.es.generation")
ES_MEMBER = _span("amc.es.member")
SKILL_PROPOSAL = _span("amc.skill.proposal")
SKILL_GATE = _span("amc.skill.gate")

# -- attributes that others know -------------------------------------------------------------------------

OPERATION = _attribute("gen_ai.operation.name")
WORKFLOW = _attribute("gen_ai.workflow.name")
AGENT = _attribute("gen_ai.agent.name")
CONVERSATION = _attribute("gen_ai.conversation.id")
MODEL = _attribute("gen_ai.request.model")
INPUT_MESSAGES = _attribute("gen_ai.input.messages")
OUTPUT_MESSAGES = _attribute("gen_ai.output.messages")
SESSION = _attribute("session.id")
KIND = _attribute("openinference.span.kind")
EVALUATION_NAME = _attribute("gen_ai.evaluation.name")
EVALUATION_SCORE = _attribute("gen_ai.evaluation.score.value")
ERROR = _attribute("error.type")

# -- attributes of our own -------------------------------------------------------------------------------

RUN_ID = _attribute("amc.run.id")
TASK = _attribute("amc.task.id")
OBJECTIVE = _attribute("amc.objective")
PARTICLES = _attribute("amc.particles.count")
SCHEDULE = _attribute("amc.resampling.schedule")
SCHEME = _attribute("amc.resampling.scheme")
SEED = _attribute("amc.seed")
RESTORED = _attribute("amc.restored")
BEST = _attribute("amc.best.particle.id")
LOG_EVIDENCE = _attribute("amc.log_evidence")
STOPPED = _attribute("amc.stopped")
INPUT_TOKENS = _attribute("amc.usage.input_tokens")
OUTPUT_TOKENS = _attribute("amc.usage.output_tokens")
CALLS = _attribute("amc.usage.calls")
COST = _attribute("amc.usage.cost_usd")
WINNER_TOKENS = _attribute("amc.usage.winner_tokens")

GENERATION_NUMBER = _attribute("amc.generation.number")
BOUNDARY = _attribute("amc.boundary")
ESS = _attribute("amc.ess")
ESS_RATIO = _attribute("amc.ess.ratio")
SHARPNESS = _attribute("amc.sharpness")

PARTICLE_ID = _attribute("amc.particle.id")
PARENT_ID = _attribute("amc.particle.parent_id")
FORKED_AT = _attribute("amc.particle.forked_at")
OUTCOME = _attribute("amc.particle.outcome")
VALUE = _attribute("amc.particle.value")
RETURN = _attribute("amc.particle.reward")
LOG_WEIGHT = _attribute("amc.particle.log_weight")
LOG_WEIGHT_FINITE = _attribute("amc.particle.log_weight.finite")
ACTION = _attribute("amc.particle.action")
NODES = _attribute("amc.particle.nodes")
GRAPH_NODE = _attribute("graph.node.id")
GRAPH_PARENT = _attribute("graph.node.parent_id")
LINK_TYPE = _attribute("amc.link.type")
LINKED_TRACE = _attribute("amc.link.trace_id")
LINKED_SPAN = _attribute("amc.link.span_id")

VALUE_FUNCTION = _attribute("amc.value_function.name")
BATCH = _attribute("amc.batch.size")
BATCH_PARTICLES = _attribute("amc.batch.particles")
VALUES = _attribute("amc.values")
MISSING = _attribute("amc.values.missing")

PERFORMED = _attribute("amc.resampling.performed")
WITHHELD = _attribute("amc.resampling.withheld")
ANCESTORS = _attribute("amc.resampling.ancestors")
COMPARED = _attribute("amc.resampling.particles")
LOG_WEIGHTS = _attribute("amc.resampling.log_weights")
IMPOSSIBLE = _attribute("amc.resampling.impossible")
UNIQUE = _attribute("amc.resampling.unique_ancestors")

EFFECT_TOOL = _attribute("amc.effect.tool")
EFFECT_STATE = _attribute("amc.effect.state")
EFFECT_POLICY = _attribute("amc.effect.policy")
EFFECT_KEY = _attribute("amc.effect.key")
COALESCED_CALLS = _attribute("amc.coalesced.calls")

DATASET_SIZE = _attribute("amc.dataset.size")
EPOCH = _attribute("amc.epoch")
LOSS_NAME = _attribute("amc.loss.name")
LOSS = _attribute("amc.loss")
VALIDATION_LOSS = _attribute("amc.loss.validation")

ES_POPULATION = _attribute("amc.es.population")
ES_SIGMA = _attribute("amc.es.sigma")
ES_SIGNAL = _attribute("amc.es.signal_to_noise")
ES_FITNESS = _attribute("amc.es.fitness")
ES_FITNESS_MEAN = _attribute("amc.es.fitness.mean")
ES_FITNESS_BEST = _attribute("amc.es.fitness.best")
ES_MEMBER_ID = _attribute("amc.es.member.id")
ES_GENERATION_NUMBER = _attribute("amc.es.generation.number")
ES_ROLLOUTS = _attribute("amc.es.rollouts")
WEIGHTS = _attribute("amc.weights.hash")

SKILL_NAME = _attribute("amc.skill.name")
SKILL_VERSION = _attribute("amc.skill.version")
SKILL_GATE_PASSED = _attribute("amc.skill.gate.passed")
SKILL_GATE_GAIN = _attribute("amc.skill.gate.gain")

EVALUATION = "gen_ai.evaluation.result"
"""The event by which a score is told."""
TRUE_REWARD = "true_reward"
"""Name of the score that an evaluation gives a particle when its run is over."""

# -- metrics ---------------------------------------------------------------------------------------------

RUN_DURATION = _metric("amc.run.duration")
GENERATION_DURATION = _metric("amc.generation.duration")
ESS_RATIOS = _metric("amc.ess.ratio")
PARTICLE_VALUES = _metric("amc.particle.value")
SEGMENTS = _metric("amc.particle.segments")
RESAMPLINGS = _metric("amc.resampling.count")
LOG_EVIDENCES = _metric("amc.log_evidence")
ACTIVE_PARTICLES = _metric("amc.particles.active")
VALUE_LOSS = _metric("amc.value.loss")
ES_FITNESSES = _metric("amc.es.fitness")


def all_names() -> dict[str, tuple[str, ...]]:
    """Every name by what it names: ``spans``, ``attributes``, ``metrics``; in the order above."""
    return {what: tuple(found) for what, found in _KNOWN.items()}
