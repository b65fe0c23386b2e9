"""Text that would command a terminal is written out; bars and colours of ours still work."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout

import pytest
from rich.live import Live
from rich.text import Text

from longtail.support.console import Console
from longtail.support.terminal import Guard, guarded, printable, unguarded


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ttwo\nthree, größer, 漢字, ✓", "one\ttwo\nthree, größer, 漢字, ✓"),
        ("a\x1b[31mb\x07", r"a\u001b[31mb\u0007"),
        ("a\rb\x7f\x9b2J\u202ec", r"a\u000db\u007f\u009b2J\u202ec"),
    ],
)
def test_what_commands_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_print_is_guarded_and_the_streams_are_put_back(screen: Terminal) -> None:
    with redirect_stdout(screen), guarded():
        assert sys.stdout.isatty()
        print("a\x1b[2Jb", end="")
        sys.stdout.writelines(["\x1b]0;c\x07", "d"])
    assert not isinstance(sys.stdout, Guard)
    assert screen.getvalue() == r"a\u001b[2Jb\u001b]0;c\u0007d"


def test_a_bar_may_go_back_to_the_start_of_its_line_and_up_to_another(screen: Terminal) -> None:
    with redirect_stdout(screen), guarded():
        for text in ("\r50% of a\rb", "\n\n", "\x1b[A\x1b[A", "\x1b[A\x1b[2J"):
            sys.stdout.write(text)
    assert screen.getvalue() == "\r50% of a\\u000db\n\n\x1b[A\x1b[A\\u001b[A\\u001b[2J"


@pytest.mark.parametrize("nested", [False, True])
def test_colours_are_those_of_the_console_alone(screen: Terminal, nested: bool) -> None:
    def show() -> None:
        assert unguarded(sys.stdout) is screen
        Console().print(Text("a\x1b[2Jb", style="bold"))

    with redirect_stdout(screen), guarded():
        if nested:
            with guarded():
                show()
        else:
            show()
    assert screen.getvalue() == "\x1b[1ma\\u001b[2Jb\x1b[0m\n"


def test_a_live_display_moves_the_cursor_and_its_rows_do_not(screen: Terminal) -> None:
    with redirect_stdout(screen), guarded():
        console = Console()
        with Live(Text("row\x1b]0;title\x07"), console=console, refresh_per_second=50):
            print("beside\x9bit")
    shown = screen.getvalue()
    assert "\x1b[?25l" in shown  # the cursor is hidden meanwhile
    assert r"row\u001b]0;title" in shown
    assert "\x1b]" not in shown
    assert "\x9b" not in shown
