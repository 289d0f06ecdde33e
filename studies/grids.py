"""Tables of numbers drawn as grids of coloured cells."""

import numpy as np


def draw_grid(ax, values, *, texts, shades, rules=()):
    """A cell for each entry of a table, coloured, with a text in it.

    Args:
        values: a data frame; NaN leaves a cell without a colour.
        texts: strings of the same shape.
        shades: a colour map and the values at its two ends.
        rules: rows above which a line separates groups.
    """
    colors, low, high = shades
    image = ax.imshow(values, cmap=colors, vmin=low, vmax=high, aspect="auto")
    shown = image.to_rgba(values.to_numpy(float))
    light = shown[..., :3] @ [0.299, 0.587, 0.114]
    light[shown[..., 3] == 0] = 1.0
    for (row, column), text in np.ndenumerate(np.asarray(texts)):
        ink = "black" if light[row, column] > 0.5 else "white"
        ax.text(column, row, text, color=ink, ha="center", va="center")
    ax.set_xticks(range(values.shape[1]), values.columns)
    ax.set_yticks(range(values.shape[0]), values.index)
    ax.tick_params(length=0, top=True, labeltop=True, labelbottom=False)
    ax.tick_params(bottom=False)
    ax.spines[:].set_visible(False)
    for row in rules:
        ax.axhline(row - 0.5, color="black", lw=0.6)
    return image
