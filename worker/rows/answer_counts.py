"""What the answers of a part are, counted: their lengths, and the labels of a choice."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.ledger.jobs.answer_counts import MOST_LABELS, NOTHING, AnswerCounts
from nightshift.common.spec import ANSWERED_BY, OUTPUTS, GenerateTask, Task


def counted(task: Task, table: pa.Table) -> AnswerCounts:
    """The answers of a part; of a row with samples each sample.

    An answer that is that of another row has no tokens of its own and counts by its label alone. Where no answer
    has a token, nothing counts by length: functions and models that pool have none, and a server may tell none.
    """
    if "output_tokens" not in table.column_names:
        return NOTHING
    errors = table.column("error")
    answered = None if errors.null_count == len(errors) else pc.is_null(errors)

    def column(name: str) -> pa.ChunkedArray:
        """A column of the rows with an answer; the others, which may be large, are not copied."""
        found = table.column(name)
        return found if answered is None else found.filter(answered)

    texts = None
    if OUTPUTS in table.column_names:
        samples = pc.list_flatten(column(OUTPUTS))
        tokens, texts = (pc.struct_field(samples, name) for name in ("output_tokens", "output"))
    else:
        tokens = column("output_tokens")
        if ANSWERED_BY in table.column_names:
            tokens = tokens.filter(pc.is_null(column(ANSWERED_BY)))
    choice = task.output.choice if isinstance(task, GenerateTask) and task.output else None
    if choice is None:
        return AnswerCounts(_lengths(tokens))
    return AnswerCounts(
        _lengths(tokens), _labels(choice, column("output") if texts is None else texts)
    )


def _lengths(tokens: pa.ChunkedArray) -> tuple[int, ...]:
    numbers = pc.drop_null(tokens).to_numpy()
    if not numbers.any():
        return ()
    # A number is below 2^k, and for k > 0 not below 2^(k-1), where frexp tells the exponent k.
    return tuple(np.bincount(np.frexp(numbers)[1]).tolist())


def _labels(choice: list[str], texts: pa.ChunkedArray) -> tuple[int, ...]:
    if len(choice) > MOST_LABELS:
        return ()
    places = pc.drop_null(pc.index_in(texts, pa.array(choice, texts.type)))
    return tuple(np.bincount(places.to_numpy(), minlength=len(choice)).tolist())
