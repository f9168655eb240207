"""The runner: takes dispatched attempts, runs an agent on them, reports what came of it.

``Runner`` wires it; ``load_agent`` finds the agent. The promises: an attempt is claimed before it runs and runs at
most once per claim; a rebalance never runs one again; an end is reported after its spans are on the log.
"""

from agl_stream.consumers.runner.loading import load_agent
from agl_stream.consumers.runner.runner import Runner

__all__ = ["Runner", "load_agent"]
