import pytest

from dpsub import accounting, explorer

PAGES = (explorer.page, explorer.attacker_page, explorer.runs_page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_a_page_is_small_and_asks_for_nothing_from_elsewhere(page):
    html = page().data
    assert "{{" not in html
    assert "http" not in html
    assert "import(" not in html
    assert len(html) < 30_000


def test_a_page_starts_where_it_is_told_to():
    html = explorer.page(noise_multiplier=48.4, sample_rate=1, steps=12_500, delta=1e-6).data
    assert '{"sigma":"48.4","q":"1","steps":"12500","delta":"1e-6"}' in html
    assert '{"epsilon":"3.25","delta":"1e-5"}' in explorer.attacker_page(epsilon=3.25).data


@pytest.mark.parametrize(
    ("page", "argument", "message"),
    [
        (explorer.page, {"noise_multiplier": 0.1}, "noise_multiplier must be >= 0.3 and <= 300, got 0.1"),
        (explorer.page, {"steps": 1.5}, "steps must be"),
        (explorer.page, {"delta": 1e-12}, "delta must be"),
        (explorer.attacker_page, {"epsilon": 0}, "epsilon must be >= 0.01 and <= 100, got 0"),
        (explorer.runs_page, {"runs": 10}, "runs must be >= 50"),
    ],
)
def test_a_start_out_of_range_is_named(page, argument, message):
    with pytest.raises(ValueError, match=message):
        page(**argument)


def test_the_widgets_numbers_are_the_accountants():
    training = {"noise_multiplier": 8.0, "sample_rate": 0.03, "steps": 100, "delta": 1e-5}
    found = explorer.numbers(**training)
    assert found["add_remove"] == accounting.epsilon(**training, adjacency="add_remove")
    assert found["substitute"] == accounting.epsilon(**training, adjacency="substitute")
    assert found["group"] == accounting.group_privacy_epsilon(**training) > found["substitute"]
