"""Checkpoints: resumable, written by the root alone, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minddp import checkpoint
from minddp.checkpoint import CheckpointError, on_root, read_checkpoint, write_checkpoint
from minddp.launcher import RankFailed, launch
from minddp.trainer import Trainer
from tests.train.small import largest_difference, small, train_on


@pytest.fixture(scope="module")
def undisturbed() -> list[float]:
    return train_on(2, small(steps=20))[0].losses


def test_a_resumed_run_has_the_losses_of_an_undisturbed_one(tmp_path, undisturbed):
    path = str(tmp_path / "run.pt")
    train_on(2, small(steps=11, checkpoint=path))
    resumed = train_on(2, small(steps=20, checkpoint=path))
    for result in resumed:
        assert result.losses == undisturbed  # to the last bit
    # What decides the next steps is there too: AdamW's two averages for each parameter.
    state = torch.load(path, weights_only=True)
    assert state["step"] == 20
    assert len(state["optimizer"]["state"]) == len(state["model"])


def test_another_number_of_ranks_may_go_on(tmp_path, undisturbed):
    path = str(tmp_path / "run.pt")
    train_on(3, small(steps=11, checkpoint=path, ddp_backend="c10d"))
    resumed = train_on(1, small(steps=20, checkpoint=path))[0]
    assert largest_difference(resumed.losses, undisturbed) < 1e-4


def test_a_finished_run_is_not_trained_further(tmp_path):
    path = str(tmp_path / "run.pt")
    first = train_on(1, small(steps=3, checkpoint=path))[0]
    before = Path(path).read_bytes()
    assert train_on(1, small(steps=3, checkpoint=path))[0].losses == first.losses
    assert Path(path).read_bytes() == before


def save_under_own_name(folder: str) -> str:
    trainer = Trainer(small(steps=2))
    trainer.fit()
    path = Path(folder) / f"rank{trainer.rank}" / "run.pt"
    trainer.save(path)
    return path.parent.name


def test_the_root_alone_writes(tmp_path):
    names = launch(save_under_own_name, str(tmp_path), world_size=3, prints="off")
    assert names == ["rank0", "rank1", "rank2"]
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["rank0", "rank0/run.pt"]


def resume_under_own_name(folder: str) -> tuple[bool, float]:
    trainer = Trainer(small(steps=2))
    found = trainer.resume(Path(folder) / f"rank{trainer.rank}" / "run.pt")
    return found, sum(p.double().sum().item() for p in trainer.model.parameters())


def test_only_the_roots_machine_needs_the_file(tmp_path):
    launch(save_under_own_name, str(tmp_path), prints="off")
    (found0, sum0), (found1, sum1) = launch(resume_under_own_name, str(tmp_path), prints="off")
    assert found0 and found1
    assert sum0 == sum1


def fill_the_disk(path: str) -> str:
    def save_half(state, file):
        file.write(b"half a check")
        raise OSError(28, "No space left on device")

    checkpoint.torch.save = save_half
    try:
        write_checkpoint(path, {"step": 2})
    except OSError as error:
        dist.barrier()  # nobody is left behind in a collective
        return str(error)
    return "no error"


def test_a_failing_write_leaves_the_old_checkpoint_whole_and_tells_every_rank(tmp_path):
    path = tmp_path / "run.pt"
    write_checkpoint(path, {"step": 1})
    said = launch(fill_the_disk, str(path), world_size=3, prints="off")
    assert said == ["[Errno 28] No space left on device"] * 3
    assert read_checkpoint(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


def die_while_writing(path: str) -> None:
    def save_half(state, file):
        file.write(b"half a check")
        file.flush()
        os._exit(9)

    checkpoint.torch.save = save_half
    write_checkpoint(path, {"step": 2})


def test_death_in_the_middle_of_writing_leaves_the_old_checkpoint_whole(tmp_path):
    path = tmp_path / "run.pt"
    write_checkpoint(path, {"step": 1})
    with pytest.raises(RankFailed):
        launch(die_while_writing, str(path), prints="off")
    assert read_checkpoint(path)["step"] == 1
    write_checkpoint(path, {"step": 3})  # the left-over of the dead one is no obstacle
    assert read_checkpoint(path)["step"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


def test_a_folder_is_made_and_a_missing_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "new" / "folder" / "run.pt"
    assert read_checkpoint(path) is None
    write_checkpoint(path, {"step": 1})
    assert read_checkpoint(path)["step"] == 1


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"half a check" * 1000], ids=["empty", "text", "long"]
)
def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path, content):
    path = tmp_path / "run.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.pt cannot be read.*--checkpoint"):
        read_checkpoint(path)


def test_another_programs_file_is_refused(tmp_path):
    torch.save({"model": {}}, tmp_path / "run.pt")
    with pytest.raises(CheckpointError, match="is not a 'minddp checkpoint 1' file"):
        read_checkpoint(tmp_path / "run.pt")


def resume_with_another_seed(path: str) -> str:
    try:
        Trainer(small(seed=1, batch_size=8)).resume(path)
    except CheckpointError as error:
        return str(error)
    return "no error"


def test_the_checkpoint_of_another_run_is_refused_on_every_rank(tmp_path):
    path = tmp_path / "run.pt"
    trainer = Trainer(small())
    trainer.save(path)
    for said in launch(resume_with_another_seed, str(path), prints="off"):
        assert "batch_size is 7 there, 8 here" in said
        assert "seed is 0 there, 1 here" in said
        assert "n_embd" not in said


def ask_the_root() -> tuple[int, str]:
    rank = on_root(lambda: dist.get_rank())
    try:
        on_root(lambda: [][dist.get_rank()])
    except IndexError as error:
        return rank, str(error)
    return rank, "no error"


def test_on_root_gives_everybody_the_roots_answer_or_error():
    assert launch(ask_the_root, world_size=3, prints="off") == [(0, "list index out of range")] * 3
    assert on_root(lambda: 5) == 5  # without a group
