"""Steps of an analysis: what begins, and what is said of the rest."""

from snippets.validation.assistant.stages import Stages


def interrupted() -> str:
    raise KeyboardInterrupt


def test_a_step_gives_its_result_and_says_that_it_begins():
    said: list[str] = []
    stages = Stages(300.0, said.append)
    assert stages.run("graphs", "compiling", lambda: "two", "none") == "two"
    assert said == ["compiling"] and not stages.skipped


def test_once_the_budget_is_spent_only_the_first_step_begins():
    stages = Stages(0.0, lambda message: None)
    assert stages.run("calls", "calling", lambda: "one", "none", first=True) == "one"
    assert stages.run("graphs", "compiling", lambda: "two", "none") == "none"
    assert stages.skipped == ["no graphs: 0 s were spent before"]


def test_after_an_interrupt_nothing_begins():
    stages = Stages(300.0, lambda message: None)
    assert stages.run("graphs", "compiling", interrupted, "none") == "none"
    assert stages.run("times", "timing", lambda: "three", "none") == "none"
    assert stages.skipped == ["no graphs: interrupted", "no times: interrupted"]
