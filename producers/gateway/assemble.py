"""A streamed answer put together as if it had not been streamed."""

from __future__ import annotations

from typing import Any

from agl_stream.producers import json_text
from agl_stream.producers.gateway import readable

_CHOICE_LISTS = ("token_ids", "prompt_token_ids")


class StreamAssembler:
    """Takes the chunks of one call. Never raises for what an upstream sends: a chunk that cannot be read is kept as
    text, in ``unreadable``; a part that is not what it should be is counted."""

    def __init__(self, *, chat: bool, choices: int) -> None:
        self._chat = chat
        self._expected = choices
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, dict[str, list[str]]] = {}
        self._tool_calls: dict[int, dict[int, dict[str, Any]]] = {}
        self._unfinished = choices
        self.error: Any = None
        self.malformed = 0
        self.unreadable: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether every choice has told its finish reason."""
        return self._unfinished <= 0

    @property
    def begun(self) -> bool:
        return bool(self._choices)

    def add(self, data: bytes) -> None:
        """One event's data."""
        chunk = _chunk(data)
        if chunk is None:
            self.malformed += 1
            self.unreadable.append(data.decode("utf-8", "replace"))
            return
        if chunk.get("error") is not None:
            self.error = chunk["error"]
        for key, value in chunk.items():
            if key != "choices" and value is not None:
                self._head[key] = value
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(choice.get("index", 0), int):
                self._add_choice(choice.get("index", 0), choice)
            else:
                self.malformed += 1

    def response(self) -> dict[str, Any]:
        """The answer in the shape of a call without ``stream``; what is missing is what has not come."""
        choices = [self._choice(index) for index in sorted(self._choices)]
        head = {key: value for key, value in self._head.items() if key != "object"}
        if self.unreadable:
            head["unreadable_chunks"] = self.unreadable
        return {**head, "object": "chat.completion" if self._chat else "text_completion", "choices": choices}

    def _add_choice(self, index: int, choice: dict[str, Any]) -> None:
        known = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        for key, value in choice.items():
            if value is None or key == "index":
                continue
            if key == "delta":
                self._add_delta(index, value)
            elif key == "message" and not isinstance(value, dict):
                self.malformed += 1
            elif key == "text":
                self._append(index, "text", value)
            elif key == "logprobs":
                _extend_lists(known.setdefault("logprobs", {}), value)
            elif key in _CHOICE_LISTS and isinstance(value, list):
                known.setdefault(key, []).extend(value)
            elif key == "finish_reason":
                if known["finish_reason"] is None:
                    self._unfinished -= 1
                known["finish_reason"] = value
            else:
                known[key] = value

    def _add_delta(self, index: int, delta: Any) -> None:
        if not isinstance(delta, dict):
            self.malformed += 1
            return
        for key, value in delta.items():
            if value is None:
                continue
            if key == "tool_calls" and isinstance(value, list):
                for position, part in enumerate(value):
                    self._add_tool_call(index, position, part)
            elif isinstance(value, str) and key != "role":
                self._append(index, key, value)
            else:
                self._choices[index].setdefault("message", {})[key] = value

    def _append(self, index: int, key: str, piece: Any) -> None:
        if isinstance(piece, str):
            self._texts.setdefault(index, {}).setdefault(key, []).append(piece)
        else:
            self.malformed += 1

    def _add_tool_call(self, index: int, position: int, part: Any) -> None:
        if not isinstance(part, dict) or not isinstance(part.get("index", position), int):
            self.malformed += 1
            return
        calls = self._tool_calls.setdefault(index, {})
        call = calls.setdefault(part.get("index", position), {"function": {"name": "", "arguments": []}})
        call.update({key: part[key] for key in ("id", "type") if part.get(key)})
        function = part.get("function")
        if isinstance(function, dict):
            name, arguments = function.get("name"), function.get("arguments")
            if isinstance(name, str) and name != call["function"]["name"]:
                call["function"]["name"] += name
            if isinstance(arguments, str):
                call["function"]["arguments"].append(arguments)

    def _choice(self, index: int) -> dict[str, Any]:
        choice = dict(self._choices[index])
        texts = {key: "".join(pieces) for key, pieces in self._texts.get(index, {}).items()}
        if not self._chat:
            return {**choice, **texts}
        message = {"role": "assistant", "content": None, **choice.get("message", {}), **texts}
        calls = self._tool_calls.get(index)
        if calls:
            message["tool_calls"] = [_whole_tool_call(calls[position]) for position in sorted(calls)]
        return {**choice, "message": message}


def _chunk(data: bytes) -> dict[str, Any] | None:
    try:
        chunk = json_text.loads(data)
    except json_text.BadJson:
        try:
            chunk = readable.loads(data)
        except readable.Unreadable:
            return None
        if not readable.within(chunk, json_text.MAX_DEPTH):
            return None
    return chunk if isinstance(chunk, dict) else None


def _whole_tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "function", **call, "function": {**function, "arguments": "".join(function["arguments"])}}


def _extend_lists(known: dict[str, Any], more: Any) -> None:
    """Logprobs of chat ({content, refusal}) and of completions ({tokens, token_logprobs, ...}) alike."""
    if isinstance(more, dict):
        for key, value in more.items():
            if isinstance(value, list):
                known.setdefault(key, []).extend(value)
