"""Plays everything between a learner's requests and its triplets: lifecycle, runner, joiner; and a server's voice."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from trainer_makers import joined, triplet

from agl_stream.producers.event_producer import EventProducer
from agl_stream.settings import Settings
from agl_stream.trainer.log_follower import LogFollower
from agl_stream.trainer.weights import WeightsUnusable, verify

Event = dict[str, Any]
Play = Callable[[Event], Event | None]


class Feeder:
    """Answers each RolloutRequested once, in a thread, with a TripletsJoined made by ``play(request)``, or not at all
    when that is None.

    With ``serve`` it also acknowledges every published version whose weights verify, as a server would.
    """

    def __init__(self, settings: Settings, play: Play, *, serve: str | None = None) -> None:
        self.played: dict[str, Event] = {}
        self.acknowledged: list[int] = []
        self.failure: BaseException | None = None
        self._settings = settings
        self._play = play
        self._serve = serve
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Feeder:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with (
                EventProducer(self._settings, name="feeder", linger_ms=0.0) as producer,
                LogFollower(self._settings, ["rollout-requests", "resources"], producer, name="feeder") as log,
            ):
                self._ready.set()
                while not self._stop.is_set():
                    for record in log.poll(0.1):
                        if record.topic == "resources":
                            self._acknowledge(producer, record.event)
                        else:
                            self._answer(producer, record.event)
                    producer.flush()
        except BaseException as error:
            self.failure = error
            self._ready.set()

    def _answer(self, producer: EventProducer, request: Event) -> None:
        if request["rollout_id"] in self.played:
            return
        event = self._play(request)
        if event is None:
            return
        for name in ("mode", "run_id", "group_id", "group_size", "resources_id", "resources_version"):
            event[name] = request[name]
        event["occurred_at_us"] = int(time.time() * 1e6)
        self.played[request["rollout_id"]] = event
        producer.send("triplets", event, key=event["group_id"] or event["rollout_id"])

    def _acknowledge(self, producer: EventProducer, event: Event) -> None:
        if self._serve is None or event["weights"] is None:
            return
        refused = ""
        try:
            verify(event["weights"])
            self.acknowledged.append(event["version"])
        except WeightsUnusable as error:
            refused = f"version {event['version']}: {error}"
        heartbeat = {
            "worker_id": self._serve,
            "role": "server",
            "status": "idle",
            "resources_id": event["resources_id"],
            "resources_version": event["version"] if not refused else event["version"] - 1,
            "stats": json.dumps({"refused": refused} if refused else {}),
        }
        producer.send("workers", heartbeat)


def scripted(request: Event) -> Event:
    """Random tokens and a reward of 0 or 1, which depend on the rollout id alone; one or two rows."""
    rng = random.Random(request["rollout_id"])
    rows = [
        triplet([rng.randrange(6, 200) for _ in range(6)], [rng.randrange(6, 200) for _ in range(3)])
        for _ in range(rng.randint(1, 2))
    ]
    return joined(request["rollout_id"], triplets=rows, reward=float(rng.random() < 0.5))


def agent(base_url: str) -> Play:
    """A real, if short-sighted, agent: asks the server once and is rewarded for an even first token."""

    def play(request: Event) -> Event:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": str(json.loads(request["input"]))}],
            "max_tokens": 4,
            "logprobs": True,
            "return_token_ids": True,
        }
        call = urllib.request.Request(
            base_url + "/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(call, timeout=30) as response:
            answer = json.load(response)
        choice = answer["choices"][0]
        row = triplet(
            answer["prompt_token_ids"],
            choice["token_ids"],
            [entry["logprob"] for entry in choice["logprobs"]["content"]],
            answer["resources_version"],
        )
        return joined(request["rollout_id"], triplets=[row], reward=float(choice["token_ids"][0] % 2 == 0))

    return play
