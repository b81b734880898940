"""Write minddp/data/*.json: step profiles of ResNet50 and BERT-base, from their architectures.

    python scripts/make_profiles.py

Sizes follow from the published architectures and are exact. Times are an estimate, in three
parts:

- How backward's time divides among the layers: twice the multiply-adds of the forward pass
  (once for the gradient of the input, once for that of the weight) at the sustained speed of a
  V100, and for element-wise layers the bytes that they move, at its memory bandwidth.
- How long backward takes as a whole: see ``resnet50`` and ``bert_base``.
- Forward takes half of backward; the optimizer reads and writes weight, gradient and momentum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minddp.step_profile import StepProfile

FOLDER = Path(__file__).parents[1] / "minddp" / "data"
FLOPS = 1e13  # sustained, of a V100's 15.7e12 in fp32
MEMORY_BPS = 9e11  # a V100's HBM2
ELEMENT_PASSES = 8  # reads and writes of an activation in the backward of a norm and a ReLU
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Layer:
    """A layer in the order of execution; work is per sample, in the forward pass."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    multiply_adds: float = 0.0
    elements: float = 0.0

    def backward_weight(self) -> float:
        """Seconds of backward per sample on a V100; only the ratios are used."""
        compute = 2 * 2 * self.multiply_adds / FLOPS
        return compute + ELEMENT_PASSES * FLOAT * self.elements / MEMORY_BPS


# ------------------------------------------------------------------------------- ResNets


def conv_and_norm(
    prefix: str, conv: str, norm: str, inputs: int, outputs: int, kernel: int, side: int
) -> Iterator[Layer]:
    """A convolution without bias onto ``side`` x ``side`` pixels, and its batch norm."""
    shape = (outputs, inputs, kernel, kernel)
    pixels = side * side
    macs = inputs * outputs * kernel**2 * pixels
    yield Layer(f"{prefix}{conv}", {"weight": shape}, multiply_adds=macs)
    affine = {"weight": (outputs,), "bias": (outputs,)}
    yield Layer(f"{prefix}{norm}", affine, elements=outputs * pixels)


def resnet(blocks: tuple[int, ...]) -> Iterator[Layer]:
    """He et al. 2015, table 1, bottleneck blocks, 224 x 224 pixels, 1000 classes.

    The stride of 2 sits in the 3 x 3 convolution, as in PyTorch's models.
    """
    yield from conv_and_norm("", "conv1", "bn1", 3, 64, 7, 112)
    inputs, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            prefix = f"layer{stage + 1}.{block}."
            before = side
            if stage > 0 and block == 0:
                side //= 2
            yield from conv_and_norm(prefix, "conv1", "bn1", inputs, width, 1, before)
            yield from conv_and_norm(prefix, "conv2", "bn2", width, width, 3, side)
            yield from conv_and_norm(prefix, "conv3", "bn3", width, 4 * width, 1, side)
            if block == 0:
                shortcut = ("downsample.0", "downsample.1", inputs, 4 * width, 1, side)
                yield from conv_and_norm(prefix, *shortcut)
            inputs = 4 * width
    yield Layer("fc", {"weight": (1000, inputs), "bias": (1000,)}, multiply_adds=1000 * inputs)


# ---------------------------------------------------------------------------------- BERT


def dense(name: str, inputs: int, outputs: int, tokens: int) -> Layer:
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    return Layer(name, shapes, multiply_adds=inputs * outputs * tokens)


def layer_norm(name: str, width: int, tokens: int) -> Layer:
    return Layer(name, {"weight": (width,), "bias": (width,)}, elements=width * tokens)


def bert(layers: int = 12, width: int = 768, tokens: int = 512) -> Iterator[Layer]:
    """Devlin et al. 2018, section 3: BERT-base, 30522 word pieces, sequences of 512."""
    moved = width * tokens
    for name, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        yield Layer(f"embeddings.{name}", {"weight": (rows, width)}, elements=moved)
    yield layer_norm("embeddings.norm", width, tokens)
    for number in range(layers):
        prefix = f"layers.{number}."
        for name in ("query", "key", "value"):
            yield dense(f"{prefix}attention.{name}", width, width, tokens)
        yield Layer(
            f"{prefix}attention.scores", {}, multiply_adds=2 * tokens**2 * width, elements=moved
        )
        yield dense(f"{prefix}attention.output", width, width, tokens)
        yield layer_norm(f"{prefix}attention.norm", width, tokens)
        yield dense(f"{prefix}feed_forward.widen", width, 4 * width, tokens)
        yield dense(f"{prefix}feed_forward.narrow", 4 * width, width, tokens)
        yield layer_norm(f"{prefix}feed_forward.norm", width, tokens)
    yield dense("pooler", width, width, 1)


# ------------------------------------------------------------------------------ profiles


def seconds_per_sample(layers: list[Layer]) -> float:
    return sum(layer.backward_weight() for layer in layers)


def profile(name: str, layers: list[Layer], backward_s: float, source: str) -> StepProfile:
    """Backward runs through the layers from the last to the first."""
    scale = backward_s / seconds_per_sample(layers)
    ready: dict[str, float] = {}
    now = 0.0
    for layer in reversed(layers):
        now += layer.backward_weight() * scale
        ready |= {f"{layer.name}.{part}": min(now, backward_s) for part in layer.shapes}
    sizes = {
        f"{layer.name}.{part}": FLOAT * math.prod(shape)
        for layer in layers
        for part, shape in layer.shapes.items()
    }
    return StepProfile(
        param_bytes=list(sizes.values()),
        ready_s=[round(ready[path], 7) for path in sizes],
        forward_s=round(backward_s / 2, 7),
        optimizer_s=round(5 * sum(sizes.values()) / MEMORY_BPS, 7),
        backward_s=round(backward_s, 7),
        name=name,
        source=source,
        param_names=list(sizes),
    )


def resnet50() -> StepProfile:
    """Backward of ResNet152 takes about 250 ms on a GPU in the DDP paper's figure 2c."""
    small, large = list(resnet((3, 4, 6, 3))), list(resnet((3, 8, 36, 3)))
    backward_s = 0.250 * seconds_per_sample(small) / seconds_per_sample(large)
    source = (
        "sizes: He et al. 2015, table 1 (exact). Time of backward: about 250 ms for ResNet152 on "
        "a V100 in Li et al. 2020, figure 2c (remembered, not confirmed), scaled by the modelled "
        "work of both nets. Shares of the layers: modelled. Nothing here was measured."
    )
    return profile("ResNet50", small, backward_s, source)


def bert_base() -> StepProfile:
    """No time of BERT's backward is known to us: it was fitted."""
    source = (
        "sizes: Devlin et al. 2018, section 3, and the 30522 word pieces of the published uncased "
        "model (exact). Time of backward: 0.32 s, fitted so that the simulated gain of overlap "
        "comes near the 35.2 % of Li et al. 2020, figure 6 (confirmed), whose own BERT may be of "
        "another size. Shares of the layers: modelled. Nothing here was measured."
    )
    return profile("BERT-base", list(bert()), 0.32, source)


def profiles() -> dict[str, StepProfile]:
    """What ships, by the name of its file."""
    return {"resnet50": resnet50(), "bert_base": bert_base()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, step in profiles().items():
        (FOLDER / f"{name}.json").write_text(step.to_json())
        print(f"{name}.json: {len(step.param_bytes)} parameters, {step.total_bytes / 4e6:.3f} M")
