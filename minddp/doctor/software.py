"""The doctor's look at what is installed."""

from __future__ import annotations

import importlib.util
import sys

import torch
import torch.distributed as dist

from .finding import Finding

COURSE_PACKAGES = ("jupyterlab", "nbval", "matplotlib", "ipywidgets", "tqdm")


def check_python() -> Finding:
    """Python 3.10 to 3.13 is what the course supports."""
    version = tuple(sys.version_info[:3])
    found = ".".join(str(part) for part in version)
    if version < (3, 10):
        return Finding("python", "failure", found, "install Python 3.10 or newer")
    if version >= (3, 14):
        return Finding("python", "warning", found, "not tried yet: 3.10 to 3.13 are supported")
    return Finding("python", "ok", found)


def check_torch() -> Finding:
    """torch 2.4 or newer, able to compute a gradient."""
    version = torch.__version__
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < (2, 4):
        return Finding("torch", "failure", version, "pip install 'torch>=2.4'")
    x = torch.tensor([3.0], requires_grad=True)
    (x * x).sum().backward()
    if x.grad is None or x.grad.item() != 6.0:
        advice = f"reinstall torch: the gradient of x*x at 3 came out as {x.grad}, not 6"
        return Finding("torch", "failure", version, advice)
    return Finding("torch", "ok", version)


def check_gloo() -> Finding:
    """gloo carries the collectives between processes on the CPU."""
    if not dist.is_available() or not dist.is_gloo_available():
        advice = "this build of torch has no gloo: install torch's ordinary wheel with pip"
        return Finding("gloo", "failure", "not in this torch", advice)
    return Finding("gloo", "ok", "in this torch")


def check_gpus() -> Finding:
    """NCCL is used only where each rank has a GPU; none is needed."""
    count = torch.cuda.device_count()
    if count == 0:
        return Finding("GPUs", "ok", "none, and none needed: ranks use gloo on the CPU")
    names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
    if not dist.is_nccl_available():
        advice = "ranks will use gloo on the CPU; for NCCL install torch's CUDA wheel"
        return Finding("GPUs", "warning", f"{count} ({names}), but torch has no NCCL", advice)
    return Finding("GPUs", "ok", f"{count} ({names}): NCCL for up to {count} ranks, else gloo")


def check_course_packages() -> Finding:
    """What the notebooks import beyond torch."""
    missing = [name for name in COURSE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        advice = "pip install -e '.[course]'"
        return Finding("course packages", "warning", "missing: " + ", ".join(missing), advice)
    return Finding("course packages", "ok", "all there")
