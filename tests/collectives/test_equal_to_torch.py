"""Our collectives give what torch's give, on real gloo ranks."""

import pytest
import torch
import torch.distributed as dist

from minddp import collectives
from minddp.launcher import launch

WORLD_SIZES = [1, 2, 3, 4, 5, 8]
ALL_REDUCES = ["star_all_reduce", "tree_all_reduce", "ring_all_reduce"]
OPS = ["SUM", "PRODUCT", "MIN", "MAX"]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


def whole_numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers that differ by rank: sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randint(0, 3, shape, generator=generator).to(dtype)


def layouts() -> dict[str, torch.Tensor]:
    """Tensors of every kind of shape and strides; numel is seldom a multiple of the ranks."""
    flat = {f"{numel} elements": whole_numbers(numel) for numel in (*range(12), 101)}
    return flat | {
        "a scalar": whole_numbers(),
        "transposed": whole_numbers(5, 7).t(),
        "every third": whole_numbers(50)[::3],
        "inner block": whole_numbers(6, 6, 6)[1:4, 2:5, 3:],
        "channels last": whole_numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "a parameter": torch.nn.Parameter(whole_numbers(3, 5)),
    }


def operators() -> list[tuple[str, str, torch.Tensor]]:
    """Every operation in every dtype that gloo takes."""
    cases = [(f"{dtype}", op, whole_numbers(13, dtype=dtype)) for dtype in DTYPES for op in OPS]
    return [*cases, ("complex64", "SUM", whole_numbers(7, dtype=torch.complex64))]


def all_reduce_differences() -> list[str]:
    """Where an all-reduce differs from torch's."""
    cases = [(name, "SUM", tensor) for name, tensor in layouts().items()]
    if dist.get_world_size() in (2, 3):
        cases += operators()
    different = []
    for name, op, tensor in cases:
        before = tensor.detach().clone()
        expected = before.clone()
        dist.all_reduce(expected, getattr(dist.ReduceOp, op))
        for algorithm in ALL_REDUCES:
            returned = getattr(collectives, algorithm)(tensor, getattr(dist.ReduceOp, op))
            if returned is not None or not torch.equal(tensor.detach(), expected):
                different.append(f"{algorithm} {op} of {name}")
            tensor.detach().copy_(before)
    return different


def neighbours_touched() -> list[str]:
    """Algorithms that write next to the view that they were given."""
    touched = []
    for algorithm in ALL_REDUCES:
        storage = torch.full((40,), -1.0)
        view = storage[5:35:3]
        view.fill_(1.0)
        getattr(collectives, algorithm)(view)
        view.fill_(-1.0)
        if not torch.equal(storage, torch.full((40,), -1.0)):
            touched.append(algorithm)
    return touched


def results_of_random_floats() -> list[torch.Tensor]:
    """Sums in which the order of additions matters."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    start = torch.randn(1001, generator=generator)
    results = []
    for algorithm in ALL_REDUCES:
        tensor = start.clone()
        getattr(collectives, algorithm)(tensor)
        results.append(tensor)
    dist.all_reduce(start)
    return [*results, start]


def test_replicas_get_the_same_bits_and_views_keep_their_surroundings() -> None:
    by_rank = launch(lambda: (results_of_random_floats(), neighbours_touched()), world_size=5)
    first, _ = by_rank[0]
    for results, touched in by_rank:
        assert touched == []
        for mine, rank_0s in zip(results, first, strict=True):
            assert torch.equal(mine, rank_0s)
            torch.testing.assert_close(mine, results[-1])


def rooted_differences() -> list[str]:
    """Where broadcast and reduce differ from torch's, for every root."""
    different = []
    for root in range(dist.get_world_size()):
        for name, start in (("odd", whole_numbers(11)), ("transposed", whole_numbers(3, 4).t())):
            for shape in ("star", "tree"):
                expected, mine = start.clone(), start.clone()
                dist.broadcast(expected, root)
                getattr(collectives, f"{shape}_broadcast")(mine, root)
                if not torch.equal(mine, expected):
                    different.append(f"{shape} broadcast of {name} from {root}")

                expected, mine = start.clone(), start.clone()
                dist.reduce(expected, root)
                getattr(collectives, f"{shape}_reduce")(mine, root)
                wanted = expected if dist.get_rank() == root else start
                if not torch.equal(mine, wanted):
                    different.append(f"{shape} reduce of {name} to {root}")
    return different


def scatter_and_gather_differences() -> list[str]:
    """Where reduce_scatter and all_gather differ from torch's, and from the sums if uneven."""
    rank, size, different = dist.get_rank(), dist.get_world_size(), []

    pieces = [whole_numbers(3, 2) + r for r in range(size)]
    kept = [piece.clone() for piece in pieces]
    expected, mine = torch.zeros(3, 2), torch.zeros(3, 2)
    dist.reduce_scatter(expected, [piece.clone() for piece in pieces])
    collectives.reduce_scatter(mine, pieces)
    if not torch.equal(mine, expected):
        different.append("reduce_scatter")
    if not all(map(torch.equal, pieces, kept)):
        different.append("reduce_scatter changed its inputs")

    gathered, ours = ([torch.zeros(2, 3).t() for _ in range(size)] for _ in range(2))
    dist.all_gather(gathered, whole_numbers(3, 2))
    collectives.all_gather(ours, whole_numbers(3, 2))
    if not all(map(torch.equal, ours, gathered)):
        different.append("all_gather")

    uneven = [torch.full((r,), float(rank)) for r in range(size)]
    total = torch.zeros(rank)
    collectives.reduce_scatter(total, uneven)
    if not torch.equal(total, torch.full((rank,), float(sum(range(size))))):
        different.append("uneven reduce_scatter")
    ours = [torch.zeros(r) for r in range(size)]
    collectives.all_gather(ours, torch.full((rank,), float(rank)))
    if not all(torch.equal(piece, torch.full((r,), float(r))) for r, piece in enumerate(ours)):
        different.append("uneven all_gather")
    return different


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_equal_to_torch(world_size: int) -> None:
    def differences() -> list[str]:
        everything = (all_reduce_differences, rooted_differences, scatter_and_gather_differences)
        return [difference for find in everything for difference in find()]

    for rank, different in enumerate(launch(differences, world_size=world_size)):
        assert different == [], f"rank {rank}"


def in_two_groups() -> list[str]:
    """The same inside groups whose positions are not the global ranks."""
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2, 4])
    group, root = (odd, 3) if dist.get_rank() % 2 else (even, 4)
    different = []
    for name in (*ALL_REDUCES, "star_broadcast", "tree_broadcast", "star_reduce", "tree_reduce"):
        mine, expected = whole_numbers(11), whole_numbers(11)
        kind = name.split("_", 1)[1]
        options = {} if kind == "all_reduce" else {"src" if kind == "broadcast" else "dst": root}
        getattr(collectives, name)(mine, **options, group=group)
        getattr(dist, kind)(expected, **options, group=group)
        has_result = kind != "reduce" or dist.get_rank() == root
        if has_result and not torch.equal(mine, expected):
            different.append(name)
    return different


def test_groups() -> None:
    assert launch(in_two_groups, world_size=5) == [[]] * 5
