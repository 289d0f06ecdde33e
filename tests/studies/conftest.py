from figures.conftest import audited, ax, axes, bounds_of  # noqa: F401
