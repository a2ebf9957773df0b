#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The manual agrees with the headers and with the command, and its examples compile.

Usage: CC=COMPILER test_man.py PATH-OF-WEFT SOURCE-ROOT
"""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

WEFT, ROOT = (os.path.abspath(a) for a in sys.argv[1:3])
MAN = os.path.join(ROOT, "man")


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def output(*args):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "MLX_", "JACCL_"))}
    return subprocess.run([WEFT, *args], stdout=subprocess.PIPE, text=True, check=True, timeout=60, env=env).stdout


def macros(page):
    """The lines of a page, without comments."""
    return [line for line in read(MAN, page).splitlines() if not line.startswith('.\\"')]


class Functions(unittest.TestCase):
    """Each function of the library must have a page. Functions that kernels of GPUs call, and types, may have one."""

    def setUp(self):
        self.declared, self.of_kernels, self.types, self.header = set(), set(), set(), {}
        for path in glob.glob(os.path.join(ROOT, "include", "weft", "*.h")):
            text = read(path)
            for line in text.splitlines():
                if line.startswith(("WEFT_API ", "static inline ")):
                    self.declared.add(re.search(r"(\w+)\(", line)[1])
            self.of_kernels |= set(re.findall(r"^WEFT_DEVICE_CALL [^;{(\n]*?(\w+)\(", text, re.M))
            self.types |= set(re.findall(r"^} (weft_\w+);", text, re.M))
            self.header["weft_" + os.path.basename(path)[:-2]] = text
        self.named, self.shown, self.overviews = {}, {}, []
        for path in glob.glob(os.path.join(MAN, "*.3")):
            page = os.path.basename(path)
            names, _, rest = "\n".join(macros(page)).partition(".Sh SYNOPSIS")
            found = re.findall(r"^\.Nm (\w+)", names, re.M)
            if found == [page[:-2]] and found[0] in self.header:
                self.overviews.append(page)  # of a header whose functions other pages describe
                found = []
            for name in found:
                self.assertNotIn(name, self.named, f"{page} describes it, and another page")
                if name not in self.types:
                    self.named[name] = page
            for name in re.findall(r"^\.F[no] (weft_\w+)", rest.partition(".Sh DESCRIPTION")[0], re.M):
                self.shown[name] = page

    def test_every_function_has_a_page(self):
        self.assertGreater(len(self.declared), 40)
        self.assertEqual(self.declared - set(self.named), set())

    def test_every_function_on_a_page_exists(self):
        self.assertEqual(set(self.named) - self.declared - self.of_kernels, set())

    def test_an_overview_and_its_pages_refer_to_each_other(self):
        self.assertTrue(self.overviews)
        for page in self.overviews:
            pages = {other for name, other in self.named.items() if re.search(rf"^(WEFT_API|static inline) .*\b{name}\(", self.header[page[:-2]], re.M)}
            self.assertTrue(pages, page)
            for one, other in [(page, p) for p in pages] + [(p, page) for p in pages]:
                self.assertIn(f".Xr {other[:-2]} 3", [line.removesuffix(" ,") for line in macros(one)], f"{one} does not refer to {other}")

    def test_synopsis_shows_what_the_name_section_names(self):
        self.assertEqual(self.named, self.shown)

    def test_synopsis_has_the_parameters_of_the_header(self):
        """Types and names of every parameter, as in the header."""
        text = "\n".join(read(p) for p in glob.glob(os.path.join(ROOT, "include", "weft", "*.h")))
        for name, page in self.shown.items():
            m = re.search(r"^(?:WEFT_API|static inline|WEFT_DEVICE_CALL) [^;{(]*?\b" + name + r"\(([^)]*)\)", text, re.M)
            wanted = [" ".join(re.sub(r"\bWEFT_(?:NEAR|FAR)\b", "", a).split()) for a in m[1].split(",")]
            lines = read(MAN, page)
            one = re.search(r"^\.Fn " + name + r"\b(.*)$", lines, re.M)
            many = re.search(r"^\.Fo " + name + r"\n(.*?)\.Fc$", lines, re.M | re.S)
            got = re.findall(r'"([^"]*)"', many[1] if many else one[1]) or one[1].split()
            self.assertEqual(got, wanted, f"{name} in {page}")


class Structs(unittest.TestCase):
    STRUCT = r"^typedef struct (\w+) \{\n(.*?)^\} \1;"
    UNUSED = r"\w+ (zero|reserved|private_)(\[\d+\])?;"  # fields that a program leaves alone

    def fields(self, body):
        return re.sub(self.UNUSED, "", body).split()

    def test_a_struct_in_a_synopsis_is_as_in_the_header(self):
        text = "\n".join(read(p) for p in glob.glob(os.path.join(ROOT, "include", "weft", "*.h")))
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        declared = {name: self.fields(body) for name, body in re.findall(self.STRUCT, text, re.M | re.S)}
        shown = 0
        for path in glob.glob(os.path.join(MAN, "*.3")):
            synopsis = read(path).partition(".Sh SYNOPSIS")[2].partition(".Sh DESCRIPTION")[0]
            for name, body in re.findall(self.STRUCT, synopsis, re.M | re.S):
                self.assertEqual(self.fields(body), declared[name], f"{name} in {path}")
                shown += 1
        self.assertGreater(shown, 4)


class Examples(unittest.TestCase):
    """The programs on a page, and the functions under EXAMPLES, which need the usual headers."""
    HEADERS = "".join(f"#include <{h}.h>\n" for h in ("errno", "inttypes", "stdio", "stdlib", "string", "weft"))

    def blocks(self, page):
        section = ""
        for line, block in re.findall(r"^\.S[hs] ([^\n]*)$|^\.Bd -literal\n(.*?)^\.Ed$", read(MAN, page), re.M | re.S):
            if line:
                section = line
            elif "#include" in block or section == "EXAMPLES":
                yield block.replace("\\e", "\\").replace("\\&", "")

    def test_they_compile(self):
        pages = sorted(os.path.basename(p) for p in glob.glob(os.path.join(MAN, "*.3")) + [os.path.join(MAN, "weft.7")])
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "example.c")
            for page in pages:
                blocks = list(self.blocks(page))
                self.assertTrue(blocks, f"{page} has no example")
                for block in blocks:
                    with open(source, "w", encoding="utf-8") as f:
                        f.write(("" if "#include" in block else self.HEADERS) + block)
                    p = subprocess.run([*shlex.split(os.environ["CC"]), "-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                                        "-Wno-unused-function", "-I", os.path.join(ROOT, "include"), source],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
                    self.assertEqual(p.returncode, 0, f"{page}:\n{block}\n{p.stdout}")


class Command(unittest.TestCase):
    def subcommands(self):
        names = re.search(r"^Commands:\n((?:  .*\n)+)", output("--help"), re.M)[1]
        return [line.split()[0] for line in names.splitlines()]

    def test_every_subcommand_is_on_the_command_s_page(self):
        self.assertGreaterEqual(len(self.subcommands()), 3)
        for name in self.subcommands():
            self.assertIn(f".It Cm {name}", macros("weft.1"))

    def test_every_option_is_on_its_page(self):
        for sub in self.subcommands():
            page = "\n".join(macros(f"weft-{sub}.1"))
            documented = set(re.findall(r"Fl (-?[\w-]+)", page))
            options = set()
            for line in output(sub, "--help").splitlines():
                # a line that begins with an option describes it, and the options that its text names again
                if re.match(r" +-", line):
                    options |= set(re.findall(r"(?<![\w-])-(-?[a-z][a-z-]*)", line))
            self.assertTrue(options)
            self.assertEqual(options - documented, set(), f"weft-{sub}.1")

    def test_h_is_help(self):
        for sub in self.subcommands():
            self.assertEqual(output(sub, "-h"), output(sub, "--help"), sub)
            self.assertRegex(output(sub, "--help"), r"(?m)^ +-h, --help ", sub)
            self.assertIn(".It Fl h , Fl -help", macros(f"weft-{sub}.1"))

    def test_synopsis_has_every_option_or_says_options(self):
        for sub in self.subcommands():
            synopsis = "\n".join(macros(f"weft-{sub}.1")).partition(".Sh SYNOPSIS")[2].partition(".Sh DESCRIPTION")[0]
            if ".Op Ar options" in synopsis:
                continue
            options = set()
            for line in output(sub, "--help").splitlines():
                if m := re.match(r" +(?:-\w, )?-(-[a-z-]+)", line):
                    options.add(m[1])
            shown = set(re.findall(r"Fl (-[a-z-]+)", synopsis))
            self.assertEqual(options - shown - ({"-verbose"} if ".Op Fl v" in synopsis else set()) -
                             ({"-nodes"} if "Fl n" in synopsis else set()), set(), f"weft-{sub}.1")

    def test_the_command_s_page_refers_to_the_others(self):
        see = set(re.findall(r"Xr weft-(\w+) 1", read(MAN, "weft.1").partition(".Sh SEE ALSO")[2]))
        self.assertEqual(see, set(self.subcommands()))

    def variables(self):
        """The pages of section 7 that describe variables, and the variables of each. (Pages of commands and calls repeat a few.)"""
        found = {}
        for path in glob.glob(os.path.join(MAN, "*.7")):
            page = os.path.basename(path)
            if names := [m[1] for line in macros(page) if (m := re.match(r"\.It Ev (WEFT_\w+)", line))]:
                found[page] = names
        return found

    def test_every_variable_is_described_once(self):
        wanted = [row["variable"] for row in json.loads(output("config", "--json"))]
        self.assertEqual(sorted(v for names in self.variables().values() for v in names), sorted(wanted))

    def test_weft_environment_leads_to_every_variable(self):
        """The page itself, or its list of other pages, names every variable."""
        mentioned = set(re.findall(r"WEFT_\w+", read(MAN, "weft-environment.7")))
        self.assertEqual({v for names in self.variables().values() for v in names} - mentioned, set())

    def test_the_hostfile_s_page_names_the_settings_that_it_cannot_have(self):
        """Every setting but those that the page lists is allowed in a hostfile."""
        text = read(MAN, "weft-hostfile.5").partition(".Ss Settings of the hostfile")[2].partition(".Ss ")[0]
        said = set(re.findall(r"\bLi ([a-z_]+)", text))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "hosts.json")
            refused = set()
            for row in json.loads(output("config", "--json")):
                with open(path, "w", encoding="utf-8") as f:
                    json.dump({"weft": 1, "settings": {row["name"]: row["value"] or "x"}, "hosts": [{"ssh": "a.local"}]}, f)
                env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "MLX_", "JACCL_"))}
                p = subprocess.run([WEFT, "config"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
                                   timeout=60, env={**env, "WEFT_HOSTFILE": path})
                if "a setting that is allowed in a hostfile" in p.stderr:
                    refused.add(row["name"])
        self.assertEqual(said, refused)

    def test_the_defaults_are_right(self):
        text = " ".join(line for page in sorted(self.variables()) for line in [*macros(page), ".El"])
        for row in json.loads(output("config", "--json")):
            m = re.search(r"\.It Ev " + row["variable"] + r" (.*?)(?=\.It Ev|\.El)", text)
            said = re.search(r"The default is (?:\.Ql )?(\w+(?:[:,]\w+)*)", m[1])
            if said:
                self.assertEqual(said[1], row["default"], row["variable"])

    def test_variables_elsewhere_exist(self):
        wanted = {row["variable"] for row in json.loads(output("config", "--json"))}
        for path in glob.glob(os.path.join(MAN, "*.[1357]")):
            for name in re.findall(r"Ev (WEFT_\w+)", read(path)):
                self.assertIn(name, wanted | {"WEFT_"}, path)


class Format(unittest.TestCase):
    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_mandoc_finds_nothing(self):
        pages = sorted(glob.glob(os.path.join(MAN, "*.[1357]")))
        p = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(p.stdout, "")

    def test_every_page_is_installed(self):
        pages = {p for p in os.listdir(MAN) if re.search(r"\.\d$", p)}
        listed = re.findall(r"'([\w.-]+)'", read(MAN, "meson.build").partition("man_pages = [")[2].partition("]")[0])
        self.assertEqual(sorted(listed), sorted(pages))

    def test_quotes_end_with_their_word(self):
        """A quoting macro applies to the rest of its line, so no text may follow that must not be quoted."""
        for page in sorted(os.listdir(MAN)):
            if page.endswith(("1", "3", "5", "7")):
                for line in macros(page):
                    self.assertNotRegex(line, r"^\.(.* )?[DQS]q .*( No | [:;,.] \w| [DQS]q )", page)

    def test_references_lead_somewhere(self):
        pages = {os.path.basename(p) for p in glob.glob(os.path.join(MAN, "*.[1357]"))}
        functions = {n for p in pages if p.endswith(".3")
                     for n in re.findall(r"^\.Nm (weft_\w+)", read(MAN, p), re.M)}
        for page in sorted(pages):
            for name, section in re.findall(r"\bXr (weft\S*) (\d)", read(MAN, page)):
                known = f"{name}.{section}" in pages or (section == "3" and name in functions)
                self.assertTrue(known, f"{page} refers to {name}({section})")

    def test_references_to_sections_lead_somewhere(self):
        """Of the same page, or, as "Joining in weft(7)", of another page."""
        for path in glob.glob(os.path.join(MAN, "*.[1357]")):
            for section, name, number in re.findall(r"^\.Sx (\w[\w ]*?)(?: [.,;:)])*$(?:\nin\n\.Xr (\S+) (\d))?", read(path), re.M):
                there = os.path.join(MAN, f"{name}.{number}") if name else path
                found = re.search(rf"^\.S[hs] {re.escape(section)}$", read(there), re.M)
                self.assertTrue(found, f"{path} refers to the section {section} of {there}")


class Length(unittest.TestCase):
    """Nobody reads a long page from its start. So a header has an overview, and each of the pages to which it leads is short, too."""

    def test_an_overview_and_its_pages_are_short(self):
        for header in glob.glob(os.path.join(ROOT, "include", "weft", "*.h")):
            overview = os.path.join(MAN, f"weft_{os.path.basename(header)[:-2]}.3")
            if not os.path.exists(overview):
                continue
            text = read(overview)
            if re.findall(r"^\.Nm (\w+)", text.partition(".Sh SYNOPSIS")[0], re.M) != [os.path.basename(overview)[:-2]]:
                continue
            pages = set(re.findall(r"^\.It Xr (weft_\w+) 3$", text, re.M))
            self.assertGreater(len(pages), 1, overview)
            for page in [os.path.basename(overview)] + [f"{name}.3" for name in pages if os.path.exists(os.path.join(MAN, f"{name}.3"))]:
                # the words of the source without the names of macros: about a tenth more than are shown
                words = sum(len(re.sub(r"^\.\w+", "", line).split()) for line in macros(page))
                self.assertLess(words, 1200, page)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
