"""What goes to the ranks and what comes back: pickles by value, with tensors as CPU copies."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import torch

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class TravelPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickle functions and classes by value, and put tensors aside, as copies.

    A copy on the CPU has no tie to a device, to a file in shared memory or to the process that
    made it, and a small view does not drag its whole storage along. The same tensor object,
    met twice, stays one object.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.originals: list[torch.Tensor] = []
        self.index: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in PLAIN_TENSORS:
            return None
        if id(obj) not in self.index:
            self.index[id(obj)] = len(self.originals)
            self.originals.append(obj)
        return self.index[id(obj)]


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares nothing. A leaf keeps `requires_grad`; a graph stays where it is."""
    data = tensor.detach().cpu()
    if data.layout == torch.strided and data.data_ptr() == tensor.data_ptr():
        data = data.clone()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
    return data.requires_grad_(tensor.requires_grad and tensor.is_leaf)


class TravelUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, index: int) -> torch.Tensor:
        return self.tensors[index]


def save(value: Any, path: Path) -> None:
    """Write `value` to `path`, and its tensors, if any, to a second file beside it."""
    with open(path, "wb") as file:
        pickler = TravelPickler(file)
        pickler.dump(value)
    if pickler.originals:
        torch.save([copy_to_cpu(t) for t in pickler.originals], tensors_path(path))


def load(path: Path) -> Any:
    tensors: list[torch.Tensor] = []
    if tensors_path(path).exists():
        tensors = torch.load(tensors_path(path), weights_only=False)
    with open(path, "rb") as file:
        return TravelUnpickler(file, tensors).load()


def tensors_path(path: Path) -> Path:
    return path.with_name(path.name + ".tensors")
