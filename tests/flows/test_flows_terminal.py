"""What the demo's lines look like on a terminal and in a file."""

import io
import os
import sys

import pytest

from flows.terminal import Terminal, command, say_error

LINES = ["Starting", "train full    50 %  loss 0.4  accuracy 0.9", "train full   100 %  loss 0.3  accuracy 0.9", "Done"]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_plain_lines() -> None:
    file = io.StringIO()
    terminal = Terminal(file)

    for line in LINES:
        terminal.say(line)

    assert file.getvalue().splitlines() == LINES


def test_a_screen_gets_one_moving_bar_that_the_next_line_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen()
    terminal = Terminal(screen)

    for line in LINES:
        terminal.say(line)

    bar = "train full ██████████░░░░░░░░░░  50 %  loss 0.4  accuracy 0.9"[:59]
    assert screen.getvalue() == f"Starting\n\r\x1b[K{bar}\r\x1b[K{LINES[2]}\nDone\n"


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError


def test_of_a_reader_that_has_gone_it_tells_once_so_that_what_cleans_up_can_go_on_talking() -> None:
    terminal = Terminal(Gone())

    with pytest.raises(BrokenPipeError):
        terminal.say("Starting")

    terminal.say("Stopping the stack")


@pytest.mark.parametrize(("no_color", "expected"), [("", "\x1b[31mbroken\x1b[0m\n"), ("1", "broken\n")])
def test_errors_are_red_unless_colour_is_unwanted(
    monkeypatch: pytest.MonkeyPatch, no_color: str, expected: str
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("NO_COLOR", no_color)

    say_error("broken")

    assert screen.getvalue() == expected


def test_hints_name_a_command_that_works_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin")
    assert command() == "python -m flows"

    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(os.path.dirname(folder))
    assert command() == f"{os.path.basename(folder)}/{os.path.basename(sys.executable)} -m flows"

    monkeypatch.chdir("/")
    assert command() in {f"{sys.executable} -m flows", f"{sys.executable[1:]} -m flows"}
