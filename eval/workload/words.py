"""Synthetic text: common words of four letters, each about one token to most tokenizers.

Words of equal length are looked up as rows of bytes, some 3 ns a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bana.eval.workload.token_runs import Span, draw_values

_LISTED = """
able acid aged also area army away baby back ball band bank base bath bear beat been beer bell
belt best bill bird blow blue boat body bond bone book boom born boss both bowl bulk burn bush
busy call calm came camp card care case cash cast cell chat chip city club coal coat code cold
come cook cool cope copy core cost crew crop dark data date dawn days dead deal dean dear debt
deep deny desk dial diet disc disk does done door down draw drew drop drug dual duke dust duty
each earn ease east easy edge else even ever evil exit face fact fail fair fall farm fast fate
fear feed feel feet fell felt file fill film find fine fire firm fish five flat flow food foot
ford form fort four free from fuel full fund gain game gate gave gear gene gift girl give glad
goal goes gold golf gone good gray grew grey grow gulf hair half hall hand hang hard harm hate
have head hear heat held hell help here hero high hill hire hold hole holy home hope host hour
huge hung hunt hurt idea inch into iron item jack join jump jury just keen keep kent kept kick
kill kind king knee knew know lack lady laid lake land lane last late lead left less life lift
like line link list live load loan lock logo long look lord lose loss lost love luck made mail
main make male many mark mass
"""
WORDS = tuple(_LISTED.split())
CHARS_PER_WORD = 5  # with the space after it

_TABLE = np.frombuffer(" ".join(WORDS).encode() + b" ", dtype=np.uint8).reshape(-1, CHARS_PER_WORD)


def spell(spans: Sequence[Span]) -> str:
    """The words of all spans, separated by blanks; spans of equal runs are equal text."""
    letters = _TABLE[draw_values(spans, len(WORDS))].tobytes()
    return letters[:-1].decode("ascii")
