"""The LLM gateway: an agent's model calls pass through it and are on the log before their answer ends.

    POST /rollout/{rollout_id}/attempt/{attempt_id}/v1/chat/completions    recorded, streaming or not
    POST /rollout/{rollout_id}/attempt/{attempt_id}/v1/completions         recorded, streaming or not
    GET  /rollout/{rollout_id}/attempt/{attempt_id}/v1/models              passed
    GET  /health

The agent's client needs nothing but the base URL. The upstream is asked for token ids and logprobs whatever the
client asked; the client gets the upstream's answer as it is, a stream chunk by chunk.
"""
