"""A figure that notebooks show."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that needs no pyplot, and so no window system, to be shown."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()
