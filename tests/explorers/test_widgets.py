import pytest
from matplotlib import pyplot as plt

from book.explorers import widgets
from dpsub import accounting, figures


def test_explorer_answers_a_slider(monkeypatch):
    box = widgets.epsilon_explorer(noise_multiplier=10.0, sample_rate=1.0, steps=100)
    sliders, picture = box.children[:-1], box.children[-1]
    assert [slider.description for slider in sliders] == ["noise multiplier σ", "sample rate q", "steps T", "log₁₀ δ"]
    before, calls = bytes(picture.value), []
    original = widgets.three_epsilons
    monkeypatch.setattr(widgets, "three_epsilons", lambda **arguments: calls.append(arguments) or original(**arguments))
    sliders[2].value = 200
    sliders[0].value = 1.0
    sliders[3].value = -8
    assert [call["steps"] for call in calls] == [200, 200, 200]
    assert calls[-1] == {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 200, "delta": 1e-8}
    assert before.startswith(b"\x89PNG")
    assert bytes(picture.value).startswith(b"\x89PNG")
    assert bytes(picture.value) != before


def test_the_widgets_numbers_are_the_accountants():
    training = {"noise_multiplier": 8.0, "sample_rate": 0.03, "steps": 100, "delta": 1e-5}
    found = widgets.three_epsilons(**training)
    assert found["add_remove"] == accounting.epsilon(**training, adjacency="add_remove")
    assert found["substitute"] == accounting.epsilon(**training, adjacency="substitute")
    assert found["group"] == accounting.group_privacy_epsilon(**training) > found["substitute"]


@pytest.mark.parametrize(("group", "told"), [(float("inf"), "not certified"), (4.0, "4.000")])
def test_bars_carry_their_numbers(group, told):
    _, ax = plt.subplots()
    drawn = widgets.epsilon_bars(ax, {"add_remove": 1.5, "substitute": 3.25, "group": group})
    assert [bar.get_width() for bar in drawn[:2]] == [1.5, 3.25]
    assert drawn[2].get_width() == (0.0 if told == "not certified" else group)
    assert [text.get_text() for text in ax.texts] == ["1.500", "3.250", told]
    labels = [figures.LOOKS[name]["label"] for name in ("add_remove", "substitute", "group")]
    assert [text.get_text() for text in ax.get_yticklabels()] == labels
    plt.close("all")
