"""The lifecycle: one writer per rollout that turns requests, controls and reports into its state.

``fold`` is the state machine (pure); ``batch`` applies it to batches of records; ``app`` runs that on Faust,
``replayable`` without.
"""
