import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpsub import explorer, figures, game, widgets
from dpsub.estimators import LowerBound


@pytest.fixture
def ax():
    with plt.style.context(figures.STYLE):
        fig, ax = plt.subplots()
        yield ax
        plt.close(fig)


def bounds(values, *, assumes="gdp", valid=True):
    return [LowerBound(v, None, None, None, None, "gdp", assumes, valid) for v in values]


@pytest.mark.parametrize("repeats", [1, 3])
def test_epsilon_against_step_draws_what_it_is_given(ax, repeats):
    audited = [bounds(np.array([1.0, 2.0]) + i) for i in range(repeats)]
    artists = figures.epsilon_against_step(
        ax, [25, 50], substitute=[2, 4], add_remove=[1, 2], audited={"S2": audited}, ceiling=5.0
    )
    assert set(artists) == {"substitute", "add_remove", "S2", "ceiling"}
    np.testing.assert_array_equal(artists["S2"].lines[0].get_ydata(), np.array([1.0, 2.0]) + (repeats - 1) / 2)
    assert len(ax.lines) == 4 + (repeats + 2 if repeats > 1 else 0)  # single repeats, and caps of the error bars
    assert artists["S2"].get_label() == "crafted gradient (S2), assumes GDP"
    assert ax.get_ylim()[1] > 5.0


def test_a_ceiling_far_above_is_a_note(ax):
    artists = figures.epsilon_against_step(
        ax, [25, 50], substitute=[2, 4], add_remove=[1, 2], audited={"S2": [bounds([1, 2])]}, ceiling=60.0
    )
    assert artists["ceiling"].get_text() == "ceiling of these runs: 60"
    assert ax.get_ylim()[1] < 10


def test_worst_case_draws_means_and_errors_and_marks_the_papers_rule_hollow(ax):
    artists = figures.worst_case(
        ax, substitute=[1, 2], add_remove=[0.5, 1], group=[1.1, 2.2],
        audited={
            "rank test": [bounds([0.9, 1.9], assumes="mechanism"), bounds([1.1, 2.1], assumes="mechanism")],
            "best": [bounds([1.0, 2.0], valid=False)] * 2,
        },
    )  # fmt: skip
    points, _, (bars,) = artists["rank test"]
    np.testing.assert_allclose(points.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], [[0.8, 1.2], [1.8, 2.2]])
    assert artists["best"][0].get_markerfacecolor() == "white"
    assert artists["rank test"].get_label() == "S1, rank test, assumes the mechanism"
    assert artists["best"].get_label() == "S1, best, assumes GDP; not valid"


def test_bars_carry_their_numbers(ax):
    figures.epsilon_bars(ax, {"add_remove": 1.5, "substitute": 3.25, "group": float("inf")})
    assert [text.get_text() for text in ax.texts] == ["1.500", "3.250", "not certified"]


def test_every_look_has_a_label_and_something_besides_its_colour():
    for name, look in figures.LOOKS.items():
        assert look["label"], name
        assert look.get("marker") or look.get("linestyle"), name


def test_explorer_answers_a_slider():
    box = widgets.epsilon_explorer(noise_multiplier=10.0, sample_rate=1.0, steps=100)
    sliders, picture = box.children[:-1], box.children[-1]
    assert [slider.description for slider in sliders] == ["noise multiplier σ", "sample rate q", "steps T", "log₁₀ δ"]
    before, calls = bytes(picture.value), []
    original = explorer.numbers
    explorer.numbers = lambda **arguments: calls.append(arguments) or original(**arguments)
    try:
        sliders[2].value = 200
        sliders[0].value = 1.0
        sliders[3].value = -8
    finally:
        explorer.numbers = original
    assert [call["steps"] for call in calls] == [200, 200, 200]
    assert calls[-1] == {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 200, "delta": 1e-8}
    assert before.startswith(b"\x89PNG")
    assert bytes(picture.value).startswith(b"\x89PNG")
    assert bytes(picture.value) != before


