"""What is wrong with a backend is said when its class is made."""

import pytest

from minddp.backends import DistributedBackend, DummyBackend

TWINS = (
    "_initialize _shutdown _get_world_size _get_rank _get_local_rank _barrier _local_barrier "
    "_average_all _from_root _distribute"
).split()


def test_a_class_that_overrides_nothing_is_refused_with_all_that_is_missing():
    with pytest.raises(TypeError) as caught:

        class Empty(DistributedBackend):
            pass

    for name in (*TWINS, "BACKEND_MODULE_NAME", "BACKEND_NAME", "Empty"):
        assert name in str(caught.value)


def test_a_mistyped_twin_is_refused_with_the_name_it_was_to_have():
    body = dict(vars(DummyBackend))
    body["_get_worldsize"] = body.pop("_get_world_size")
    body = {k: v for k, v in body.items() if k not in ("_abc_impl", "__abstractmethods__")}
    with pytest.raises(TypeError) as caught:
        type("Mistyped", (DistributedBackend,), body)
    assert "_get_worldsize() overrides nothing; is it to be _get_world_size()?" in str(caught.value)


def test_a_mistyped_twin_is_refused_where_the_right_one_is_inherited():
    with pytest.raises(TypeError, match=r"_get_local_rnak.*_get_local_rank"):

        class Mistyped(DummyBackend):
            def _get_local_rnak(self):
                return 1


def test_renamed_parameters_are_refused():
    with pytest.raises(TypeError, match=r"_average_all\(self, x, group\) must be"):

        class Renamed(DummyBackend):
            def _average_all(self, x, group):
                return x


def test_overriding_the_guarded_method_is_refused():
    with pytest.raises(TypeError, match=r"get_rank\(\) is the public method.*_get_rank\(\)"):

        class Unguarded(DummyBackend):
            def get_rank(self):
                return 0


def test_names_must_be_names():
    with pytest.raises(TypeError, match="BACKEND_NAME is not set"):

        class Nameless(DummyBackend):
            BACKEND_NAME = None


def test_helpers_of_ones_own_and_abstract_steps_are_fine():
    class Own(DummyBackend):
        def _open_log(self):
            return None

    class Step(DistributedBackend, abstract=True):
        pass

    assert Own().initialize().get_rank() == 0
    with pytest.raises(TypeError, match="abstract"):
        Step()
