"""Keys of clips, and numbers for keys that are the same in every process and on every machine."""

import hashlib


def clip_keys(key: str, count: int) -> list[str]:
    """Keys of the clips of a sample: the sample's own key if it has one clip, otherwise ``key/index``.

    Example:
        >>> clip_keys("v1", 1), clip_keys("v2", 2)
        (['v1'], ['v2/0', 'v2/1'])
    """
    return [key] if count == 1 else [f"{key}/{index}" for index in range(count)]


def stable_hash(text: str) -> int:
    """A 63-bit number that depends on the text only.

    Example:
        >>> stable_hash("v1/0") == stable_hash("v1/0"), stable_hash("v1/0") != stable_hash("v1/1")
        (True, True)
        >>> 0 <= stable_hash("") < 2**63
        True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
