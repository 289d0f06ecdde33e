from dpsub import explorer, figures, game, widgets
from dpsub.accounting import gdp_epsilon


def test_explorer_answers_a_slider(monkeypatch):
    box = widgets.epsilon_explorer(noise_multiplier=10.0, sample_rate=1.0, steps=100)
    sliders, picture = box.children[:-1], box.children[-1]
    assert [slider.description for slider in sliders] == ["noise multiplier σ", "sample rate q", "steps T", "log₁₀ δ"]
    before, calls = bytes(picture.value), []
    original = explorer.numbers
    monkeypatch.setattr(explorer, "numbers", lambda **arguments: calls.append(arguments) or original(**arguments))
    sliders[2].value = 200
    sliders[0].value = 1.0
    sliders[3].value = -8
    assert [call["steps"] for call in calls] == [200, 200, 200]
    assert calls[-1] == {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 200, "delta": 1e-8}
    assert before.startswith(b"\x89PNG")
    assert bytes(picture.value).startswith(b"\x89PNG")
    assert bytes(picture.value) != before


def test_the_game_widget_deals_and_counts(monkeypatch):
    drawn = []
    original = figures.game
    monkeypatch.setattr(figures, "game", lambda *given: drawn.append(given[2:]) or original(*given))
    box = widgets.audit_game(runs=125, mu=1.0, seed=0)
    runs, truth, delta, threshold, picture, buttons, verdict = box.children
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
    assert lies.best != lies.ranks
    assert f"above the truth in {lies.best}, the rank test's in {lies.ranks}; 5 are allowed" in verdict.value
    delta.value = 1e-3
    assert (truth.value, truth.label) == (1.0, f"ε = {gdp_epsilon(1.0, 1e-3):.2f}")
    assert drawn[-1][0].delta == delta.value
    assert (drawn[-1][0].with_z == drawn[-2][0].with_z).all()


def test_the_first_game_of_the_widget_is_a_warning(monkeypatch):
    drawn = []
    original = figures.game
    monkeypatch.setattr(figures, "game", lambda *given: drawn.append(given[2]) or original(*given))
    widgets.audit_game()
    [audit] = drawn
    assert audit.bound("best").epsilon > audit.truth > audit.bound("ranks").epsilon
