from figures.conftest import audited, ax, axes, bounds_of, drawn, mechanism  # noqa: F401
