"""From time stamps to figures, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from onebit.bench.answer import Answer, Trouble
from onebit.bench.row import closed, engine_rate, opened, rate


def _answer(sent: float, first: float, gap: float, count: int, **more: object) -> Answer:
    times = [first + gap * i for i in range(count)]
    usage = {"completion_tokens": count, "prompt_tokens": 10}
    return Answer(sent, times[-1], times, usage, **more)  # type: ignore[arg-type]


def test_only_the_time_counts_in_which_all_are_served() -> None:
    """One user from 1 to 11 s, one from 4 to 8 s, both a token a second: 4 s, 4 tokens of each."""
    figures = closed([[_answer(0, 1, 1, 11)], [_answer(0, 4, 1, 5)]])
    assert figures.window_s == 4
    assert figures.total_tok_s == pytest.approx(2.0)
    assert figures.user_tok_s == pytest.approx(1.0)
    assert (figures.answers, figures.tokens, figures.queued) == (2, 16, False)
    assert figures.ttft_ms is not None
    assert (figures.ttft_ms.p50, figures.ttft_ms.p99) == pytest.approx((2500, 3970))
    assert figures.gap_ms is not None and figures.gap_ms.p50 == 1000
    assert figures.prompt_tok_s == pytest.approx(20 / 4)


def test_users_who_go_on_make_the_window_longer() -> None:
    users = [[_answer(0, 1, 1, 4), _answer(4, 5, 1, 4)], [_answer(0, 2, 1, 4), _answer(5, 6, 1, 4)]]
    figures = closed(users)
    assert figures.window_s == 6, "from 2 s (the second's first token) to 8 s (the first's last)"
    assert figures.total_tok_s == pytest.approx((2 + 4 + 3 + 3) / 6)


def test_requests_that_ran_one_after_the_other_are_called_queued() -> None:
    figures = closed([[_answer(0, 1, 1, 5)], [_answer(0, 6, 1, 5)]])
    assert figures.queued and figures.window_s == 9
    assert figures.total_tok_s == pytest.approx(9 / 9)


def test_a_chunk_counts_for_its_share_of_the_answer() -> None:
    """Ten tokens in five chunks: two each."""
    answer = Answer(0, 5, [1.0, 2.0, 3.0, 4.0, 5.0], {"completion_tokens": 10})
    assert rate(answer) == pytest.approx(2.0)
    assert closed([[answer]]).total_tok_s == pytest.approx(2.0)


def test_our_rate_and_the_engines_are_of_the_same_tokens() -> None:
    """llama-server's time begins with the first token: 9 steps in 0.9 s make 10 tok/s, as the client saw them."""
    answer = _answer(0, 1, 0.1, 10, timings={"predicted_n": 10, "predicted_ms": 900.0})
    assert engine_rate(answer) == pytest.approx(10)
    assert closed([[answer]]).agreement == pytest.approx(1.0)


def test_failures_are_counted_and_the_rest_still_measured() -> None:
    bad = Answer(0, 1, trouble=Trouble.CLOSED, why="gone")
    figures = closed([[_answer(0, 1, 1, 5)], [bad]])
    assert figures.errors == {"closed early": 1} and figures.first_error == "gone"
    assert figures.total_tok_s == pytest.approx(1.0)
    nothing = closed([[bad], [bad]])
    assert nothing.total_tok_s is None and nothing.errors == {"closed early": 2}
    assert opened([]).total_tok_s is None


def test_acceptance_is_of_all_drafts_together() -> None:
    one = _answer(0, 1, 1, 5, timings={"draft_n": 10, "draft_n_accepted": 10})
    two = _answer(0, 1, 1, 5, timings={"draft_n": 30, "draft_n_accepted": 10})
    assert closed([[one], [two]]).acceptance == 0.5
    assert closed([[_answer(0, 1, 1, 5)]]).acceptance is None


def test_one_token_has_no_rate() -> None:
    figures = closed([[_answer(0, 1, 1, 1)]])
    assert figures.total_tok_s is None and figures.user_tok_s is None
    assert figures.ttft_ms is not None
