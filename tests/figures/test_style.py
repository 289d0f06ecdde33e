from dpsub import figures


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
        figures.what_it_rests_on(bounds_of([1.0], assumes=assumes, valid=valid)[0])
        for assumes, valid in (("none", True), ("gdp", True), ("mechanism", False), ("product", True))
    ]
    assert said == [
        "assumes nothing",
        "assumes GDP",
        "assumes the mechanism; not valid",
        "assumes GDP and independent guesses",
    ]
