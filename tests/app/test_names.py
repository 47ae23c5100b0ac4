"""Resource names: which are valid, and the name that a template makes of a request."""

from __future__ import annotations

import functools
import re
import unicodedata
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import converters
from hypothesis import given
from hypothesis import strategies as st

from redlock_django.exceptions import BadResource, InvalidRedlock
from redlock_django.locking.names import MAX_BYTES, check_resource, encode
from redlock_django.web.name_templates import LONGEST_RENDERED, Template, resource

factory = RequestFactory()
characters = st.characters(exclude_categories=["Cs"])
anything = st.text(characters)
# Both Unicode forms of a string are one value, so only one of them is drawn.
values = st.text(characters, min_size=1).map(functools.partial(unicodedata.normalize, "NFC"))


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


# Templates.


@dataclass
class User:
    pk: Any


def request(method: str = "GET", path: str = "/", user: Any = None, **extra: Any) -> HttpRequest:
    made = getattr(factory, method.lower())(path, **extra)
    if user is not None:
        made.user = user

        async def auser() -> Any:
            return user

        made.auser = auser
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("template", "kwargs", "name"),
    [
        ("nightly", {}, "nightly"),
        ("order:<pk>", {"pk": "7"}, "order:7"),
        ("order:<pk>", {"pk": 7}, "order:7"),
        ("order:<pk>", {"pk": "07"}, "order:07"),
        ("order:<pk>", {"pk": "a:b c"}, "order:a%3Ab%20c"),
        ("order:<int:pk>", {"pk": "07"}, "order:7"),
        ("order:<int:pk>", {"pk": 7}, "order:7"),
        ("order:<pk>:item:<n>", {"pk": 1, "n": 2, "other": 3}, "order:1:item:2"),
        ("doc:<path:p>", {"p": "a/b"}, "doc:a/b"),
        ("order:<pk>/pay", {"pk": uuid.UUID(int=1)}, f"order:{uuid.UUID(int=1)}/pay"),
        ("order:<uuid:pk>", {"pk": uuid.UUID(int=1)}, f"order:{uuid.UUID(int=1)}"),
        ("naïve:<pk>", {"pk": "é"}, "naïve:é"),
    ],
)
def test_url_kwargs_make_a_name(template: str, kwargs: dict[str, Any], name: str) -> None:
    assert Template(template).render(request(), kwargs) == name
    used = {key: value for key, value in kwargs.items() if key in Template(template).names}
    assert resource(template, **used) == name


def test_a_converter_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hex:
        regex = "[0-9a-fA-F]+"

        def to_python(self, value: str) -> int:
            return int(value, 16)

        def to_url(self, value: int) -> str:
            return f"{value:x}"

    known = {**converters.get_converters(), "hex": Hex()}
    monkeypatch.setattr("redlock_django.web.name_templates.get_converters", lambda: known)
    template = Template("page:<hex:n>")
    assert {template.render(request(), {"n": n}) for n in ("FF", "ff", "0ff", 255)} == {"page:ff"}


@pytest.mark.parametrize(
    ("template", "made", "name"),
    [
        ("u:<user.pk>", request(user=User(7)), "u:7"),
        ("t:<header:X-Tenant>", request(headers={"x-tenant": "acme inc"}), "t:acme%20inc"),
        ("q:<get:q>", request(path="/?q=a&r=b"), "q:a"),
        ("j:<get:a>", request(path="/?a=x:y"), "j:x%3Ay"),
        ("j:<int:get:a>", request(path="/?a=05"), "j:5"),
    ],
)
def test_each_source_of_a_value_makes_its_name(template: str, made: HttpRequest, name: str) -> None:
    assert Template(template).render(made, {}) == name
    (placeholder,) = re.findall("<(?:int:|uuid:)?(.+)>", template)
    plain = {"u:7": 7, "t:acme%20inc": "acme inc", "j:x%3Ay": "x:y"}.get(name, name[2:])
    assert resource(template, **{placeholder: plain}) == name


SPELLINGS = ("7", "07", "+7", " 7", "7 ", "٧", "0_7", "7.0", "7e0", "-7", "0x7")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("template", "spelled"),
    [
        ("<int:get:order>", lambda text: request(path="/?order=" + quote(text))),
        ("<int:header:X-Order>", lambda text: request(headers={"X-Order": text})),
    ],
)
def test_a_converter_makes_one_name_of_all_spellings(
    template: str, spelled: Callable[[str], HttpRequest]
) -> None:
    names = set()
    for text in SPELLINGS:
        with suppress(BadResource):
            names.add(Template("order:" + template).render(spelled(text), {}))
    assert names == {"order:7"}


