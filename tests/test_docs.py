"""The pages' examples run, from top to bottom: python blocks, and `longtail` lines of bash blocks.

A block whose first line is `# name.py` or `# name.toml` is also a file of that name.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from helpers import scripts
from longtail.cli import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted((DOCS / "methods").glob("*.md")), DOCS / "bring_your_own.md", DOCS / "running.md"]
PAGES += [DOCS / "averages.md", DOCS / "past_in_one_byte.md", DOCS / "read.md"]
PAGES += [ROOT / "README.md", DOCS / "README.md"]
# Pages whose code needs the frameworks they are about, and which warn of their own affairs.
FRAMEWORKS = {
    DOCS / "every_week.md": ("transformers", "accelerate", "lightning"),
    DOCS / "integrations" / "hf.md": ("transformers", "accelerate"),
    DOCS / "integrations" / "lightning.md": ("lightning",),
    DOCS / "integrations" / "others.md": ("accelerate",),
    DOCS / "integrations" / "peft.md": ("peft", "transformers"),
}
ALL_PAGES = [ROOT / "README.md", ROOT / "bench" / "REPRODUCIBILITY.md", ROOT / "CONTRIBUTING.md"]
ALL_PAGES += [*sorted(DOCS.rglob("*.md"))]
ALL_PAGES += [*sorted((ROOT / "bench" / "results").glob("*/README.md"))]
BLOCK = re.compile(r"^```(python|bash|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


@pytest.mark.parametrize("page", FRAMEWORKS, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore")
def test_examples_with_frameworks_run(page, tmp_path, monkeypatch):
    for package in FRAMEWORKS[page]:
        pytest.importorskip(package)
    test_examples_run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    namespace: dict = {"__name__": page.stem}
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        kind, code = match.groups()
        name = re.match(r"# (\w+\.(?:py|toml))\n", code)
        if name:
            Path(name[1]).write_text(code, encoding="utf-8")
        if kind == "python":
            # Blank lines in front put the page's own line numbers into a traceback.
            lines = text[: match.start(2)].count("\n")
            exec(compile("\n" * lines + code, str(page), "exec", dont_inherit=True), namespace)
        elif kind == "bash":
            for line in code.splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
    for name in set(sys.modules) - before:
        if name.startswith("my_"):  # the page's own modules
            del sys.modules[name]


@pytest.mark.parametrize("script", sorted(DOCS.glob("draw_*.py")), ids=lambda path: path.stem)
@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--no-such-flag"], 2)])
def test_a_script_that_draws_says_what_it_does_and_draws_nothing(script, arguments, code, capsys):
    before = {path: path.stat().st_mtime_ns for path in (DOCS / "figures").iterdir()}
    with pytest.raises(SystemExit) as stop:
        scripts.load(f"docs/{script.name}").main(arguments)
    assert stop.value.code == code
    assert code or "Draws" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (DOCS / "figures").iterdir()} == before


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


COMMAND = re.compile(r"^ *(longtail (?:run|study|report|data|list) .*)$", re.MULTILINE)


def commands_of(page: Path) -> list[list[str]]:
    """The lines of a page that call `longtail`, without their comments."""
    lines = COMMAND.findall(page.read_text(encoding="utf-8"))
    return [shlex.split(line, comments=True) for line in lines if not line.endswith("\\")]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_understood(page, monkeypatch):
    """Also those for data that are not here: names, flags and values exist, and so do the files."""
    from longtail.cli.entry import make_parser
    from longtail.cli.run import parse
    from longtail.runs.config import resolve
    from longtail.study.named import study_file

    monkeypatch.chdir(ROOT)
    for command, *words in (line[1:] for line in commands_of(page)):
        own = any(word.startswith("my_") or word == "my.toml" for word in words)  # the page's own
        if command == "run" and not own:
            args = parse(words)
            resolve(args.benchmark, args.config, args.flags, args.set)
        elif command != "run":
            args = make_parser(command, words).parse_args([command, *words])
            assert command != "study" or own or study_file(args.file).is_file(), args.file


METHOD_COMMAND = re.compile(r"^On the command line: `longtail (run toy .*?)`", re.MULTILINE)
METHOD_COMMANDS = {
    page.stem: found[1]
    for page in sorted((DOCS / "methods").glob("*.md"))
    if (found := METHOD_COMMAND.search(page.read_text("utf-8")))
}


@pytest.mark.parametrize("page", METHOD_COMMANDS)
def test_the_command_of_a_method_page_runs(page, tmp_path):
    short = ["--set", "data.tasks=2", "--quiet", "--out", str(tmp_path / "run")]
    assert main([*shlex.split(METHOD_COMMANDS[page]), *short]) == 0
