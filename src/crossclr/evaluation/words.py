"""The words of a sentence that say what is seen."""

import re

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")

# Words that say nothing about what is seen: articles, pronouns, auxiliaries, conjunctions, prepositions.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every other another such
    i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our ours
    ourselves they them their theirs themselves one someone somebody something who whom whose which what
    am is are was were be been being do does did done doing have has had having can could may might must shall should
    will would
    and or but nor so yet if then than as because while when where how why whether also too very not no
    of in on at by for with without from to into onto upon over under above below between among through during before
    after about against around along across behind beside near off out up down until within toward towards via per
    there here just only own same both all more most few once again further
    """.split()  # noqa: SIM905 (a list of 150 words is read more easily as text)
)


def content_words(text: str) -> frozenset[str]:
    """The words of a caption that say what is seen, in lower case.

    Example:
        >>> sorted(content_words("A man is riding on the horse."))
        ['horse', 'man', 'riding']
    """
    return frozenset(WORD.findall(text.lower())) - FUNCTION_WORDS
