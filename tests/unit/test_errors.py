#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every public function says in its header which errors it returns, and its man page says the same.

In a header the comment above the function ends with `Errors: -EINVAL cause; -ENOMEM cause.`, or `Errors: none.`; functions that stand
together below one comment share it. A man page says it under ERRORS, in one of three ways: a list below `.Fn NAME ... fails with:`; an item
`.It Fn NAME , Fn NAME` that names the errors; or a list of errors whose texts begin with `.Fn NAME :` if only some of the page's functions
return the error.

Usage: test_errors.py SOURCE-ROOT
"""
import glob
import os
import re
import sys
import unittest

ROOT = os.path.abspath(sys.argv[1])
ERRNO = r"E[A-Z0-9]{2,}"
FORM = re.compile(rf"(?:none|-{ERRNO}(?:, -{ERRNO})* [^;]+(?:; -{ERRNO}(?:, -{ERRNO})* [^;]+)*)\.")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Function:
    """A function that returns a status, with the text of the comment above it."""

    def __init__(self, name, header, comment):
        self.name, self.header, self.comment = name, header, comment
        self.before, self.mark, self.said = comment.partition("Errors: ")
        self.errors = set(re.findall(rf"-({ERRNO})\b", self.said))


def functions():
    for path in sorted(glob.glob(os.path.join(ROOT, "include", "weft", "*.h"))):
        comment = ""
        # comments, declarations, and other lines, after which the last comment no longer applies
        for part in re.finditer(r"/\*(?P<comment>.*?)\*/ *\n(?=\S)|^WEFT_API (?P<declaration>[^{;]*);\n|^[^\n]*\n", read(path), re.M | re.S):
            if part["comment"] is not None:
                comment = " ".join(re.sub(r"^\s*\*", " ", part["comment"], flags=re.M).split())
            elif part["declaration"] is None:
                comment = ""
            elif m := re.match(r"int (\w+)\(", part["declaration"]):
                yield Function(m[1], os.path.basename(path), comment)


def listed(page, known):
    """The errors of a page that has only lists of errors: {function: errors}. An error is returned by the functions that its text names before
    a colon, or by all functions of the page."""
    some = r"(?:^\.Fn \w+(?: ,)?\n(?:and\n)?)*^\.Fn \w+ :$"
    said = {}
    names = set(re.findall(r"^\.Nm (\w+)", page.partition(".Sh SYNOPSIS")[0], re.M)) & known
    for item in re.split(r"^\.It Bq - Ns Er ", page.partition(".Sh ERRORS\n")[2].partition("\n.Sh ")[0], flags=re.M)[1:]:
        errors, _, text = item.partition("\n")
        here = names
        if re.match(some, text, re.M):
            here = set(re.findall(r"Fn (\w+)", "".join(re.findall(some, text, re.M))))
        for name in here:
            said.setdefault(name, set()).update(re.findall(rf"\b{ERRNO}\b", errors))
    return said


def manual(known):
    """The errors in the manual: {function: errors}, and for pages with one list of causes for all functions {page: errors in the list}."""
    said, causes = {}, {}
    for path in glob.glob(os.path.join(ROOT, "man", "*.3")):
        errors_of = read(path).partition(".Sh ERRORS\n")[2].partition("\n.Sh ")[0]
        if not re.search(r"^\.It Fn |\bfails with:$", errors_of, re.M):
            said.update(listed(read(path), known))
            continue
        above, current, table = [], [], False
        for line in errors_of.splitlines():
            if line.startswith(".Fn ") and not current:
                above.append(line.split()[1])
            elif re.search(r"\bfails? with:$", line):
                above, current = [], above
            elif line in (".Pp", ".El") or line.startswith(".Ss"):
                above, current, table = [], [], False
            elif line.startswith(".It Fn "):
                current, table = re.findall(r"Fn (\w+)", line), True
            elif table and line.startswith(".Er ") or line.startswith(".It Bq - Ns Er "):
                errors = set(re.findall(rf"Er ({ERRNO})", line)) | set(re.findall(rf"\b({ERRNO})\b", line) if table else ())
                for name in current:
                    said.setdefault(name, set()).update(errors)
                if not current:
                    causes.setdefault(os.path.basename(path), set()).update(errors)
    return said, causes


class Errors(unittest.TestCase):
    def setUp(self):
        self.functions = list(functions())
        self.manual, self.causes = manual({f.name for f in self.functions})

    def test_every_function_says_its_errors(self):
        self.assertGreater(len(self.functions), 40)
        silent = [f"{f.header}: {f.name}" for f in self.functions if not f.mark]
        self.assertEqual(silent, [])

    def test_they_have_one_form(self):
        for f in self.functions:
            self.assertRegex(f.said, rf"\A{FORM.pattern}\Z", f"{f.header}: {f.name}")

    def test_the_rest_of_a_comment_names_no_other(self):
        for f in self.functions:
            self.assertEqual(set(re.findall(rf"-({ERRNO})\b", f.before)) - f.errors, set(), f"{f.header}: {f.name}")

    def test_the_manual_says_the_same(self):
        for f in self.functions:
            self.assertEqual(self.manual.get(f.name, set()), f.errors, f"{f.header}: {f.name}: the manual has the first, the header the second")

    def test_the_manual_names_no_other_function(self):
        self.assertEqual(set(self.manual) - {f.name for f in self.functions}, set())

    def test_a_page_explains_what_its_functions_return(self):
        """If a page has one list of causes, it has the same errors as the page's table of functions."""
        for page, explained in self.causes.items():
            named = set(re.findall(r"^\.Nm (\w+)", read(os.path.join(ROOT, "man", page)), re.M))
            returned = set().union(*(self.manual[n] for n in named if n in self.manual))
            self.assertEqual(explained, returned, page)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
