import pytest


def slow_but(cases, *quick):
    """Cases of one argument, or tuples of several, marked slow but for the quick ones."""
    slow = [[] if case in quick else pytest.mark.slow for case in cases]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)
        for case, marks in zip(cases, slow, strict=True)
    ]
