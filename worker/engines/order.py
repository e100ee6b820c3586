"""In which order rows go into an engine: as they come, but long ones ahead of short ones."""


class Order:
    """Ranks for the queue of an engine; the smallest goes first.

    A long row that comes last runs alone at the end of a job, while short ones fill the engine to
    the end (longest processing time first: Graham 1969). How long is known where a row brings its
    own `max_tokens`. The longest row overtakes `reach` rows at most, so none waits for ever.
    """

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self._arrived = 0

    def rank(self, tokens: int | None, most: int) -> int:
        """The next row's; `tokens` is its own longest answer, None where it has none but the
        job's, which is `most`.
        """
        self._arrived += 1
        share = 1.0 if tokens is None else min(1.0, tokens / most)
        return self._arrived - round(share * self._reach)
