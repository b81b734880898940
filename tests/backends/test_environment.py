"""A rank's place from its environment: all faults at once, and Slurm's words for it."""

import pytest

from minddp.backends.environment import first_host, place_from_environment

WHOLE = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}


def test_a_whole_environment():
    place = place_from_environment(WHOLE)
    assert (place.rank, place.world_size, place.local_rank) == (1, 4, 1)
    assert (place.address, place.port) == ("10.0.0.1", 29500)


FAULTS = {
    "nothing": (
        {},
        ["RANK is not set", "WORLD_SIZE is not set", "MASTER_ADDR is not", "MASTER_PORT is not"],
    ),
    "RANK alone": (
        {"RANK": "0"},
        ["WORLD_SIZE is not set", "MASTER_ADDR is not", "MASTER_PORT is not"],
    ),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "2"}, ["RANK is not set", "MASTER_ADDR is not set"]),
    "no number": (WHOLE | {"RANK": "x"}, ["RANK='x' is not a whole number"]),
    "negative": (WHOLE | {"RANK": "-1"}, ["RANK='-1' is not a whole number of 0 or more"]),
    "rank of too few": (WHOLE | {"RANK": "4"}, ["RANK=4 is not below WORLD_SIZE=4"]),
    "port": (WHOLE | {"MASTER_PORT": "70000"}, ["MASTER_PORT=70000 is no port"]),
    "port 0": (WHOLE | {"MASTER_PORT": "0"}, ["MASTER_PORT=0 is no port"]),
    "local": (
        WHOLE | {"RANK": "2", "LOCAL_RANK": "2"},
        ["LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"],
    ),
    "local above": (WHOLE | {"RANK": "0"}, ["LOCAL_RANK=1 is above RANK=0"]),
    "empty": (WHOLE | {"MASTER_ADDR": ""}, ["MASTER_ADDR is not set"]),
    "several": (
        {"RANK": "x", "WORLD_SIZE": "0", "MASTER_PORT": "66660", "LOCAL_RANK": "one"},
        ["RANK='x'", "MASTER_ADDR is not set", "MASTER_PORT=66660", "LOCAL_RANK='one'"],
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_every_fault_is_listed_with_the_ways_to_start(case):
    environment, faults = FAULTS[case]
    with pytest.raises(ValueError) as caught:
        place_from_environment(environment)
    for text in (*faults, "torchrun --nproc-per-node", "minddp.launch", "DummyBackend()"):
        assert text in str(caught.value)
    assert str(caught.value).count("\n  - ") == len(faults) + (case == "WORLD_SIZE alone")


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "gpu[03-05,9],cpu1",
}


def test_slurm():
    place = place_from_environment(SLURM)
    assert (place.rank, place.world_size, place.local_rank) == (5, 8, 1)
    assert (place.address, place.port) == ("gpu03", 15000 + 123456 % 15000)
    nodes = []
    for rank in range(8):  # dealt out to the hosts in turn
        dealt = {"SLURM_LOCALID": rank // 3, "SLURM_NODEID": rank % 3, "SLURM_PROCID": rank}
        words = {name: str(number) for name, number in dealt.items()}
        nodes.append(place_from_environment(SLURM | words).node)
    assert nodes[:3] == nodes[3:6] and len(set(nodes)) == 3


def test_slurm_step_wins_over_job_and_master_over_both():
    step = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NODELIST": "gpu04"}
    place = place_from_environment(SLURM | step)
    assert (place.world_size, place.address) == (6, "gpu04")
    place = place_from_environment(SLURM | {"MASTER_ADDR": "here", "MASTER_PORT": "999"})
    assert (place.address, place.port) == ("here", 999)


def test_torchrun_inside_slurm_is_torchrun():
    assert place_from_environment(SLURM | WHOLE | {"GROUP_RANK": "0"}).rank == 1


def test_half_of_slurm_lists_what_is_missing():
    with pytest.raises(ValueError, match=r"WORLD_SIZE is not set\n.*MASTER_ADDR is not set"):
        place_from_environment({"SLURM_PROCID": "0"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node7", "node7"),
        ("node7,node9", "node7"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[9,11]", "gpu9"),
        ("rack[1-2]n[03-04].net,x", "rack1n03.net"),
    ],
)
def test_first_host(hosts, first):
    assert first_host(hosts) == first


def test_hosts_are_told_apart_by_what_is_there():
    first, second = WHOLE | {"RANK": "0", "LOCAL_RANK": "0"}, WHOLE | {"RANK": "2"}
    second["LOCAL_RANK"] = "0"
    assert place_from_environment(first).node != place_from_environment(second).node
    assert place_from_environment(WHOLE).node == place_from_environment(first).node
