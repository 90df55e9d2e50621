"""What the search's index is made of: prose, code's names beside it, page titles, and questions at their answers."""

import re

from docs.publish.site import search

CODE = "<pre><code>for x in rows:\n    torch.add(x, 1 &lt; 2)</code></pre>"
SECTIONS = [
    {"location": "a/", "title": "Breaks", "text": f"<p>First.</p>  {CODE}"},
    {"location": "a/#why", "title": "Why", "text": "<p>Second.</p>"},
]
PAGE = """<table><thead><tr><th>question</th></tr></thead><tbody>
<tr><td>Why does <code>.item()</code> break?</td><td><a href="../../a/#why">Why</a></td><td>x</td></tr>
<tr><td>Can it?</td>
<td>Yes: <a href="../../a/#why">Why</a></td></tr></tbody></table>
<h2 id="later">Later</h2><table><tbody><tr><td>Who knows?</td><td><a href="https://elsewhere/">x</a></td></tr></tbody></table>"""


def test_code_leaves_the_text_and_its_names_stay_to_be_found() -> None:
    page, _ = search.entries(SECTIONS, {}, {})
    assert page["text"] == "<p>First.</p>"
    assert page["code"].split() == ["rows", "torch", "add"]


def test_a_section_knows_its_page_and_a_page_what_it_is_about() -> None:
    page, section = search.entries(SECTIONS, {}, {"a/": "All about breaks"})
    assert (page["page"], section["page"]) == ("All about breaks", "Breaks")


def test_a_question_is_found_at_its_answer() -> None:
    asked = search.questions(PAGE, "reference/questions/")
    assert asked["a/#why"] == ["Why does .item() break?", "Can it?"]
    page, section = search.entries(SECTIONS, asked, {})
    assert "questions" not in page
    assert section["questions"] == "<p>Why does .item() break?</p><p>Can it?</p>"
    assert section["text"] == section["questions"] + "<p>Second.</p>"


def test_a_question_without_an_answer_is_found_where_it_stands() -> None:
    asked = search.questions(PAGE, "reference/questions/")
    assert asked.pop("reference/questions/#later") == ["Who knows?"]
    assert list(asked) == ["a/#why"]


def test_a_question_whose_answer_is_no_section_is_found_at_the_page() -> None:
    page, _ = search.entries(SECTIONS, {"a/#table-3": ["Which?"]}, {})
    assert page["questions"] == "<p>Which?</p>"


def test_what_all_kernels_need_is_nothing_to_search():
    """Whoever looks for "CUDA graph" wants what explains one, and each kernel's page says that graphs take it."""
    answer = "<dl>\n<dt>Use it when</dt>\n<dd>Rows are long.</dd>\n<dt>What it needs</dt>\n<dd>A GPU.</dd>\n</dl>"
    marked = search.without_figures(f"{answer}<svg viewBox='0 0 1 1'></svg>")
    assert re.findall(r"<(\w+) data-search-exclude", marked) == ["dd", "svg"]
    assert '<dd data-search-exclude="true">A GPU.' in marked