@pytest.mark.parametrize(
    ("template", "value", "name"),
    [
        ("<uuid:a>", str(uuid.UUID(int=7)), f"o:{uuid.UUID(int=7)}"),
        ("<uuid:a>", uuid.UUID(int=10).hex, None),
        ("<slug:a>", "acme", "o:acme"),
        ("<slug:a>", "acme inc", None),
        ("<int:a>", True, None),
        ("<int:a>", 7.0, None),
        ("<str:a>", "07", "o:07"),
        ("<str:a>", 7, None),
        ("<path:a>", 7, None),
        ("<uuid:a>", 7, None),
        ("<slug:a>", [7], None),
    ],
)
def test_a_value_that_its_converter_does_not_match(
    template: str, value: object, name: str | None
) -> None:
    """Values as a function of the request may give them to `resource()`, from a JSON body."""
    if name is None:
        with pytest.raises(BadResource, match=template):
            resource("o:" + template, a=value)
    else:
        assert resource("o:" + template, a=value) == name


def test_the_same_value_of_another_source_is_the_same_resource() -> None:
    assert resource("order:<int:get:order>", **{"get:order": "07"}) == "order:7"
    assert resource("order:<int:pk>", pk=7) == "order:7"
    with pytest.raises(InvalidRedlock, match="a placeholder appears twice"):
        Template("a:<int:get:x>:<get:x>")


async def test_the_async_way_gives_the_same() -> None:
    made = request(user=User(7), headers={"X-T": "t"})
    template = Template("a:<user.pk>:<header:X-T>:<int:pk>")
    assert (
        await template.arender(made, {"pk": "01"}) == "a:7:t:1" == template.render(made, {"pk": 1})
    )


async def test_a_callable_makes_a_name() -> None:
    def by_kwarg(made: HttpRequest, pk: str, **kwargs: Any) -> str:
        return f"order:{pk}:{made.method}"

    async def later(made: HttpRequest, **kwargs: Any) -> str:
        return by_kwarg(made, **kwargs)

    assert Template(by_kwarg).render(request(), {"pk": 7}) == "order:7:GET"
    assert await Template(by_kwarg).arender(request(), {"pk": 7}) == "order:7:GET"
    assert await Template(later).arender(request(), {"pk": 7}) == "order:7:GET"
    assert Template(later).is_async


def test_the_result_of_a_callable_is_checked() -> None:
    async def later() -> str:
        return "a"

    results: dict[str, Any] = {"U+0020": "a b", "got NoneType": None, "got coroutine": later()}
    for says, result in results.items():
        with pytest.raises(InvalidRedlock) as caught:
            Template(lambda made, result=result: result).render(request(), {})
        assert says in str(caught.value)


def test_resource_takes_a_string_only() -> None:
    with pytest.raises(InvalidRedlock, match="call a callable template directly"):
        resource(lambda made: "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("", "must not be empty"),
        (None, "must be a string or a callable, got NoneType"),
        (7, "must be a string or a callable, got int"),
        ("order:<pk", "reserved character U+003C"),
        ("order:pk>", "reserved character U+003E"),
        ("order:<>", "<> is neither a URL kwarg nor <user.pk>"),
        ("order:<a b>", "is neither a URL kwarg"),
        ("order:<user.email>", "<user.email> is neither a URL kwarg nor <user.pk>"),
        ("order:<pk.__class__>", "is neither a URL kwarg"),
        ("order:{pk}", "write <pk> instead of {pk}"),
        ("order <pk>", "space U+0020"),
        ("order:%<pk>", "'%' without two hex digits"),
        ("order:\n<pk>", "control character U+000A"),
        ("order~<pk>", "'~' is reserved"),
        ("order:<itn:pk>", "unknown converter or source 'itn', did you mean 'int'?"),
        ("t:<headers:X-T>", "did you mean 'header'?"),
        ("order:<int:>", "does not name a URL kwarg"),
        ("order:<int:a.b>", "does not name a URL kwarg"),
        ("t:<header:>", "names nothing to read"),
        ("t:<int:get:>", "names nothing to read"),
        ("t:<itn:get:x>", "unknown converter or source 'itn', did you mean 'int'"),
        ("t:<int:haeder:x>", "unknown source 'haeder', did you mean 'header'"),
        ("t:<json:a>", "unknown converter or source 'json'"),
        ("t:<int:post:a>", "unknown source 'post'"),
        ("<a><b>", "between two placeholders there must be a ':'"),
        ("<a>-<b>", "between two placeholders there must be a ':'"),
        ("<a>:<int:a>", "a placeholder appears twice"),
    ],
)
def test_a_malformed_template_fails_at_once(template: Any, says: str) -> None:
    with pytest.raises(InvalidRedlock) as caught:
        Template(template)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("template", "made", "kwargs"),
    [
        ("a:<pk>", request(), {"pk": ""}),
        ("a:<pk>", request(), {"pk": None}),
        ("a:<int:pk>", request(), {"pk": "x"}),
        ("a:<int:pk>", request(), {"pk": "-1"}),
        ("a:<int:pk>", request(), {"pk": True}),
        ("a:<int:pk>", request(), {"pk": "1\n"}),
        ("a:<int:pk>", request(), {"pk": "9" * 10_000}),
        ("a:<uuid:pk>", request(), {"pk": "1"}),
        ("a:<pk>", request(), {"pk": "\ud800"}),
        ("a:<int:pk>", request(), {"pk": 10**5000}),  # Python does not write such a number
        ("a:<user.pk>", request(user=User(None)), {}),
        ("a:<header:X-T>", request(), {}),
        ("a:<header:X-T>", request(headers={"X-T": ""}), {}),
        ("a:<get:q>", request(), {}),
        ("a:<get:q>", request(path="/?q="), {}),
    ],
)
def test_a_bad_value_is_the_clients_fault(
    template: str, made: HttpRequest, kwargs: dict[str, Any]
) -> None:
    with pytest.raises(BadResource):
        Template(template).render(made, kwargs)


