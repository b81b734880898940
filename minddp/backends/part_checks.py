"""Do model, optimizer, data and scheduler belong together? Asked before anything is wrapped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader


def check_parts(model: Any, optimizer: Any, training_data: Any, lr_scheduler: Any) -> None:
    """Raise TypeError or ValueError for parts of a training that do not fit each other."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {model!r}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {optimizer!r}")
    if training_data is not None and not isinstance(training_data, DataLoader):
        raise TypeError(
            f"training_data must be a DataLoader with the global batch size, not a "
            f"{type(training_data).__name__}"
        )
    if training_data is not None and training_data.batch_size is None:
        raise ValueError(
            "the DataLoader has a batch_sampler of its own, or no batches, and cannot be split: "
            "give one with batch_size, or keep yours and leave training_data out"
        )
    if optimizer is not None:
        _check_parameters(model, optimizer)
    of_scheduler = getattr(lr_scheduler, "optimizer", optimizer)
    if of_scheduler is not optimizer:
        raise ValueError("lr_scheduler belongs to another optimizer than the one given with it")


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What is not the model's would be trained on each rank by itself, and drift apart."""
    known = {id(param) for param in model.parameters()}
    held = [param for group in optimizer.param_groups for param in group["params"]]
    strangers = [param for param in held if id(param) not in known]
    if strangers:
        raise ValueError(
            f"the optimizer holds {len(strangers)} tensors, the first of shape "
            f"{tuple(strangers[0].shape)}, that are not parameters of this "
            f"{type(model).__name__}; their gradients would not be averaged. Make the optimizer "
            "from model.parameters(), after any change of them"
        )
