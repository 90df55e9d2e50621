"""snippets/validation/assistant_llama.py: the lost flag is found in the library's model, and only while it is lost."""

import pytest

pytest.importorskip("transformers")

from snippets.examples import llama_causal
from snippets.validation.assistant import analyze
from snippets.validation.assistant_llama import Loss
from snippets.validation.assistant_llama import llama as made
from tests import gpu

TITLE = "Under torch.compile the flag is_causal is lost"


@pytest.fixture(scope="module")
def module_and_tokens():
    with gpu.room(gpu.ALL):  # what is tried out takes 50 GiB of a GPU
        yield made()


def test_the_lost_flag_is_found_by_itself_and_leads_to_its_mend(module_and_tokens):
    module, tokens = module_and_tokens
    (found,) = [finding for finding in analyze(module, tokens).findings if finding.title == TITLE]
    assert found.lines[0].file.endswith("sdpa_attention.py") and found.page == "examples/llama.md#causal"


def test_where_causality_is_said_nothing_is_found(module_and_tokens):
    module, tokens = module_and_tokens
    said = Loss(llama_causal.say_causal(module.model))
    assert TITLE not in {finding.title for finding in analyze(said, tokens).findings}
