"""A light OpenAI-compatible server for the model being trained.

Chat completions with the token ids and logprobs that training needs, on transformers' continuous batching; it
follows the resources topic and swaps each new version in between requests.
"""