def test_group_privacy_is_drawn_when_given(ax):
    artists = figures.epsilon_against_step(
        ax, [25, 50], substitute=[2, 4], add_remove=[1, 2], group=[3, 5], audited={"S2": [bounds([1, 2])]}
    )
    np.testing.assert_array_equal(artists["group"].get_ydata(), [3, 5])


def test_what_cannot_be_certified_does_not_break_the_figure(ax):
    figures.worst_case(
        ax, substitute=[1, 2], add_remove=[0.5, 1], group=[1.1, np.inf], audited={"ranks": [bounds([0.9, 1.9])]}
    )
    assert np.isfinite(ax.get_ylim()).all()


def test_figure_a5_draws_every_sample_rate(ax):
    rates = [1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01]
    artists = figures.against_noise(ax, {q: [1, 2] for q in rates}, {q: [q, 2 * q] for q in rates}, reference=2)
    assert list(artists) == rates
    np.testing.assert_array_equal(artists[0.01].get_ydata(), [0.01, 0.02])
    looks = {(line.get_color(), line.get_marker()) for line in artists.values()}
    assert len(looks) == len(rates)


def test_tradeoffs_are_drawn_over_guessing(ax):
    artists = figures.tradeoffs(ax, [0, 0.5, 1], {"substitute": [1, 0.1, 0], "add_remove": [1, 0.3, 0]})
    assert list(artists) == ["guessing", "substitute", "add_remove"]
    np.testing.assert_array_equal(artists["substitute"].get_ydata(), [1, 0.1, 0])


def test_validity_is_drawn_against_what_is_allowed():
    fig, (wrong, tight) = plt.subplots(1, 2)
    measured = {"ranks": ([0.04, 0.03], [0.7, 0.9], True), "best": ([0.1, 0.2], [0.9, 1.0], False)}
    artists = figures.validity(wrong, tight, [256, 1_000], measured, alpha=0.05)
    assert artists["best"].get_label() == "best (not valid)"
    np.testing.assert_allclose(artists["best"].get_ydata(), [10, 20])
    np.testing.assert_allclose(artists["alpha"].get_ydata(), 5)
    np.testing.assert_allclose(tight.lines[0].get_ydata(), [0.7, 0.9])
    plt.close(fig)


def test_the_game_is_drawn_with_its_rates_and_bounds():
    fig, (left, right) = plt.subplots(1, 2)
    audit = game.play(runs=1_250, mu=1.0, seed=3)
    artists = figures.game(left, right, audit, 0.5)
    fpr, fnr = audit.rates(0.5)
    assert left.get_xlabel() == f"score; FPR {fpr:.3f}, FNR {fnr:.3f}"
    widths = [bar.get_width() for bar in artists["bars"]]
    assert widths == [audit.bound(rule).epsilon for rule in (0.5, "best", "ranks")]
    plt.close(fig)


def test_the_game_widget_deals_and_counts(monkeypatch):
    drawn = []
    original = figures.game
    monkeypatch.setattr(figures, "game", lambda *given: drawn.append(given[2:]) or original(*given))
    box = widgets.audit_game(runs=125, mu=1.0)
    runs, truth, threshold, picture, buttons, verdict = box.children
    assert bytes(picture.value).startswith(b"\x89PNG")
    assert (runs.value, truth.label) == (125, "ε = 4.38")
    threshold.value = 1.0
    buttons.children[0].click()
    buttons.children[1].click()
    (first, at_start), (same, moved), (second, _) = drawn
    assert (at_start, moved) == (0.5, 1.0)
    assert first is same
    assert (first.with_z != second.with_z).all()
    lies = game.count_lies(runs=125, mu=1.0, seed=1_002)
    assert f"above the truth in {lies.best}, the rank test's in {lies.ranks}; 5 are allowed" in verdict.value
