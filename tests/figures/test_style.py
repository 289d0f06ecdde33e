import pytest

from dpsub import figures
from dpsub.figures import style


def test_every_look_has_a_label_and_something_besides_its_colour():
    assert len(figures.LOOKS) > 8
    for name, look in figures.LOOKS.items():
        assert look["label"], name
        assert look.get("marker") or look.get("linestyle"), name


def test_no_two_looks_are_alike_without_their_colour_and_label():
    marks = [(look.get("marker"), look.get("linestyle")) for look in figures.LOOKS.values()]
    assert len(set(marks)) == len(marks)


def test_a_legend_says_what_a_bound_assumes_and_whether_it_is_valid(bounds_of):
    said = [
        style.what_it_rests_on(bounds_of([1.0], assumes=assumes, valid=valid)[0])
        for assumes, valid in (("none", True), ("gdp", True), ("mechanism", False), ("product", True))
    ]
    assert said == [
        "assumes nothing",
        "assumes GDP",
        "assumes the mechanism; not valid",
        "assumes GDP and independent guesses",
    ]


def test_no_colour_means_two_things():
    palettes = {"scenario": {figures.LOOKS[f"S{i}"]["color"] for i in range(1, 7)}, **figures.PALETTES}
    every = [color for palette in palettes.values() for color in palette]
    assert len(set(every)) == len(every)
    assert figures.PALETTES["kind"] == figures.COLORS


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1e-5, "10⁻⁵"), (2.5e-6, "2.5·10⁻⁶"), (1e-12, "10⁻¹²"), (0.001, "0.001"), (0.00099999, "0.001"),
        (0.0625, "0.0625"),
        (0, "0"), (-0.0, "0"), (1, "1"), (-3, "−3"), (9.876, "9.88"), (999.96, "1,000"), (20000, "20,000"),
        (12345.6, "12,300"), (9_999_999, "9,999,999"), (1e7, "10⁷"), (-2e-8, "−2·10⁻⁸"), (1.999999e-6, "2·10⁻⁶"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_a_text_writes_them(value, told):
    assert figures.number(value) == told
