"""Finds the bytes of single tokens, which may be part of a character.

Byte-level vocabularies use GPT-2's alphabet (openai/gpt-2, src/encoder.py), which maps each byte to
a visible character. SentencePiece's have tokens like `<0xE2>` for single bytes.
"""

_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_UNSEEN = tuple(byte for byte in range(256) if byte not in _SEEN)
BYTE_ALPHABET = {chr(byte): byte for byte in _SEEN} | {
    chr(256 + number): byte for number, byte in enumerate(_UNSEEN)
}
BYTE_TOKENS = {f"<0x{byte:02X}>": byte for byte in range(256)}


def byte_level_bytes(token: str) -> bytes:
    """Returns a token's bytes, by GPT-2's alphabet; an added token may be plain text."""
    if BYTE_ALPHABET.keys() >= set(token):
        return bytes(BYTE_ALPHABET[char] for char in token)
    return token.encode()
