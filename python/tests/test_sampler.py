"""The order of examples: nobody's is lost or taken twice, whoever shares it out and however often that changes."""

from __future__ import annotations

import random
from typing import List

import pytest

pytest.importorskip("torch")

from moira.training.sampler import ElasticOrder, Layout


def step(order: ElasticOrder, layout: Layout) -> List[List[int]]:
    """One step of all workers: what each took, in order of rank."""
    shares = [next(order.shares(layout, rank)) for rank in range(layout.workers)]
    taken = [[example for part in share.passes for example in part] for share in shares]
    assert sum(map(len, taken)) == shares[0].size, "the shares are the whole"
    assert all(map(len, taken)), "everyone has something to do"
    order.advance(shares[0].size)
    return taken


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_takes_every_example_once_however_it_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    most = draw.randint(1, 8)
    order = ElasticOrder(draw.randint(most, 500), shuffle=True, seed=seed, least_rest=most)
    for number in range(3):
        taken: List[int] = []
        while order.passes == number:
            workers, passes = draw.randint(1, most), draw.randint(1, 4)
            layout = Layout(workers * passes * draw.randint(1, 20), workers, passes)
            taken += [example for worker in step(order, layout) for example in worker]
        assert sorted(taken) == list(range(order.examples)), f"seed {seed}, pass {number}"


@pytest.mark.parametrize("examples", [1000, 1001, 1023, 1024, 1027])
def test_the_steps_are_the_same_for_any_number_of_workers(examples: int) -> None:
    def steps(workers: int, passes: int) -> List[List[int]]:
        order = ElasticOrder(examples, shuffle=True, seed=3, least_rest=4)
        layout = Layout(64, workers, passes)
        found = []
        while order.passes == 0:
            found.append([example for worker in step(order, layout) for example in worker])
        return found

    assert steps(1, 1) == steps(2, 1) == steps(3, 1) == steps(4, 2)


def test_passes_have_different_orders_and_the_same_seed_the_same() -> None:
    def two_passes(seed: int) -> List[List[int]]:
        order = ElasticOrder(50, shuffle=True, seed=seed, least_rest=1)
        layout = Layout(50, 1, 1)
        return [step(order, layout)[0], step(order, layout)[0]]

    assert two_passes(1) == two_passes(1)
    assert two_passes(1)[0] != two_passes(1)[1]
    assert two_passes(1)[0] != two_passes(2)[0]


def test_a_state_goes_on_in_the_middle_of_a_pass() -> None:
    order, other = (ElasticOrder(100, shuffle=True, seed=seed, least_rest=2) for seed in (1, 2))
    first = step(order, Layout(30, 2, 1))
    other.load_state_dict(order.state_dict())
    rest = step(other, Layout(100, 1, 1))
    assert sorted(example for part in first + rest for example in part) == list(range(100))


def test_other_data_than_was_saved_is_refused() -> None:
    saved = ElasticOrder(100, shuffle=True, seed=1, least_rest=1).state_dict()
    with pytest.raises(ValueError, match="saved with a data set of 100 examples, and this one has 90"):
        ElasticOrder(90, shuffle=True, seed=1, least_rest=1).load_state_dict(saved)


def test_fewer_examples_than_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 examples, fewer than the 4 workers"):
        ElasticOrder(3, shuffle=False, seed=0, least_rest=4)
