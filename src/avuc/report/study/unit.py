"""What one prediction of a study is about: an image, a pixel, a sentence, a word, a token or another example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avuc.report.study.result_arrays import PNG, SetKey


def unit_of(examples: Mapping[Any, dict[str, Any]], gallery: Mapping[SetKey, bytes]) -> str:
    """Return what one prediction is about."""
    mistakes = [mistake for each in examples.values() for mistake in each["mistakes"]]
    pictures = any(data.startswith(PNG) for data in gallery.values())
    if any(mistake.get("map") for mistake in mistakes):
        return "pixel" if pictures or dimensions(examples) > 1 else "word" if gallery else "token"
    if gallery and not pictures:
        return "sentence"
    return "image" if pictures or all("png" in mistake for mistake in mistakes) else "example"


def dimensions(examples: Mapping[Any, dict[str, Any]]) -> int:
    """Return the dimensions of a map of labels: 1 for tokens, 2 for pixels; 0 if not known, as in older files."""
    found = (mistake.get("dims") for each in examples.values() for mistake in each["mistakes"])
    return max((dims for dims in found if isinstance(dims, int)), default=0)
