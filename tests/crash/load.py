"""Producers that write down what they were promised."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from tests.clients.confluent import QUICK
from tests.servers import Server

GIVE_UP_MS: Final = 60_000
"""Longer than any crash of these tests: a record that fails has been refused, not forgotten."""
FINISH_TIMEOUT_S: Final = 40.0

PATIENT: Final[Mapping[str, Any]] = {"metadata.recovery.strategy": "none"}
"""Come back to the one broker that there is. When that one is down, librdkafka 2.16 otherwise throws away all that it
knows and starts from its bootstrap servers, in which a transactional producer gets stuck for ever, with Kafka too."""

IDEMPOTENT: Final[Mapping[str, Any]] = {"enable.idempotence": True, "acks": "all"}
WRITTEN_ONLY: Final[Mapping[str, Any]] = {"acks": 1, "max.in.flight": 1, "retries": 1000}
"""Acknowledged once it is written, not once it is on the disk; in order; a retry may repeat."""


class Worker:
    """Works in a thread until it is told to finish; what goes wrong there is the test's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.finishing = threading.Event()
        self.progress = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __str__(self) -> str:
        return self.name

    def work(self) -> None:
        """Until `finishing` is set."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # handed over to the test, which raises it
            self._error = error

    def check_health(self) -> None:
        if self._error is not None:
            raise AssertionError(f"{self.name} failed") from self._error
        assert self._thread.is_alive() or self.finishing.is_set(), f"{self.name} has ended by itself"

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> None:
        """Have it end what it is doing; raises what went wrong."""
        self.finishing.set()
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self.name} did not finish within {timeout_s:.0f} s"
        self.check_health()


class KeyedProducer(Worker):
    """Sends numbered records, each key's in order, and keeps what became of each."""

    def __init__(
        self,
        server: Server,
        topic: str,
        name: str,
        settings: Mapping[str, Any],
        *,
        keys: int = 5,
        value_bytes: int = 200,
        per_second: int = 1500,
    ) -> None:
        super().__init__(name)
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int | None]] = {}
        """By number: partition and offset. None where the client was told only that it had been taken before."""
        self.refused: dict[int, str] = {}
        self._keys = keys
        self.value_bytes = value_bytes
        self._pause_s = 10 / per_second
        self._producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                **QUICK,
                **PATIENT,
                "linger.ms": 2,
                "message.timeout.ms": GIVE_UP_MS,
                "socket.timeout.ms": 10_000,
                "queue.buffering.max.messages": 2000,
                **settings,
            }
        )

    def value(self, number: int) -> bytes | None:
        return f"{self.name}:{number}:".encode().ljust(self.value_bytes, b".")

    def key(self, number: int) -> bytes:
        return f"{self.name}-{number % self._keys}".encode()

    def work(self) -> None:
        while not self.finishing.wait(self._pause_s):
            for _ in range(10):
                self._send_next()
            self._producer.poll(0)
            while len(self._producer) > 1000 and not self.finishing.is_set():
                self._producer.poll(0.01)
        left = self._producer.flush(FINISH_TIMEOUT_S)
        assert left == 0, f"{left} records of {self.name} were neither acknowledged nor refused"

    def _send_next(self) -> None:
        number = self.sent
        self.sent += 1

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.refused[number] = str(error)
                return
            offset, partition = message.offset(), message.partition()
            assert partition is not None
            self.acknowledged[number] = (partition, offset if offset is not None and offset >= 0 else None)
            self.progress += 1

        self._producer.produce(self.topic, self.value(number), self.key(number), on_delivery=delivered)
