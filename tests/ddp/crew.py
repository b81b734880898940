"""Ranks that stay, and run one program after the other as the parent sends them.

A launch for each of some hundred small programs would take longer than the programs.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from threading import Thread
from typing import Any

from minddp.launcher import launch

PATIENCE = 60.0  # seconds for one job, before a rank counts as hanging
A_LIFE = 3600.0  # seconds for all programs of one crew


class Crew:
    """`world_size` ranks that call `job` with whatever `run` is given."""

    def __init__(self, job: Callable[[Any], None], world_size: int) -> None:
        self.error: Exception | None = None
        self.listener = Listener()
        self.connections: list[Connection] = []
        self.thread = Thread(target=self._launch, args=(job, world_size), daemon=True)
        self.thread.start()
        while len(self.connections) < world_size:
            self.connections.append(self.listener.accept())

    def _launch(self, job: Callable[[Any], None], world_size: int) -> None:
        try:
            launch(
                serve,
                job,
                self.listener.address,
                world_size=world_size,
                timeout=A_LIFE,
                prints="off",
            )
        except Exception as error:
            self.error = error
            for _ in range(len(self.connections), world_size):  # do not leave accept() waiting
                Client(self.listener.address).close()

    def run(self, item: Any) -> Exception | None:
        """Have all ranks do the job. Returns what went wrong; the crew has ended then."""
        if all(sent(connection, item) for connection in self.connections) and all(
            answered(connection) for connection in self.connections
        ):
            return None
        self.end()
        return self.error

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        self.thread.join()
        self.listener.close()


def sent(connection: Connection, item: Any) -> bool:
    try:
        connection.send(item)
    except ConnectionError:
        return False
    return True


def answered(connection: Connection) -> bool:
    """Whether the rank at the other end has done its job: not if it has died."""
    try:
        return connection.recv() == "done"
    except (EOFError, ConnectionError):
        return False


def serve(job: Callable[[Any], None], address: str) -> None:
    """In a rank: do the job for each item that comes, until the parent closes the connection. An
    error ends the launch, so that ranks which wait for this one in a collective end too. A rank
    that hangs prints its stack and ends."""
    with Client(address) as connection:
        while True:
            try:
                item = connection.recv()
            except EOFError:
                return
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            job(item)
            faulthandler.cancel_dump_traceback_later()
            connection.send("done")
