"""The doctor's look at the machine: cores, sockets, shared memory."""

from __future__ import annotations

import os
import shutil
import socket
import time

import torch

from .finding import Finding

SHARED_MEMORY = "/dev/shm"
SHARED_MEMORY_WANTED = 256 * 2**20  # bytes: a few DataLoader workers with small batches
SLOW_LOOKUP = 1.0  # seconds


def usable_cores() -> int:
    """Cores that this process may use, which a container can hold below the machine's number."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_cores() -> Finding:
    """Two ranks that compute at the same time need two cores."""
    cores = usable_cores()
    found = f"{cores} usable, torch computes with {torch.get_num_threads()} thread(s) here"
    if cores < 2:
        advice = "ranks will take turns: results are right, timelines will show little overlap"
        return Finding("cores", "warning", found, advice)
    return Finding("cores", "ok", found)


def check_loopback() -> Finding:
    """A byte must travel from 127.0.0.1 to itself: ranks on one host talk over it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=5) as client:
                peer, _ = server.accept()
                with peer:
                    client.sendall(b"x")
                    peer.settimeout(5)
                    arrived = peer.recv(1) == b"x"
    except OSError as error:
        advice = "allow connections to 127.0.0.1 (firewall, or the container's network is off)"
        return Finding("loopback", "failure", str(error), advice)
    if not arrived:
        return Finding("loopback", "failure", "a byte was lost", "look at the firewall's rules")
    return Finding("loopback", "ok", "127.0.0.1 answers")


def check_host_name() -> Finding:
    """torchrun over several hosts looks the host's name up; `minddp.launch` does not."""
    name = socket.gethostname()
    advice = f"only torchrun over several hosts needs it: add '127.0.0.1 {name}' to the hosts file"
    start = time.monotonic()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return Finding("host name", "warning", f"{name} does not resolve ({error})", advice)
    seconds = time.monotonic() - start
    if seconds > SLOW_LOOKUP:
        return Finding("host name", "warning", f"{name} took {seconds:.1f} s to resolve", advice)
    return Finding("host name", "ok", f"{name} resolves")


def check_shared_memory() -> Finding:
    """DataLoader workers hand batches over through /dev/shm; containers often give it 64 MB."""
    if not os.path.isdir(SHARED_MEMORY):
        return Finding("shared memory", "ok", f"this system has no {SHARED_MEMORY} and needs none")
    free = shutil.disk_usage(SHARED_MEMORY).free
    found = f"{free / 2**20:.0f} MB free in {SHARED_MEMORY}"
    if free < SHARED_MEMORY_WANTED:
        advice = "DataLoader workers may die: start the container with --shm-size=1g"
        return Finding("shared memory", "warning", found, advice)
    return Finding("shared memory", "ok", found)
