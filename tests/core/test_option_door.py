"""The door of options: what is said of a member, a recipe or on the command line is refused in a sentence, or used."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibseg.cli.parsing import assigned, literal
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.runs.recipe import change_table, read_recipe

WORDS = st.text(max_size=8) | st.sampled_from(
    ["1" * 5000, "[" * 20000, "1\nb = 2", "nan", "-inf", "1e999", "true", "{}"]
)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([10**30, -(10**30), float("nan"), float("inf"), 1e308, 1e-320, -0.0, "soft", "../x"])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)
SIZES = {"in_channels": 1, "num_classes": 3}


def drawn(data: st.DataObject, family: str) -> tuple[str, dict]:
    """A member of a family with one option that is anything."""
    key = data.draw(st.sampled_from(sorted(registry.members(family))))
    options = [option.name for option in registry.find(family, key).options if option.name not in SIZES]
    return key, {data.draw(st.sampled_from(options)): data.draw(JUNK)} if options else {}


@pytest.mark.parametrize("family", ["priors", "metrics", "calibrators", "decisions"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_odd_option_of_a_member_is_refused_in_a_sentence_or_it_is_built(family, data):
    key, options = drawn(data, family)
    try:
        assert registry.build(family, key, options) is not None
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_odd_option_of_a_loss_is_refused_in_a_sentence_or_the_loss_has_a_value(data):
    key, options = drawn(data, "losses")
    try:
        loss = registry.build("losses", key, options).setup(3)
        logits = torch.linspace(-3, 3, loss.views * 3 * 20).reshape(loss.views, 3, 4, 5)
        target = torch.arange(20).reshape(1, 4, 5) % 3
        valid = {"valid": torch.ones(loss.views, 4, 5, dtype=torch.bool)} if loss.views == 2 else {}
        sigmoid = loss.activation == "sigmoid"
        assert loss(logits, torch.stack([target == k for k in range(3)], 1) if sigmoid else target, **valid).ndim == 0
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=3).map("=".join))
def test_words_of_any_kind_are_values_or_refused_in_a_sentence(text):
    literal(text)
    try:
        assert len(assigned([text], "--option")) == 1
    except BadInput as error:
        assert "--option" in str(error)  # noqa: PT017


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["seed", "train.epochs", "train.learning_rate", "network.width", "loss.name", "loss.dice_weight",
                     "data.keep", "data.options", "augmentation.scale", "no", "train.no"]),
    WORDS | JUNK.map(str),
)  # fmt: skip
def test_a_recipe_changed_in_an_odd_way_is_refused_or_says_what_it_was_told(key, text):
    try:
        recipe = read_recipe({"data": {"dataset": "phantom"}}, [f"{key}={text}"])
    except BadInput as error:
        assert key.split(".")[-1] in str(error) or "--set" in str(error) or text in str(error)  # noqa: PT017
        return
    assert key not in ("no", "train.no")
    assert recipe.train.epochs >= 1


def test_a_line_break_does_not_begin_another_key():
    tables = {"train": {}}
    change_table(tables, "train.epochs=1\nbatch_size=2")
    assert tables["train"] == {"epochs": "1\nbatch_size=2"}
