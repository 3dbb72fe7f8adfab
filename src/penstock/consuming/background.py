"""Something that runs until it is stopped, in the caller's thread or in one of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """`run` here, or `start` and `wait` for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @abstractmethod
    def run(self) -> None:
        """Returns when it was stopped, or is done. Raises what made it impossible to go on."""

    @abstractmethod
    def stop(self) -> None:
        """Have `run` return soon. From any thread; it does not wait."""

    def start(self) -> None:
        """Run in a thread of its own; `wait` for it."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-{self._name}", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for what was started. Raises what ended it; False when it still runs after `timeout`."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
