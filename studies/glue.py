"""Numbers that a page leaves for other pages, and for the tests."""

from IPython.display import display

UNSEEN = "application/papermill.record/text/plain"


def glue(name, number):
    """As `myst_nb.glue` without display; to import that takes a second.

    A list over seeds is left as its mean, and as itself by `name_each`.
    """
    if isinstance(number, list):
        glue_one(f"{name}_each", [float(one) for one in number])
        number = sum(number) / len(number)
    glue_one(name, number)


def glue_one(name, value):
    """Leave one value by its name."""
    display(
        {UNSEEN: repr(value)},
        raw=True,
        metadata={"scrapbook": {"name": name, "mime_prefix": UNSEEN.removesuffix("text/plain")}},
    )
