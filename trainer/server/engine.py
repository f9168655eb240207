"""The generation engine: transformers' continuous batching behind asyncio, with weights that can be swapped.

Requests join the running batch at the next token. A swap lets nobody in, waits until those in flight are done and
copies the new tensors over the old, so every completion comes from exactly one version.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils import logging as transformers_logging

from agl_stream.errors import AglStreamError, UsageError
from agl_stream.trainer.server.config import EngineConfig
from agl_stream.trainer.weights import WeightsUnusable

log = logging.getLogger(__name__)

# transformers makes a per-request temperature only when the default is not 1; each request says its own
_NOT_ONE = 2.0
_GREEDY = 1e-6
_BLOCK_TOKENS = 32


class Unavailable(AglStreamError):
    """The engine cannot take the request now; trying again later is right."""


class GenerationFailed(AglStreamError):
    """The engine broke while generating."""


@dataclass(frozen=True)
class Piece:
    """Newly generated tokens of one request; ``finish_reason`` (stop, length) on the last piece."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str | None


class Engine:
    """One model, one version at a time. All methods but the constructor belong to one event loop."""

    def __init__(self, model_dir: str | Path, config: EngineConfig | None = None) -> None:
        """Loads model and tokenizer and starts the generation thread. Raises UsageError for a folder without them."""
        self.config = config or EngineConfig()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        device = self.config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            torch.set_num_threads(self.config.threads)
        dtype = {"auto": torch.float32 if device == "cpu" else "auto"}.get(self.config.dtype, self.config.dtype)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=dtype, local_files_only=True)
        except (OSError, ValueError) as error:
            raise UsageError(f"--model {model_dir} cannot be loaded: {str(error).splitlines()[0]}") from None
        self.model: Any = untie(model.eval().to(device))
        self.version = 0
        blocks = max(1, self.config.cache_tokens // _BLOCK_TOKENS)
        self.max_model_tokens = min(blocks * _BLOCK_TOKENS, self.model.config.max_position_embeddings)
        self.completions = self.completion_tokens = 0
        self._eos = self._end_tokens()
        self._manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=_NOT_ONE,
                top_k=0,
                top_p=1.0,
                eos_token_id=sorted(self._eos),
                pad_token_id=self.tokenizer.pad_token_id,
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                return_logprobs=True,
                per_request_processors=True,
                num_blocks=blocks,
                block_size=_BLOCK_TOKENS,
                max_batch_tokens=self.config.max_batch_tokens,
                allow_block_sharing=False,  # no cached prefix outlives a swap
                use_async_batching=False,  # its first batch must not be empty
            ),
        )
        self._manager.start()
        self._texts: dict[int, str] = {}
        self._in_flight: dict[str, asyncio.Queue[Any]] = {}
        self._admitted = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._swapping = asyncio.Lock()

    def _end_tokens(self) -> set[int]:
        declared = self.model.generation_config.eos_token_id
        declared = self.tokenizer.eos_token_id if declared is None else declared
        return set(declared) if isinstance(declared, list) else {declared} - {None}

    @property
    def alive(self) -> bool:
        """Whether the generation thread runs; once it does not, the process should be replaced."""
        return self._manager.is_running() and self._manager.fatal_error is None

    @property
    def in_flight(self) -> int:
        return self._admitted

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The chat template applied; ValueError when the template refuses the messages."""
        try:
            encoded = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        except Exception as error:  # a template is a program: anything may come
            raise ValueError(f"the model's chat template refuses the messages: {error}") from error
        return list(encoded["input_ids"])

    def text_of(self, tokens: Sequence[int]) -> str:
        """Text of generated tokens, without special tokens."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def token_text(self, token: int) -> str:
        """Text of one token, special or not."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self.tokenizer.decode([token])
        return text

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[int]:
        """Lets a request in between swaps: ``generate`` inside it comes from the version it yields.

        Raises Unavailable when a swap takes too long or too many requests are in flight.
        """
        try:
            async with asyncio.timeout(self.config.drain_seconds):
                while not self._open.is_set():
                    await self._open.wait()
        except TimeoutError:
            raise Unavailable("a new model version is still being loaded") from None
        if not self.alive:
            raise GenerationFailed("the generation thread has died; the server must be restarted")
        if self._admitted >= self.config.max_in_flight:
            raise Unavailable(f"{self._admitted} requests are in flight, which is the most this server takes at once")
        self._admitted += 1
        self._empty.clear()
        try:
            yield self.version
        finally:
            self._admitted -= 1
            if not self._admitted:
                self._empty.set()

    async def generate(
        self, prompt: list[int], *, max_tokens: int, temperature: float, streaming: bool = False
    ) -> AsyncIterator[Piece]:
        """Generates one completion. Yields one piece at the end, or one for each token when ``streaming``.

        Call it inside ``admitted``. Closing the iterator early cancels the request. Raises Unavailable when a swap had
        to cancel it, GenerationFailed when the engine broke. Temperature 0 is greedy, its logprobs are 0.
        """
        request_id, queue = uuid.uuid4().hex, asyncio.Queue[Any]()
        self._in_flight[request_id] = queue
        finished = False
        try:
            self._manager.register_result_handler(request_id, queue.put_nowait)
            self._manager.add_request(
                prompt,
                request_id=request_id,
                max_new_tokens=max_tokens,
                streaming=streaming,
                temperature=max(temperature, _GREEDY),
            )
            sent = 0
            while not finished:
                output = await queue.get()
                if isinstance(output, AglStreamError):
                    raise output
                if output.error:
                    log.error("generation failed: %s", output.error)
                    raise GenerationFailed("the model failed to generate; see the server's log")
                # the lists still grow while a request runs: take what both have
                finished = output.is_finished()
                ready = min(len(output.generated_tokens), len(output.logprobs))
                tokens, logprobs = output.generated_tokens[sent:ready], output.logprobs[sent:ready]
                reason = None
                if finished:
                    reason = "stop" if output.generated_tokens[-1] in self._eos else "length"
                    self.completions += 1
                    self.completion_tokens += ready
                if tokens or finished:
                    yield Piece(tokens, logprobs, reason)
                sent = ready
        finally:
            del self._in_flight[request_id]
            if not finished:
                self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._manager.cancel_request(request_id)
        router = self._manager.output_router
        with router._lock:
            router.result_handlers.pop(request_id, None)

    async def swap(self, version: int, tensors: Mapping[str, torch.Tensor]) -> float:
        """Replaces the weights between requests and returns how many seconds nobody was served.

        Raises WeightsUnusable, with the old weights untouched, when names or shapes do not fit the model.
        """
        self._check(version, tensors)
        async with self._swapping:
            started = time.perf_counter()
            self._open.clear()
            try:
                await self._drain()
                await asyncio.to_thread(self._load, tensors)
                self.version = version
            finally:
                self._open.set()
            return time.perf_counter() - started

    def _check(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        own = self.model.state_dict()
        for name in sorted(own.keys() ^ tensors.keys()):
            raise WeightsUnusable(f"version {version}: tensor {name} is in only one of model and weights")
        for name, tensor in tensors.items():
            if own[name].shape != tensor.shape:
                raise WeightsUnusable(
                    f"version {version}: {name} has shape {tuple(tensor.shape)}, the model {tuple(own[name].shape)}"
                )

    async def _drain(self) -> None:
        try:
            await asyncio.wait_for(self._empty.wait(), self.config.drain_seconds)
        except TimeoutError:
            for queue in list(self._in_flight.values()):
                queue.put_nowait(Unavailable("cancelled for a new model version; ask again"))
            await self._empty.wait()
        # a cancelled request leaves the batch at its next token; the generation thread has no event for that
        while self._busy():
            if not self.alive:
                raise GenerationFailed("the generation thread has died")
            await asyncio.sleep(0.001)

    def _busy(self) -> bool:
        processor = self._manager.batch_processor
        waiting = self._manager.input_queue.qsize() + self._manager.cancel_queue.qsize()
        return waiting > 0 or (processor is not None and processor.has_pending_requests())

    @torch.no_grad()
    def _load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.model.load_state_dict(tensors, strict=True)

    def close(self) -> None:
        """Stops the generation thread; requests in flight fail."""
        self._manager.stop(block=True, timeout=10.0, hard_stop=True)


def untie(model: Any) -> Any:
    """Gives the head its own tensor where it shares the embedding's: a version brings both."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(embedding.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False
    return model
