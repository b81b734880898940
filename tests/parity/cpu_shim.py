"""Let tests that were written for GPUs run on the CPU.

Torch's GPU tests of DDP ask for `cuda:RANK` everywhere although what they check has nothing to
do with the device. The shim answers each request for a GPU with the CPU:

* the decorators that skip a test for want of GPUs let it run;
* `device=` and `.to(...)` with a CUDA device or a bare number mean the CPU, `.cuda()` returns
  the tensor as it is, and the calls of `torch.cuda` that select a device or wait for it do
  nothing;
* `init_device_mesh("cuda", ...)` makes a mesh of CPUs;
* `device_ids` and `output_device` are dropped before the class under test sees them, because
  they must be None for a module on the CPU. This patches `__init__` in place rather than
  deriving a class, so that pickle still finds the class by its name;
* one input is made smaller: see `SMALLER`.

Nothing that a test checks is touched. `install()` comes before the test module is imported;
`cpu_devices()` is entered in each rank around the test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")

# test_ddp_uneven_inputs feeds images of 1000 x 1000 pixels to three convolutions, some hundred
# times: hours on a CPU. It checks that the ranks stay in step, which small images show as well.
SMALLER = {(1, 1, 1000, 1000): (1, 1, 20, 20)}

_GPU_DECORATORS = (
    "skip_if_lt_x_gpu",
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
)


def install(ddp_class: type) -> None:
    """Patch torch so that its GPU tests of `ddp_class` run on the CPU."""
    _let_tests_run()
    _drop_device_ids(ddp_class)
    _silence_cuda()


def _let_tests_run() -> None:
    from torch.testing._internal import common_distributed

    def keep(*_args: Any, **_kwargs: Any) -> Callable[[Any], Any]:
        return lambda test: test

    for name in _GPU_DECORATORS:
        setattr(common_distributed, name, keep)
    common_distributed.skip_if_no_gpu = lambda test: test


def _drop_device_ids(ddp_class: type) -> None:
    original = ddp_class.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_ids", None)
        kwargs.pop("output_device", None)
        original(self, *args, **kwargs)

    ddp_class.__init__ = init  # type: ignore[misc]


def _silence_cuda() -> None:
    from torch.distributed import device_mesh

    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, nothing)
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment, return-value]

    make_mesh, move = device_mesh.init_device_mesh, torch.nn.Module.to
    device_mesh.init_device_mesh = lambda _kind, shape, **kwargs: make_mesh("cpu", shape, **kwargs)
    torch.nn.Module.to = lambda self, *args, **kwargs: move(  # type: ignore[method-assign]
        self, *map(_to_cpu, args), **kwargs
    )


def _to_cpu(value: Any) -> Any:
    """The CPU where `value` names a GPU (`0`, `"cuda"`, `torch.device("cuda:1")`)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return CPU
    if isinstance(value, str | torch.device) and str(value).startswith("cuda"):
        return CPU
    return value


class _CpuDevices(TorchFunctionMode):
    """Rewrite the device of every torch call that names one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *map(_to_cpu, args[1:]))
        if func is torch.ones and args in SMALLER:
            args = SMALLER[args]
        if "device" in kwargs:
            kwargs["device"] = _to_cpu(kwargs["device"])
        return func(*args, **kwargs)


def cpu_devices() -> TorchFunctionMode:
    """Context in which a torch call that names a GPU gets the CPU."""
    return _CpuDevices()
