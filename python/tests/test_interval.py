"""How often a training saves its state by itself."""

from __future__ import annotations

from typing import Any, Iterator, List

import pytest

from moira.interval import AUTO, FIRST, LEAST, MOST, Every, Interval, checked


def after(*costs: float, every: Every = AUTO) -> Interval:
    """Saves that held training up for so long."""
    interval = Interval(every, 0.0)
    for held_up in costs:
        interval.cost(held_up)
    return interval


def saves(held_up: Iterator[float], until: float) -> List[float]:
    """When a training saves in so many seconds, if every save takes so long."""
    interval, now, found = Interval(AUTO, 0.0), 0.0, []
    while now < until:
        now += 0.1
        if interval.is_due(now):
            found.append(now)
            cost = next(held_up)
            now += cost
            interval.cost(cost)
            interval.begin(now)
    return found


def always(seconds: float) -> Iterator[float]:
    while True:
        yield seconds


def test_a_kill_after_half_a_minute_loses_seconds_where_saving_is_cheap() -> None:
    found = saves(always(0.01), until=30.0)
    assert found[0] == pytest.approx(FIRST, abs=0.2)
    assert found[-1] > 20.0
    assert len(found) == 4


@pytest.mark.parametrize("cost", [0.001, 0.02, 0.1, 1.0, 5.0])
def test_about_one_hundredth_of_the_time_goes_into_saving(cost: float) -> None:
    hours = 10 * 3600.0
    spent = cost * len(saves(always(cost), hours)) / hours
    assert spent <= 0.0102
    assert spent >= 0.009 or cost / 0.01 < LEAST


def test_an_interval_is_neither_too_short_nor_too_long() -> None:
    assert after(1e-6, 1e-6).seconds() == LEAST
    assert after(1000.0, 1000.0).seconds() == MOST


def test_one_slow_save_among_others_changes_nothing() -> None:
    assert after(0.1, 0.1, 30.0).seconds() == pytest.approx(10.0)
    assert after(0.1, 30.0, 0.1, 30.0, 0.1).seconds() == pytest.approx(10.0)


def test_a_first_save_that_was_slow_by_chance_is_soon_put_right() -> None:
    interval = after(3.0)
    assert interval.seconds() == pytest.approx(30.0), "a tenth of the time and not a hundredth, once"
    interval.cost(0.1)
    assert interval.seconds() == pytest.approx(10.0)


def test_what_became_dearer_for_good_is_saved_less_often() -> None:
    assert after(0.1, 0.1, 0.1, 2.0, 2.0, 2.0).seconds() == pytest.approx(200.0)


def test_a_slow_disk_is_not_kept_busy_by_one_write_after_the_other() -> None:
    def writes(seconds: float) -> float:
        interval = Interval(AUTO, 0.0)
        for _ in range(3):
            interval.cost(0.001, writing=seconds)
        return interval.seconds()

    assert writes(3.0) == pytest.approx(30.0), "a tenth of the time"
    assert writes(100.0) == MOST
    assert writes(900.0) == 1800.0, "it rests as long as it writes"


def test_a_disk_that_is_full_is_tried_less_and_less_often_until_it_is_not() -> None:
    interval = Interval(AUTO, 0.0)
    found = []
    for _ in range(8):
        found.append(interval.seconds())
        interval.failed()
    assert found == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    interval.cost(0.01)
    assert interval.seconds() == LEAST


@pytest.mark.parametrize("said", [0.001, 1, 7.5, 86_400.0])
def test_what_the_user_says_is_kept_exactly(said: float) -> None:
    interval = after(10.0, 10.0, every=said)
    interval.failed()
    assert interval.seconds() == said
    interval.begin(100.0)
    assert not interval.is_due(100.0 + said * 0.999)
    assert interval.is_due(100.0 + said * 1.001)


def test_never_is_never() -> None:
    assert not after(0.01, every=None).is_due(1e12)


@pytest.mark.parametrize("said", [0, -1.0, float("nan"), float("inf"), "often", True, [5]])
def test_an_interval_that_is_none_is_refused_by_the_name_it_was_given_under(said: Any) -> None:
    with pytest.raises(ValueError, match=r'save_every: expected a positive number of seconds or "auto", found'):
        checked(said, "save_every")
