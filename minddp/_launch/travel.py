"""What goes to the ranks and what comes back: pickles by value, with tensors as CPU copies."""

from __future__ import annotations

import linecache
import marshal
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle  # type: ignore[import-untyped]
import torch
import torch.distributed as dist

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class CannotTravel(TypeError):
    """An object that must not be sent; the text continues the sentence "this is"."""

    def __init__(self, text: str, obj: object) -> None:
        super().__init__(text)
        self.obj = obj


class TravelPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickle functions and classes by value, and put tensors aside, as copies.

    A copy on the CPU has no tie to a device, to shared memory or to the process that made it,
    and a small view does not drag its whole storage along. The same tensor object, met twice,
    stays one object. With `outward=True` (towards the ranks) what is bound to this process is
    refused: graphs, wrapped models, process groups.
    """

    def __init__(self, file: BinaryIO, outward: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.outward = outward
        self.tensors: list[torch.Tensor] = []
        self.index: dict[int, int] = {}
        self.known_modules: set[str] = set()
        self.main_objects: dict[str, Any] = {}
        self.source_files: set[str] = set()

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in PLAIN_TENSORS:
            return None
        if self.outward and obj.requires_grad and not obj.is_leaf:
            raise CannotTravel(
                f"a tensor that autograd computed ({type(obj.grad_fn).__name__}); its graph "
                "cannot go to another process. Build the model, or compute the tensor, inside "
                "the function that the ranks run, or pass tensor.detach()",
                obj,
            )
        if id(obj) not in self.index:
            self.index[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self.index[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            # Unlike cloudpickle's own way this keeps the file name, which tracebacks show.
            self.source_files.add(obj.co_filename)
            return marshal.loads, (marshal.dumps(obj),)
        if self.outward and isinstance(obj, torch.nn.Module):
            refuse_wrapped(obj)
        if self.outward and isinstance(obj, dist.ProcessGroup):
            raise CannotTravel(
                "a process group, which belongs to this process. The ranks get a group of "
                "their own; make further ones inside the function that they run",
                obj,
            )
        if isinstance(obj, (type, types.FunctionType)):
            self.note_module_of(obj)
        return super().reducer_override(obj)

    def note_module_of(self, obj: Any) -> None:
        """Remember the names of `__main__`; let modules that no rank could import go by value."""
        name = obj.__module__
        if name == "__main__":
            if "." not in obj.__qualname__:
                self.main_objects[obj.__qualname__] = obj
        elif name not in self.known_modules and name in sys.modules:
            self.known_modules.add(name)
            if not importable(name):
                cloudpickle.register_pickle_by_value(sys.modules[name])


def refuse_wrapped(module: torch.nn.Module) -> None:
    """Raise if `module` is a DDP wrapper, of torch's or ours."""
    ours = hasattr(module, "reduce_gradients") and type(module).__module__.startswith("minddp.")
    if ours or isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise CannotTravel(
            f"a model that is wrapped already (in {type(module).__name__}) for the process "
            "group of this process. Pass the bare model (wrapped.module) and wrap it inside "
            "the function that the ranks run",
            module,
        )


def importable(name: str) -> bool:
    """Whether a fresh process could import the package that module `name` belongs to."""
    package = name.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(finder.find_spec(package, None) is not None for finder in finders)


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares nothing. A leaf keeps `requires_grad`; a graph stays where it is."""
    data = tensor.detach().cpu()
    if tensor.device.type == "cpu" and data.layout == torch.strided:
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


def save(value: Any, path: Path, outward: bool = False) -> None:
    """Write `value` to `path`, and its tensors, if it has any, to a second file beside it."""
    with open(path, "wb") as file:
        pickler = TravelPickler(file, outward)
        pickler.dump(value)
        # The same pickler: what it met before stays the same object.
        pickler.dump((pickler.main_objects, sources(pickler.source_files)))
    if pickler.tensors:
        torch.save([copy_to_cpu(tensor) for tensor in pickler.tensors], tensors_path(path))


def load(path: Path) -> Any:
    return load_all(path)[0]


def load_all(path: Path) -> tuple[Any, dict[str, Any], dict[str, list[str]]]:
    """The value; the classes and functions of `__main__` in it; the text of their cells."""
    tensors: list[torch.Tensor] = []
    if tensors_path(path).exists():
        tensors = torch.load(tensors_path(path), weights_only=False)
    with open(path, "rb") as file:
        unpickler = TravelUnpickler(file, tensors)
        value = unpickler.load()
        main_objects, source_lines = unpickler.load()
    return value, main_objects, source_lines


def sources(file_names: set[str]) -> dict[str, list[str]]:
    """The lines of notebook cells and REPL input, which exist in no file."""
    lines = {name: linecache.getlines(name) for name in file_names if not os.path.exists(name)}
    return {name: text for name, text in lines.items() if text}


def tensors_path(path: Path) -> Path:
    return path.with_name(path.name + ".tensors")
