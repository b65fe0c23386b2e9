"""Docstrings as the site shows them: roles of reStructuredText as code, formulas as MathML.

Docstrings follow torch's (`:meth:`, `.. math::`), so that an editor shows what it shows for torch.
MathML needs no script, and so nothing from elsewhere.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert

BLOCK = re.compile(r"^( *)\.\. math::(?: (.+)\n|\n((?:\1 +.*\n|\n)+))", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)  # griffe's word for it is a plural
ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")


class Roles(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    text = BLOCK.sub(block, text + "\n").rstrip("\n")
    text = INLINE.sub(lambda m: convert(" ".join(m[1].split())), text)
    text = EXAMPLE.sub(r"\1Examples:", text)
    return ROLE.sub(r"`\1`", text)


def block(match: re.Match[str]) -> str:
    indent, line, lines = match.groups()
    formula = line or textwrap.dedent(lines)
    # The names of torch's docstrings; the converter knows the outer one alone.
    formula = formula.replace("{aligned}", "{align*}").strip()
    if "&" in formula and "\\begin" not in formula:
        formula = f"\\begin{{align*}}{formula}\\end{{align*}}"
    return f"{indent}{convert(formula, display='block')}\n\n"
