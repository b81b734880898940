"""The text and its batches."""

from __future__ import annotations

import pytest
import torch

from minddp.text import CharText, batch_starts, cut_rows, held_out_starts, reference_text


@pytest.fixture(scope="module")
def text() -> CharText:
    return CharText(reference_text())


def test_is_the_reference_manual(text):
    whole = text.decode(text.train) + text.decode(text.held_out)
    assert whole == reference_text()
    assert 'The "while" statement' in whole
    assert len(whole) > 300_000
    assert 80 <= len(text.vocabulary) <= 200


def test_a_tenth_is_held_out(text):
    share = len(text.held_out) / (len(text.train) + len(text.held_out))
    assert share == pytest.approx(0.1, abs=1e-4)


def test_numbers_and_characters_are_each_others_inverse(text):
    assert text.decode(text.encode("while True:\n    pass")) == "while True:\n    pass"
    assert text.encode("aba").dtype == torch.int64


def test_fingerprint_tells_texts_and_cuts_apart():
    prints = {
        CharText("hello world").fingerprint(),
        CharText("hello worle").fingerprint(),
        CharText("hello world", held_out_share=0.5).fingerprint(),
    }
    assert len(prints) == 3
    assert CharText("hello world").fingerprint() in prints


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_held_out_share_outside_of_0_to_1_is_refused(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        CharText("hello", share)


def test_a_batch_is_a_function_of_seed_and_step():
    def batch(seed, step):
        return batch_starts(1000, rows=8, length=16, seed=seed, step=step)

    assert batch(0, 3) == batch(0, 3)
    # Seed and step are not simply added: seed 1 is not seed 0 one step later.
    assert len({tuple(batch(seed, step)) for seed in range(4) for step in range(4)}) == 16


def test_batches_reach_the_whole_text_and_no_further():
    starts = {s for step in range(300) for s in batch_starts(40, 8, length=16, seed=0, step=step)}
    # The last row starts at 23: inputs 23..38, targets 24..39.
    assert starts == set(range(24))


def test_targets_are_the_inputs_one_character_on():
    inputs, targets = cut_rows(torch.arange(100), [5, 90], length=9)
    assert inputs.tolist() == [list(range(5, 14)), list(range(90, 99))]
    assert torch.equal(targets, inputs + 1)


def test_no_rows_give_empty_tensors():
    inputs, targets = cut_rows(torch.arange(100), [], length=9)
    assert inputs.shape == targets.shape == (0, 9)


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 100])
def test_held_out_windows_do_not_overlap(rows):
    starts = held_out_starts(text_length=61, rows=rows, length=10)
    assert len(starts) == min(rows, 6)
    assert all(later - earlier >= 10 for earlier, later in zip(starts, starts[1:], strict=False))
    assert starts[0] == 0 and starts[-1] + 10 <= 60
