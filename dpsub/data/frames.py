"""A task from a data frame, and how its columns are coded as features."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.data.tasks import Task, features_of


class Column(NamedTuple):
    """A column of a data frame, and the features that hold it.

    Attributes:
        name: in the frame.
        places: the indices of its features: one, or those of a one-hot group.
        categories: of a one-hot group, in order; None for numbers.
        centre, scale: of numbers: a feature is (number − centre) / scale.
    """

    name: str
    places: list[int]
    categories: pd.Index | None = None
    centre: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, given: pd.Series, public: pd.Series, first: int, *, numeric: bool = True) -> Column:
        """How a column is coded, from its first feature on: as its categorical dtype or else its public rows say."""
        categories = getattr(given.dtype, "categories", None)
        if categories is None and numeric and pd.api.types.is_numeric_dtype(given):
            plain = cls(given.name, [first])
            numbers = plain.coded(public)
            scale = float(numbers.std()) if np.ptp(numbers) else 1.0
            binary = pd.api.types.is_bool_dtype(given) or {*numbers} == {0, 1}
            return plain if binary else plain._replace(centre=float(numbers.mean()), scale=scale)
        categories = pd.Categorical(public).categories if categories is None else categories
        return cls(given.name, [*range(first, first + len(categories))], categories)

    def coded(self, values: Any) -> NDArray[Any]:
        """(n,) float64: numbers as the feature holds them, or positions among the categories.

        Raises:
            ValueError: if a value is missing, or is none of the categories.
        """
        given = pd.Series(values)
        if self.categories is not None:
            given = given.astype(object).map({category: code for code, category in enumerate(self.categories)})
        found: NDArray[np.float64] = given.to_numpy(np.float64, na_value=np.nan)
        if (bad := ~np.isfinite(found)).any():
            raise ValueError(
                f"column {self.name!r} must hold finite numbers or categories that auxiliary rows have, got "
                f"{pd.Series(values)[bad].tolist()[0]!r} ({bad.sum()} of {len(bad)}): drop such rows, or the column if "
                "it names people, make dates numbers, fill in what is missing by auxiliary rows, or list all "
                "categories, if they are public, in a pd.CategoricalDtype"
            )
        return (found - self.centre) / self.scale

    def value(self, code: Any) -> float | str:
        """What is coded like this: numbers to 6 digits, and categories as texts."""
        if self.categories is None:
            return float(f"{code * self.scale + self.centre:.6g}")
        return str(self.categories[int(code)])


@checks.checked("seed")
def from_frame(
    df: pd.DataFrame,
    *,
    label: str,
    sensitive: str | None = None,
    aux: pd.DataFrame | float = 0.25,
    test: pd.DataFrame | float = 0.25,
    seed: int = 0,
    name: str = "custom",
) -> Task:
    """A task from a pandas data frame, a row for each person.

    Texts and categories become one-hot features, numbers are standardised, and booleans and columns of 0 and 1 stay
    what they are. Auxiliary rows alone, which are public, decide how: their values are the categories, and their mean
    and standard deviation scale numbers. Those of private rows would give something of them away. A categorical dtype
    says that its list of categories is public. Whole numbers are numbers; give codes, such as those of diagnoses, a
    categorical dtype. How values are coded decides how far apart two of them are, and so what an audit finds.

    Args:
        df: the rows. No value may be missing. Leave out names and numbers that identify people.
        label: the column with the class of each row. The classes, in order, are the labels 0, 1, …
        sensitive: the column with the attribute that is secret: what `crafters.attribute` asks about by default.
        aux: the auxiliary rows: a frame with the same columns, or the fraction of `df` that is drawn for them. Drawn
            rows are not private any more: they are not trained on. After scaling, rows with the features of a private
            record are left out, as in all tasks.
        test: the rows to measure accuracy on: likewise, or 0.
        seed: of the draws.
        name: the task's name in figures and stored results.

    Returns:
        A task. It keeps names: crafters of attributes take columns by name, and values as they are in the frame, and
        `rows[slot]` is the index of a private record's row.

    Raises:
        ValueError: if there is no such column, a value is missing, or a category is not known from auxiliary rows.

    >>> import pandas as pd
    >>> from dpsub import data
    >>> people = {"age": [30, 50, 40, 60] * 20, "hiv": ["no", "no", "yes", "no"] * 20, "ill": [True, False] * 40}
    >>> task = data.from_frame(pd.DataFrame(people), label="ill", sensitive="hiv")
    >>> task.columns["hiv"].places, list(task.columns["hiv"].categories)
    ([1, 2], ['no', 'yes'])
    """
    checks.choice("label", label, list(df.columns))
    others = [one for one in df.columns if one != label]
    checks.choice("sensitive", others[0] if sensitive is None else sensitive, others)
    order, parts = stream(seed, "data").permutation(len(df)), dict[str, Any](aux=aux, test=test)
    for part, given in parts.items():
        if not isinstance(given, pd.DataFrame):
            count = round(checks.real(part, given, at_least=(part == "aux") / len(df), below=1) * len(df))
            parts[part], order = df.iloc[order[:count]], order[count:]
    parts["train"], columns, first = df.iloc[np.sort(order)], dict[str, Column](), 0
    for one in others:
        columns[one] = Column.of(df[one], parts["aux"][one], first)
        first += len(columns[one].places)
    classes = Column.of(df[label], parts["aux"][label], 0, numeric=False)
    given = {}
    for part, rows in parts.items():
        x = np.zeros((len(rows), first), dtype=np.float32)
        for column in columns.values():
            coded = column.coded(rows[column.name])[:, None]
            x[:, column.places] = coded if column.categories is None else coded == np.arange(len(column.places))
        given |= {f"x_{part}": x, f"y_{part}": classes.coded(rows[label])}
    private = set(features_of(given["x_train"]))
    apart = [record not in private for record in features_of(given["x_aux"])]
    given |= {key: given[key][apart] for key in ("x_aux", "y_aux")}
    about = {"columns": columns, "sensitive": sensitive, "rows": parts["train"].index}
    return Task(**given, num_classes=len(classes.places), name=name, **about)
