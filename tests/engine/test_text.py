"""Text from a growing list of ids: characters come whole, pieces join to the text of the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchscope.engine.text import Bytes, Pieces, tokenizer_for


def pieces(ids: list[int]) -> list[str]:
    growing = Pieces(Bytes())
    return [*(growing.push(id_) for id_ in ids), growing.rest()]


@given(st.text())
def test_any_text_comes_back_whole_in_pieces_without_broken_characters(text: str) -> None:
    found = pieces(Bytes().encode(text))
    assert "".join(found) == text
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in found)


def test_a_character_is_held_back_until_its_last_byte() -> None:
    assert pieces(Bytes().encode("a€b")) == ["a", "", "", "€", "b", ""]


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    found = pieces([0xFF + 1] * 9)
    assert "".join(found) == "\ufffd" * 9
    assert max(len(piece) for piece in found) <= 4


class Spaced:
    """As SentencePiece does: a word's space belongs to it, but not at the beginning."""

    words = ("▁the", "▁cat", "s")

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: list[int]) -> str:
        return "".join(self.words[id_] for id_ in ids).replace("▁", " ").removeprefix(" ")


def test_spaces_between_words_survive_the_cut_into_pieces() -> None:
    growing = Pieces(Spaced())
    assert [growing.push(id_) for id_ in (0, 1, 2, 0)] == ["the", " cat", "s", " the"]


def test_a_model_without_a_tokenizer_takes_no_text() -> None:
    assert tokenizer_for(None, vocab_size=256) is None
    assert tokenizer_for("/nowhere", vocab_size=32000) is None
    assert Pieces(None).push(5) == ""
