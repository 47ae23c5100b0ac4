"""Resource names: which are valid, and how any value is encoded as a part of one."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlock_django.exceptions import BadResource
from redlock_django.locking.names import MAX_BYTES, check_resource, encode

anything = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    "name",
    [
        "order:42",
        "a",
        "order:42/item-7@x_y.z~w",
        "a%2Ab",
        "заказ:7",
        "注文:7",
        "x" * MAX_BYTES,
        "é" * (MAX_BYTES // 2),
    ],
)
def test_a_good_name_is_unchanged(name: str) -> None:
    assert check_resource(name) == name


@pytest.mark.attack
def test_two_unicode_forms_of_a_string_are_one_name() -> None:
    assert check_resource("cafe\u0301") == check_resource("caf\u00e9") == "caf\u00e9"
    assert check_resource("\ufb01") == "\ufb01", "NFKC would merge different names"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, "must be str, got NoneType"),
        (True, "must be str, got bool"),
        (42, "must be str, got int"),
        (b"order", "must be str, got bytes"),
        (["order"], "must be str, got list"),
        ("", "must not be empty"),
        ("order:4\n", "control character U+000A at position 7"),
        ("\0", "control character U+0000 at position 0"),
        ("a\x1b[31m", "control character U+001B at position 1"),
        ("a\x85", "control character U+0085 at position 1"),
        ("a\u202eb", "bidi control character U+202E at position 1"),
        ("a\u200fb", "bidi control character U+200F at position 1"),
        ("a\u200bb", "invisible character U+200B at position 1"),
        ("a b", "space U+0020 at position 1"),
        ("a\u2028b", "space U+2028 at position 1"),
        ("a\ud800", "lone surrogate U+D800 at position 1"),
        ("a*", "reserved character U+002A at position 1"),
        ("a[b]", "reserved character U+005B at position 1"),
        ("<pk>", "reserved character U+003C at position 0"),
        ("a\\b", "reserved character U+005C at position 1"),
        ("{a}", "reserved character U+007B at position 0"),
        ("50%", "'%' without two hex digits (0-9 A-F) at position 2"),
        ("50%zz", "'%' without two hex digits (0-9 A-F) at position 2"),
        ("a%2a", "'%' without two hex digits (0-9 A-F) at position 1"),
        ("x" * (MAX_BYTES + 1), "has 513 bytes, at most 512"),
        ("é" * 257, "has 514 bytes, at most 512"),
        ("x" * 10_000, "has 10000 bytes, at most 512"),
    ],
)
def test_the_error_names_the_fault_and_its_position(name: Any, says: str) -> None:
    with pytest.raises(BadResource) as caught:
        check_resource(name)
    assert says in str(caught.value)
    assert caught.value.resource.isprintable()
    assert len(caught.value.resource) <= 200


@pytest.mark.parametrize("name", ["a b", "a*", "50%", "a\n"])
def test_the_error_suggests_resource(name: str) -> None:
    with pytest.raises(BadResource, match=r"resource\('order:<int:pk>', pk=value\)"):
        check_resource(name)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("42", "42"),
        ("a:b", "a%3Ab"),
        ("100%", "100%25"),
        ("a b", "a%20b"),
        ("a~b", "a%7Eb"),
        ("*?[]", "%2A%3F%5B%5D"),
        ("a/b@c.d-e_f", "a/b@c.d-e_f"),
        ("naïve", "naïve"),
        ("\u202e", "%E2%80%AE"),
        ("\n", "%0A"),
    ],
)
def test_encode_writes_a_value_as_a_name(value: str, written: str) -> None:
    assert encode(value) == written


@pytest.mark.attack
def test_encode_refuses_invalid_unicode() -> None:
    with pytest.raises(BadResource, match="lone surrogate"):
        encode("a\udc80")


@given(anything)
def test_encoding_is_reversible(value: str) -> None:
    def decoded(match: re.Match[str]) -> str:
        return bytes.fromhex(match[0].replace("%", "")).decode()

    written = encode(value)
    assert re.sub("(?:%[0-9A-F]{2})+", decoded, written) == unicodedata.normalize("NFC", value)


@pytest.mark.attack
@given(anything.filter(bool))
def test_an_encoded_value_is_a_name_without_separators(value: str) -> None:
    written = encode(value)
    assert not set(written) & set(':~*?[]^\\<>{}" \n\0')
    if len(written.encode()) <= MAX_BYTES:
        assert check_resource(written) == written


@given(anything)
def test_a_name_is_accepted_exactly_if_the_encoder_leaves_it_unchanged(name: str) -> None:
    structure_aside = re.sub("[:~]|%[0-9A-F]{2}", "", unicodedata.normalize("NFC", name))
    left_alone = encode(structure_aside) == structure_aside
    try:
        accepted = check_resource(name)
    except BadResource:
        assert not name or not left_alone or len(name.encode()) > MAX_BYTES
    else:
        assert left_alone
        assert accepted == unicodedata.normalize("NFC", name)
