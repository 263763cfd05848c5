"""The order in which pieces are handed out: laws of any kinds, and who is handed what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.parallel.task_queue import Queue

KINDS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=12)


@given(kinds=KINDS, data=st.data())
def test_every_piece_is_handed_out_once_and_once_more_each_time_it_is_given_back(
    kinds: list[str | None], data: st.DataObject
) -> None:
    queue, taken, given_back = Queue(kinds), list[int](), list[int]()
    while queue:
        taken.append(queue.take(data.draw(st.sampled_from([None, *taken]))))
        if data.draw(st.integers(0, 4)) == 0:
            given_back.append(data.draw(st.sampled_from(taken)))
            queue.put_back(given_back[-1])
        if len(taken) > 40:
            break
    left = [queue.take() for _ in range(len(queue))]
    assert sorted(taken + left) == sorted([*range(len(kinds)), *given_back])
    with pytest.raises(IndexError):
        queue.take()


@given(kinds=KINDS)
def test_one_alone_ends_a_kind_before_it_begins_the_next(kinds: list[str | None]) -> None:
    queue, order, last = Queue(kinds), list[int](), None
    while queue:
        last = queue.take(last)
        order.append(last)
    met = [kinds[n] for n in order if kinds[n] is not None]
    assert len([k for k, before in zip(met, [None, *met], strict=False) if k != before]) == len(set(met))
    assert order == sorted(order, key=lambda n: n if kinds[n] is None else kinds.index(kinds[n]))


def test_two_begin_with_two_kinds_and_help_each_other_where_no_kind_is_left() -> None:
    queue = Queue(["a", "a", "a", "b", "b"])
    one, other = queue.take(), queue.take()
    assert (one, other) == (0, 3)
    other = queue.take(other)
    assert other == 4
    assert queue.take(other) == 1
    assert queue.take(one) == 2


def test_what_is_like_nothing_is_handed_out_in_its_order() -> None:
    queue = Queue([None] * 4)
    assert [queue.take(), queue.take(0), queue.take(1), queue.take()] == [0, 1, 2, 3]


def test_what_is_given_back_comes_before_its_kind() -> None:
    queue = Queue(["a", "a", "b", "b"])
    lost = queue.take()
    queue.take()
    queue.put_back(lost)
    assert queue.take(lost) == lost


def test_nothing_waits_in_a_cleared_queue() -> None:
    queue = Queue(["a", None])
    queue.clear()
    assert not queue
