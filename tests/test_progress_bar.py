"""What is shown while something runs: nothing at first, then each step."""

import time

from crossclr.progress_bar import show_steps


def test_steps_are_shown_after_a_while(capsys):
    with show_steps(delay=0.05) as report:
        report("first")
        assert capsys.readouterr().err == ""
        time.sleep(0.2)
        assert capsys.readouterr().err == "first\n"
        report("second")
    assert capsys.readouterr().err == "second\n"


def test_quick_steps_and_those_that_nobody_wants_are_not_shown(capsys):
    for shown, delay in ((True, 60), (False, 0.01)):
        with show_steps(shown, delay) as report:
            report("a step")
            time.sleep(0.1)
    assert capsys.readouterr().err == ""
