"""Two hosts on one Linux machine: network namespaces joined by a cable of known speed.

Each namespace has an address of its own and sees nothing but the cable, so what runs in them runs
as on two machines, and the network can be made as slow as a real one. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One of the two: its namespace, its address, and the name of its end of the cable."""

    namespace: str
    address: str
    interface: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def environment(self) -> dict[str, str]:
        """This process's environment, with gloo told which interface to use."""
        return {**os.environ, "GLOO_SOCKET_IFNAME": self.interface}


def why_not() -> str:
    """Why this machine cannot have two hosts; empty if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "making network namespaces needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    probe = f"minddp-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True)
    return ""


@contextmanager
def two_hosts(rate: str | None = "1gbit") -> Iterator[tuple[Host, Host]]:
    """Make two hosts and a cable between them; take all away at the end.

    Args:
        rate: speed of the cable in each direction, in `tc`'s words; None for as fast as it goes.

    Raises:
        RuntimeError: this machine cannot, see `why_not`.
    """
    reason = why_not()
    if reason:
        raise RuntimeError(f"cannot make two hosts: {reason}")
    number = os.getpid() % 2**24
    hosts = (
        Host(f"minddp-a-{number}", "10.77.0.1", f"mda{number:x}"),
        Host(f"minddp-b-{number}", "10.77.0.2", f"mdb{number:x}"),
    )
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
        first, second = hosts
        cable = ["ip", "link", "add", first.interface, "netns", first.namespace, "type", "veth"]
        _run(*cable, "peer", "name", second.interface, "netns", second.namespace)
        for host in hosts:
            _set_up(host, rate)
        yield hosts
    finally:
        for host in hosts:  # the cable goes with the namespaces
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)


def run_ranks(hosts: Sequence[Host], arguments: Sequence[str], timeout: float) -> list[str]:
    """Run one command on each host, as the ranks of one job, and wait for all.

    Args:
        arguments: the command; it finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
            environment, as under torchrun, and one thread for torch.
        timeout: seconds for all of it. Then, or if one fails, all are ended.

    Returns:
        What each printed to stdout.

    Raises:
        RuntimeError: a command failed, with the host and the end of what it said.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank, host in enumerate(hosts):
            env = {
                **host.environment(),
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(hosts)),
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": "29400",  # free: a namespace has all ports to itself
                "OMP_NUM_THREADS": "1",
            }
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(host.command(arguments), env=env, **pipes))  # type: ignore
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for host, process, (_, errors) in zip(hosts, processes, said, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"failed on host {host.address}: {errors[-2000:]}")
    return [output for output, _ in said]


def cut(host: Host) -> None:
    """Pull the cable out of a host."""
    _run(*host.command(["ip", "link", "set", host.interface, "down"]))


def _set_up(host: Host, rate: str | None) -> None:
    inside = [
        ["ip", "address", "add", f"{host.address}/24", "dev", host.interface],
        ["ip", "link", "set", host.interface, "up"],
        ["ip", "link", "set", "lo", "up"],
    ]
    if rate is not None:
        shape = ["root", "tbf", "rate", rate, "burst", "512kb", "latency", "100ms"]
        inside.append(["tc", "qdisc", "add", "dev", host.interface, *shape])
    for arguments in inside:
        _run(*host.command(arguments))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