@pytest.mark.parametrize(
    ("template", "kwargs", "says"),
    [
        ("a:<pk>", {"pk": 1.0}, "is of type float"),
        ("a:<pk>", {"pk": True}, "is of type bool"),
        ("a:<pk>", {"pk": User(1)}, "is of type User"),
        ("a:<user.pk>", {}, "needs AuthenticationMiddleware"),
    ],
)
def test_a_value_that_the_view_cannot_give_is_the_developers_fault(
    template: str, kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRedlock, match=says):
        Template(template).render(request(), kwargs)


def test_resource_names_missing_and_unknown_values() -> None:
    with pytest.raises(InvalidRedlock, match="needs a value for 'pk'"):
        resource("order:<pk>")
    with pytest.raises(InvalidRedlock, match="has no placeholder 'id'"):
        resource("order:<pk>", pk=1, id=2)


def test_no_source_reads_the_body() -> None:
    made = request("POST", data={"f": "1"}, headers={"X-T": "t"}, user=User(1))
    Template("a:<user.pk>:<header:X-T>:<get:q>").render(
        request("POST", path="/?q=1", data={"f": "1"}, headers={"X-T": "t"}, user=User(1)), {}
    )
    Template("a:<user.pk>:<header:X-T>").render(made, {})
    assert not hasattr(made, "_body")
    assert made.read(), "an upload view still has its stream"


def test_no_error_repeats_the_clients_value() -> None:
    for made in (request(headers={"X-T": "s3cret\ud800"}), request(headers={"X-T": "s3cret"})):
        with pytest.raises(BadResource) as caught:
            Template("a:<int:n>:<header:X-T>").render(made, {"n": "s3cret"})
        assert "s3cret" not in str(caught.value)


def test_a_long_name_keeps_its_head_and_is_hashed() -> None:
    exact = resource("doc:<p>", p="x" * (LONGEST_RENDERED - 4))
    assert exact == "doc:" + "x" * 196
    name = resource("doc:<p>", p="x" * 10_000)
    assert re.fullmatch("doc:x{131}~[0-9a-f]{64}", name)
    assert name != resource("doc:<p>", p="x" * 9_999)
    # Both Unicode forms of a string make the same name, hashed or not.
    assert resource("cafe\u0301:<p>", p="x" * 300) == resource("caf\u00e9:<p>", p="x" * 300)
    # It is cut neither inside a character nor inside an escape.
    for width in range(4):
        for text in ("é" * 300, "注" * 300, ":" * 300):
            cut = resource("doc:<p>", p="x" * width + text)
            assert len(cut.encode()) <= LONGEST_RENDERED


@given(st.text(characters, min_size=1, max_size=300))
def test_a_rendered_name_is_always_a_name(value: str) -> None:
    name = resource("order:<a>:x/<b>", a=value, b=value[::-1])
    assert check_resource(name) == name
    assert len(name.encode()) <= LONGEST_RENDERED


@given(st.tuples(values, values), st.tuples(values, values))
def test_different_values_never_make_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    def name(pair: tuple[str, str]) -> str:
        return resource("order:<a>:x<b>", a=pair[0], b=pair[1])

    assert (name(one) == name(other)) == (one == other)


@pytest.mark.attack
@given(values, values, st.sampled_from(":~%/-"))
def test_moving_the_border_between_two_values_changes_the_name(
    left: str, right: str, border: str
) -> None:
    """The case that random pairs rarely hit: the same string, divided at another place."""
    one = resource("<a>:<b>", a=left + border, b=right)
    other = resource("<a>:<b>", a=left, b=border + right)
    assert one != other


@given(st.text("ab:~%", min_size=1, max_size=400))
def test_no_value_can_pass_for_a_hashed_value(value: str) -> None:
    hashed = resource("<a>", a="x" * 1000)
    assert resource("<a>", a=hashed) != hashed
    assert resource("<a>", a=value) != hashed
