"""The doctor: every line can be ok, and every line can say what is wrong and what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

import minddp
from minddp import doctor
from minddp.doctor import machine, ranks, software


def is_told(finding, status, *words):
    """The status is the one wanted, the words are in the line, and bad news comes with advice."""
    assert finding.status == status, finding
    assert all(word in finding.found + finding.advice for word in words), finding
    assert status == "ok" or finding.advice


def test_a_healthy_machine_is_ready(capsys):
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "ready for the course"
    names = ["python", "torch", "gloo", "GPUs", "cores", "loopback", "host name"]
    names += ["shared memory", "start method", "course packages", "2-rank launch"]
    found = [line for line in lines if line.startswith(("ok ", "warning ", "failure "))]
    for line, name in zip(found, names, strict=True):
        assert line.split(None, 1)[1].startswith(name)


def test_json_is_one_object_and_the_exit_code_follows_the_failures(capsys, monkeypatch):
    well = doctor.Finding("a", "ok", "fine")
    warned = doctor.Finding("b", "warning", "so so", "look")
    ill = doctor.Finding("c", "failure", "broken", "mend it")
    for findings, ok in (([well, warned], True), ([well, ill], False)):
        monkeypatch.setattr(doctor, "CHECKS", [lambda f=f: f for f in findings])
        assert doctor.main(["--json"]) == (0 if ok else 1)
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] is ok
        assert report["checks"][1]["advice"] == findings[1].advice


def test_a_failure_is_named_with_the_way_out(capsys, monkeypatch):
    ill = doctor.Finding("loopback", "failure", "refused", "allow 127.0.0.1")
    monkeypatch.setattr(doctor, "CHECKS", [lambda: ill])
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "-> allow 127.0.0.1" in out and out.endswith("stopped by: loopback\n")


def test_a_check_that_breaks_is_a_failure_and_the_others_run():
    def check_the_moon():
        raise RuntimeError("clouds")

    first, second = doctor.examine([check_the_moon, software.check_gloo])
    is_told(first, "failure", "RuntimeError: clouds")
    assert first.name == "the moon" and second.status == "ok"


def test_essentials_leave_out_what_differs_between_machines():
    findings = [
        doctor.Finding("torch", "ok", "2.13.0"),
        doctor.Finding("cores", "warning", "1", "x"),
    ]
    assert doctor.essentials(findings) == "torch            ok"


@pytest.mark.parametrize(
    "version, status", [((3, 9, 1), "failure"), ((3, 10, 0), "ok"), ((3, 14, 0), "warning")]
)
def test_python_versions(monkeypatch, version, status):
    monkeypatch.setattr(software.sys, "version_info", version)
    is_told(software.check_python(), status, ".".join(map(str, version)))


def test_torch_too_old(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    is_told(software.check_torch(), "failure", "2.3.1", "torch>=2.4")
    monkeypatch.setattr(torch, "__version__", "2.10.0a0+git")
    is_told(software.check_torch(), "ok")


def test_torch_that_computes_wrongly(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__mul__", lambda self, other: self + other)
    is_told(software.check_torch(), "failure", "came out as tensor([2.])")


def test_torch_without_gloo(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    is_told(software.check_gloo(), "failure", "gloo")


@pytest.mark.parametrize("nccl, status", [(True, "ok"), (False, "warning")])
def test_gpus_with_and_without_nccl(monkeypatch, nccl, status):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Card X")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    is_told(software.check_gpus(), status, "2 (Card X)", "NCCL")


def test_missing_course_packages(monkeypatch):
    monkeypatch.setattr(software, "COURSE_PACKAGES", ("json", "no_such_package"))
    is_told(software.check_course_packages(), "warning", "missing: no_such_package", "[course]")


def test_one_core(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    is_told(machine.check_cores(), "warning", "1 usable")


def test_cores_are_those_that_this_process_may_use():
    code = "from minddp.doctor.machine import usable_cores; print(usable_cores())"
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not bind processes to cores")
    one = {min(os.sched_getaffinity(0))}
    result = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {one}); {code}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout.strip() == "1"


def test_loopback_refused(monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionRefusedError("refused by a firewall")

    monkeypatch.setattr(socket, "create_connection", refuse)
    is_told(machine.check_loopback(), "failure", "firewall", "127.0.0.1")


def test_host_name_unknown_and_slow(monkeypatch):
    def unknown(*args):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    is_told(machine.check_host_name(), "warning", "does not resolve", socket.gethostname())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: [])
    ticks = iter([0.0, 3.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    is_told(machine.check_host_name(), "warning", "3.0 s")


def test_shared_memory_small_and_absent(monkeypatch, tmp_path):
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(machine, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**26, 0, 2**26))
    is_told(machine.check_shared_memory(), "warning", "64 MB", "--shm-size")
    monkeypatch.setattr(machine, "SHARED_MEMORY", str(tmp_path / "absent"))
    is_told(machine.check_shared_memory(), "ok", "absent")


def test_start_methods(monkeypatch):
    monkeypatch.setattr(ranks.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    is_told(ranks.check_start_method(), "ok", "spawn")


def test_a_launch_that_fails_or_adds_wrongly(monkeypatch):
    def refuse(*args, **kwargs):
        raise TimeoutError("rank 1 never came\nand more")

    monkeypatch.setattr(minddp, "launch", refuse)
    is_told(ranks.check_launch(), "failure", "TimeoutError: rank 1 never came")
    monkeypatch.setattr(minddp, "launch", lambda *args, **kwargs: [3.0, 2.0])
    is_told(ranks.check_launch(), "failure", "[3.0, 2.0]")
