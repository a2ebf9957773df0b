#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command `softverbs`: fabrics are made, shown and removed; programs start on them; every wrong command line gets a message.

Usage: test_command.py PATH-OF-SOFTVERBS PATH-OF-COMMAND_CLIENT MANUAL [TEST...]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from command import COMMAND, LIMIT, Base

MANUAL = os.path.abspath(sys.argv[3])
SUBCOMMANDS = ("run", "up", "ls", "down", "reboot", "fault", "topo", "profile")


class Words(Base):
    """Help, and wrong command lines."""

    def test_help_tells_of_every_command_in_one_screen(self):
        text = self.good("--help")
        self.assertLessEqual(len(text.splitlines()), 36)
        for sub in SUBCOMMANDS:
            self.assertRegex(text, rf"(?m)^  {sub} ")
            own = self.good(sub, "--help")
            self.assertTrue(own.startswith(f"Usage: softverbs {sub}"), own)
            self.assertLessEqual(len(own.splitlines()), 36)
            self.assertEqual(own, self.good("help", sub))
            for line in (text + own).splitlines():
                self.assertLessEqual(len(line), 120)

    def test_version(self):
        self.assertRegex(self.good("--version"), r"^softverbs \d+\.\d+\.\d+\n$")

    def test_no_command(self):
        self.bad(2, "unknown command 'rnu'; did you mean 'run'", "rnu")
        self.good("up", "mesh", "2")
        self.bad(125, "no host '9'; its first is '0'", "run", "--host", "9", "--", "true")  # no guess: nothing is alike
        self.bad(1, "there is no fabric 'x'; `softverbs ls`", "ls", "--fabric", "x")
        self.good("down")
        self.bad(2, "unknown command 'xyzzy'", "xyzzy")
        self.bad(2, "unknown option '--fabric'", "--fabric")
        self.assertEqual(self.call().returncode, 2)

    def test_wrong_options(self):
        self.bad(2, "'--fabrik'; did you mean '--fabric'", "ls", "--fabrik", "x")
        self.bad(2, "unknown option '-x'", "down", "-x")
        self.bad(2, "'--fabric' needs a value", "up", "--fabric")
        self.bad(2, "unexpected word 'x'", "ls", "x")
        self.bad(2, "--json.* takes no value", "ls", "--json=1")

    def test_wrong_rules(self):
        for pattern, *words in (
                ("the kind is missing", "add"),
                ("unknown kind 'dorp'; did you mean 'drop'", "add", "dorp"),
                ("the time is missing.*--time", "add", "delay"),
                ("--time is for", "add", "drop", "--time", "1ms"),
                ("the call is missing.*--verb", "add", "refuse", "--errno", "EIO"),
                ("the error is missing.*--errno", "add", "refuse", "--verb", "reg_mr"),
                ("--verb 'reg_rm'.*one of: open_device, .*reg_mr", "add", "refuse", "--verb", "reg_rm"),
                ("--errno 'EWHAT'", "add", "refuse", "--errno", "EWHAT"),
                ("--chance '2'", "add", "drop", "--chance", "2"),
                ("--chance '0'", "add", "drop", "--chance", "0"),
                ("--chance '101%'", "add", "drop", "--chance", "101%"),
                ("--time '5'.*unit", "add", "delay", "--time", "5"),
                ("--nth '0'", "add", "drop", "--nth", "0"),
                ("--seed without --chance", "add", "drop", "--seed", "1"),
                ("the device belongs to a host already", "add", "drop", "--device", "0:x", "--host", "0"),
                ("clear 'x': expected a rule's number", "clear", "x"),
                ("did you mean 'add drop'", "drop"),
                ("did you mean 'clear'", "claer"),
                ("the device is missing", "pull"),
                ("its only options", "pull", "--nth", "2", "0:x")):
            self.bad(2, pattern, "fault", *words)

    def test_lost_output_is_a_failure(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            p = subprocess.run([COMMAND, "profile"], env=self.env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("cannot write to standard output", p.stderr)


class Manual(Base):
    def test_it_has_every_command_and_option(self):
        with open(MANUAL, encoding="utf-8") as f:
            page = "\n".join(line for line in f.read().splitlines() if not line.startswith('.\\"'))
        documented = set(re.findall(r"Fl -([\w-]+)", page))
        for sub in SUBCOMMANDS:
            self.assertIn(f".It Cm {sub}", page)
            used = set(re.findall(r"(?<![\w-])--([a-z]+)", self.good(sub, "--help")))
            self.assertEqual(used - documented, set(), sub)

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_mandoc_finds_nothing(self):
        p = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", MANUAL], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, check=False)
        self.assertEqual(p.stdout, "")


class Fabrics(Base):
    def test_it_comes_and_goes(self):
        self.assertIn("no fabrics", self.good("ls"))
        self.assertEqual(self.good("up", "--fabric", "macs", "--profile", "tb5", "--seed", "7", "mesh", "3"), "")
        self.assertEqual(os.stat(self.env["SOFTVERBS_DIR"]).st_mode & 0o777, 0o700)
        (f,) = self.fabrics().values()
        self.assertEqual((f["fabric"], f["profile"], f["topology"], f["seed"], f["hosts"]), ("macs", "tb5", "mesh 3", 7, 3))
        self.assertEqual(len(f["devices"]), 6)
        self.assertEqual({d["port"] for d in f["devices"]}, {"active"})
        self.assertEqual(f["devices"][0]["mr"], {"used": 0, "limit": 100})
        self.assertEqual((f["processes"], f["faults"]), ([], []))
        self.assertIn("fabric macs", self.good("ls", "--fabric", "macs"))
        self.bad(1, "there is a fabric 'macs' already.*down --fabric macs", "up", "--fabric", "macs", "switch", "2")
        self.bad(1, "there is no fabric 'default'", "down")
        self.good("down", "--fabric", "macs")
        self.assertEqual(self.fabrics(), {})
        self.assertEqual(os.listdir(self.env["SOFTVERBS_DIR"]), [])

    def test_names(self):
        self.good("up", "switch", "2")
        self.good("up", "switch", "2", SOFTVERBS_FABRIC="one")
        self.good("up", "--profile", "tb5", "switch", "2")
        self.good("up", "--profile", "tb5", "--fabric", "two", "switch", "2", SOFTVERBS_FABRIC="one")
        self.assertEqual(sorted(self.fabrics()), ["default", "one", "tb5", "two"])
        self.bad(1, "'../x' cannot name a fabric", "up", "--fabric", "../x", "switch", "2")
        self.bad(1, "SOFTVERBS_FABRIC: 'a/b' cannot name", "up", "switch", "2", SOFTVERBS_FABRIC="a/b")
        self.good("down", "--all")
        self.assertEqual(self.fabrics(), {})
        self.good("down", "--all")

    def test_other_files_are_left_alone(self):
        os.mkdir(self.env["SOFTVERBS_DIR"])
        path = os.path.join(self.env["SOFTVERBS_DIR"], "letter")
        with open(path, "w", encoding="ascii") as f:
            f.write("1SFvacation greetings")
        self.assertEqual(self.fabrics(), {})
        self.good("down", "--all", "--force")
        self.bad(1, "letter", "down", "--force", "--fabric", "letter")
        self.assertTrue(os.path.exists(path))

    def test_another_version_s_file_is_refused_and_can_be_removed(self):
        self.good("up", "switch", "2")
        with open(os.path.join(self.env["SOFTVERBS_DIR"], "default"), "r+b") as f:
            f.seek(8)
            f.write(b"12345678")
        self.bad(1, "version", "ls")
        self.bad(1, "down --force --fabric default", "fault", "list")
        self.bad(125, "down", "run", "--", "true")
        self.good("down")
        self.assertEqual(self.fabrics(), {})

    def test_what_cannot_be_made(self):
        self.bad(1, "topology 'mesh 0'", "up", "mesh", "0")
        self.bad(1, "topology 'star 3'", "up", "star", "3")
        self.bad(1, "profile 'tb6'.*did you mean 'tb5'", "up", "--profile", "tb6", "mesh", "2")
        self.bad(2, "the topology is missing", "up")
        self.bad(2, "--seed 'x'", "up", "--seed", "x", "mesh", "2")
        self.assertEqual(self.fabrics(), {})

    def test_topology(self):
        planned = json.loads(self.good("topo", "--profile", "tb5", "ring", "4"))
        self.good("up", "--profile", "tb5", "ring", "4")
        self.assertEqual(json.loads(self.good("topo", "--fabric", "tb5")), planned)
        path = os.path.join(self.dir, "mine.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(planned, f)
        self.good("up", "--fabric", "copy", "--profile", "tb5", path)
        self.assertEqual(json.loads(self.good("topo", "--fabric", "copy", "--json")), planned)
        dot = self.good("topo", "--fabric", "copy", "--dot")
        self.assertRegex(dot, r"^(strict )?graph ")
        self.bad(2, "together", "topo", "--json", "--dot", "mesh", "2")
        self.bad(2, "together", "topo", "--fabric", "copy", "mesh", "2")
        self.bad(2, "needs a topology", "topo", "--profile", "tb5")

    def test_matrix(self):
        """MLX's hostfile, of a plan and of a live fabric, also after a cable was moved."""
        def rows(*args):
            hosts = json.loads(self.good("topo", "--matrix", *args))
            self.assertEqual([h["ssh"] for h in hosts], [str(i) for i in range(len(hosts))])
            return [h["rdma"] for h in hosts]

        a, b = "rdma_en2", "rdma_en3"
        ring = [[None, a, None, b], [b, None, a, None], [None, b, None, a], [a, None, b, None]]
        self.assertEqual(rows("--profile", "tb5", "ring", "4"), ring)
        self.good("up", "--profile", "tb5", "chain", "3")
        self.assertEqual(rows("--fabric", "tb5"), [[None, a, None], [a, None, b], [None, a, None]])
        self.good("fault", "plug", "--fabric", "tb5", "0:rdma_en2", "1:rdma_en3")
        self.assertEqual(rows("--fabric", "tb5"), [[None, a, None], [b, None, None], [None, None, None]])
        self.bad(2, "together", "topo", "--json", "--matrix", "mesh", "2")
        path = os.path.join(self.dir, "lonely.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"hosts": ["a", "b"]}, f)
        self.bad(1, "'lonely': no cable and no switch joins any two hosts", "topo", "--matrix", path)

    def test_profiles(self):
        names = [p["name"] for p in json.loads(self.good("profile", "--json"))]
        self.assertEqual(names, ["generic", "tb5", "tb5-strict"])
        for name in names:
            self.assertRegex(self.good("profile"), rf"(?m)^{name} ")
            text = self.good("profile", name)
            path = os.path.join(self.dir, "p.json")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            self.assertEqual(self.good("profile", path), text)
        self.bad(1, "no/such.json", "profile", "no/such.json")

    def test_many_at_once_make_one(self):
        many = [subprocess.Popen([COMMAND, "run", "--fabric", "new", "--", "/bin/true"], env=self.env, stderr=subprocess.PIPE,
                                 text=True) for _ in range(12)]
        for p in many:
            _, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, err), (0, ""))
        self.assertEqual(list(self.fabrics()), ["new"])


class Run(Base):
    def shell(self, *args, script='echo "$SOFTVERBS_FABRIC $SOFTVERBS_HOST"', **env):
        return self.good("run", *args, "--", "sh", "-c", script, **env).split()

    def test_names(self):
        self.assertEqual(self.shell(), ["default", "0"])
        self.assertEqual(self.shell("--host", "3"), ["default", "3"])
        self.assertEqual(self.shell("--fabric", "x", SOFTVERBS_HOST="5"), ["x", "5"])
        self.assertEqual(self.shell(SOFTVERBS_FABRIC="y", SOFTVERBS_HOST=""), ["y", "0"])
        self.assertEqual(self.shell("--profile", "tb5"), ["tb5", "0"])
        self.assertEqual(self.shell("--profile", "tb5", "--fabric", "z"), ["z", "0"])
        found = {name: f["profile"] for name, f in self.fabrics().items()}
        self.assertEqual(found, {"default": "generic", "x": "generic", "y": "generic", "tb5": "tb5", "z": "tb5"})
        self.assertEqual(self.fabrics()["x"]["topology"], "switch 8")

    def test_what_is_not_there(self):
        self.bad(125, "no host '9'.*It has 8: '0' to '7'", "run", "--host", "9", "--", "true")
        self.bad(125, "no host '9'", "run", "--", "true", SOFTVERBS_HOST="9")
        self.bad(125, "with profile 'generic', and not with 'tb5'.*down --fabric default", "run", "--fabric", "default",
                 "--profile", "tb5", "--", "true")
        self.bad(125, "the program is missing", "run")
        self.bad(125, "the program is missing", "run", "--")
        self.bad(125, "unknown option '--hots'", "run", "--hots", "1", "--", "true")
        self.bad(125, "profile 'tb9'", "run", "--profile", "tb9", "--", "true")
        self.bad(127, "no such program in PATH", "run", "--", "no-such-program")
        self.bad(127, "cannot start './no'", "run", "./no")
        self.bad(126, "cannot start '/etc/passwd': Permission denied", "run", "/etc/passwd")

    def test_the_same_profile_is_no_other(self):
        self.shell("--profile", "tb5")
        self.assertEqual(self.shell("--profile", "tb5", "--host", "1"), ["tb5", "1"])
        path = os.path.join(self.dir, "tb5.json")
        text = json.loads(self.good("profile", "tb5"))
        with open(path, "w", encoding="utf-8") as f:
            json.dump(text, f)
        self.assertEqual(self.shell("--profile", path), ["tb5", "0"])

    def test_a_relative_directory_is_the_same_for_the_program(self):
        there = os.path.join(self.dir, "fabrics")
        word = self.good("run", "--", "sh", "-c", "cd / && echo $SOFTVERBS_DIR", SOFTVERBS_DIR=os.path.relpath(there))
        self.assertEqual(word, os.path.realpath(there) + "\n")

    def test_a_program_with_the_address_sanitizer(self):
        source, program = os.path.join(self.dir, "a.c"), os.path.join(self.dir, "a")
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <stdlib.h>\nint main(int c, char **v) { char *p = malloc(1); if (c > 1) free(p); return *p = 0; }\n")
        library = os.path.join(os.path.dirname(COMMAND), "..", "lib", "verbs", "libibverbs.so.1")
        with open(library, "rb") as file:
            code = file.read()
        if b"__tsan_init" in code:
            self.skipTest("the library itself has the thread sanitizer: no program can have both")
        words = ["gcc"]
        if b"libclang_rt.asan" in code:  # the library has clang's runtime: a process has one
            runtime = subprocess.run(["clang", f"-print-file-name=libclang_rt.asan-{os.uname().machine}.so"], check=True, text=True,
                                     stdout=subprocess.PIPE).stdout
            words = ["clang", "-shared-libasan", "-Wl,-rpath," + os.path.dirname(runtime)]
        if not shutil.which(words[0]) or subprocess.run(words + ["-fsanitize=address", "-o", program, source], check=False,
                                                        stderr=subprocess.DEVNULL).returncode:
            self.skipTest(f"no {words[0]} with an address sanitizer")
        self.good("run", "--", program, ASAN_OPTIONS="detect_leaks=0")
        p = self.call("run", "--", program, "free", ASAN_OPTIONS="detect_leaks=0:exitcode=9")
        self.assertEqual(p.returncode, 9)
        self.assertIn("heap-use-after-free", p.stderr)

    def test_programs_that_no_library_can_be_put_under(self):
        if os.path.exists("/sbin/ldconfig"):  # static in Debian
            p = self.call("run", "--", "/sbin/ldconfig", "--version")
            self.assertEqual(p.returncode, 0)
            self.assertRegex(p.stderr, r"^softverbs run: warning: '/sbin/ldconfig' is statically linked: .*\n$")
        program = os.path.join(self.dir, "static")
        note = r'__asm__(".pushsection .note.softverbs, \"a\", %note\n.balign 4\n.long 10, 0, 1\n.asciz \"softverbs\"\n.balign 4\n.popsection\n");'
        for source, warns in (("int main(void) { return 0; }", True), (note + " int main(void) { return 0; }", False)):
            if not shutil.which("gcc") or subprocess.run(["gcc", "-static", "-x", "c", "-o", program, "-"], input=source, text=True, check=False,
                                                         stderr=subprocess.DEVNULL).returncode:
                break  # no compiler, or no static C library
            self.assertEqual("is statically linked" in self.call("run", "--", program).stderr, warns)
        copy = os.path.join(self.dir, "copy")
        shutil.copy(shutil.which("true"), copy)
        self.good("run", "--", copy)
        if os.getuid() == 0:
            os.chown(copy, 1, 1)
            os.chmod(copy, 0o4755)
            p = self.call("run", "--", "copy", PATH=self.dir)
            self.assertEqual(p.returncode, 0)
            self.assertRegex(p.stderr, r"^softverbs run: warning: 'copy' is set-user-ID, .*\n$")

    def test_the_program_takes_the_place_of_the_command(self):
        p = subprocess.Popen([COMMAND, "run", "--", "sh", "-c", "echo $$; exit 7"], env=self.env, stdout=subprocess.PIPE, text=True)
        out, _ = p.communicate(timeout=LIMIT)
        self.assertEqual((int(out), p.returncode), (p.pid, 7))
        p = self.call("run", "--", "sh", "-c", "kill -TERM $$")
        self.assertEqual(p.returncode, -signal.SIGTERM)

    def test_environment(self):
        script = 'echo "$LD_PRELOAD"; echo "$LD_LIBRARY_PATH"'
        preload, path = self.shell(script=script, LD_LIBRARY_PATH="/nowhere")
        ours = path.removesuffix(":/nowhere")
        self.assertTrue(preload.endswith(ours + "/libibverbs.so.1"), preload)
        for name in ("libibverbs.so.1", "librdma.dylib"):
            self.assertTrue(os.path.exists(os.path.join(ours, name)), name)
        # A program that is started like this may start others in the same way.
        again = self.shell(script=f'{COMMAND} run --host 2 -- sh -c \'echo "$LD_PRELOAD $LD_LIBRARY_PATH $SOFTVERBS_HOST"\'',
                           LD_LIBRARY_PATH="/nowhere")
        self.assertEqual(again, [preload, path, "2"])

    def test_installed(self):
        """The library is found beside the command's own place."""
        root = os.path.join(self.dir, "usr")
        os.makedirs(os.path.join(root, "bin"))
        os.makedirs(os.path.join(root, "lib", "softverbs"))
        command = shutil.copy(COMMAND, os.path.join(root, "bin"))
        p = subprocess.run([command, "run", "--", "true"], env=self.env, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(p.returncode, 125)
        self.assertIn("no libibverbs.so.1", p.stderr)
        path = self.shell(script='echo "${LD_PRELOAD##*:}"')[0]
        os.symlink(path, os.path.join(root, "lib", "softverbs", "libibverbs.so.1"))
        out = subprocess.run([command, "run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"], env=self.env, stdout=subprocess.PIPE,
                             text=True, check=True).stdout
        self.assertEqual(out.split(":")[0].strip(), os.path.realpath(os.path.join(root, "lib", "softverbs")))


class Use(Base):
    """Programs on the devices, seen and treated by the command."""

    def test_ls_shows_who_uses_what(self):
        a = self.client("2")
        a.open("sv0")
        a.qp("rc")
        a.must("mr")
        (p,) = self.fabrics()["default"]["processes"]
        self.assertEqual(p, {"pid": a.process.pid, "host": "2", "command": "command_client"[:15], "qp": 1, "pd": 1, "mr": 2,
                             "cq": 1, "srq": 0})
        d = self.device(2)
        self.assertEqual([d[k]["used"] for k in ("qp", "pd", "mr", "cq", "srq")], [1, 1, 2, 1, 0])
        self.assertRegex(self.good("ls"), rf"{a.process.pid}  2 +command_client")
        self.bad(1, "in use by 1 process, which", "down")
        self.bad(1, "in use by 1 process", "down", "--all")
        a.end()
        self.assertEqual(self.fabrics()["default"]["processes"], [])
        self.assertEqual(self.device(2)["qp"]["used"], 0)
        self.good("down")

    def test_down_by_force(self):
        self.good("up", "switch", "2")
        a, b = self.connected()
        self.good("down", "--force")
        self.assertEqual(self.fabrics(), {})
        b.must("receive 1")
        self.assertEqual(a.tell("send still"), "ok")
        self.assertEqual(b.tell("arrived 1 10000"), "ok still")

    def test_the_last_fabric_takes_the_directory_with_it(self):
        directory, name = f"/dev/shm/softverbs-{os.geteuid()}", f"test-{os.getpid()}"
        if not os.access("/dev/shm", os.W_OK) or os.path.exists(directory):
            self.skipTest("there is no /dev/shm, or this user has fabrics")
        env = {k: v for k, v in os.environ.items() if not k.startswith("SOFTVERBS_")}
        for other in ("-a", "-b"):
            subprocess.run([COMMAND, "up", "--fabric", name + other, "switch", "2"], env=env, check=True)
        subprocess.run([COMMAND, "down", "--fabric", name + "-a"], env=env, check=True)
        self.assertEqual(os.listdir(directory), [name + "-b"])
        subprocess.run([COMMAND, "down", "--fabric", name + "-b"], env=env, check=True)
        self.assertFalse(os.path.exists(directory))

    def test_leaked_domains_are_free_after_a_reboot(self):
        self.good("up", "--profile", "tb5", "mesh", "2")
        a = self.client("0", "tb5")
        a.open("rdma_en2")
        a.must("pd")
        a.must("pd")
        self.bad(1, rf"host '0' of fabric 'tb5' is in use by 1 process: {a.process.pid} \(command_client\)", "reboot", "--fabric",
                 "tb5", "0")
        a.end()
        self.assertEqual((self.device(0, "tb5")["leaked_pd"], self.device(0, "tb5")["pd"]["used"]), (2, 2))
        self.assertIn("2 domains were leaked", self.good("ls"))
        self.good("reboot", "--fabric", "tb5", "1")
        self.assertEqual(self.device(0, "tb5")["leaked_pd"], 2)
        self.good("reboot", "--fabric", "tb5", "0")
        self.assertEqual((self.device(0, "tb5")["leaked_pd"], self.device(0, "tb5")["pd"]["used"]), (0, 0))
        self.bad(1, "no host 'x'", "reboot", "--fabric", "tb5", "x")
        self.bad(2, "the host is missing", "reboot")

    def test_reboot_by_force(self):
        self.good("up", "--profile", "tb5", "mesh", "2")
        a, b = self.client("0", "tb5"), self.client("1", "tb5")
        for c in (a, b):
            c.open("rdma_en2")
            c.must("pd")
        killer = subprocess.Popen([COMMAND, "reboot", "--force", "--fabric", "tb5", "0"], env=self.env, stderr=subprocess.PIPE,
                                  text=True)
        self.assertEqual(a.process.wait(LIMIT), -signal.SIGKILL)
        _, err = killer.communicate(timeout=LIMIT)
        self.assertEqual(killer.returncode, 0, err)
        self.assertIn(f"killing process {a.process.pid} (command_client)", err)
        self.assertIsNone(b.process.poll())
        self.assertEqual(self.device(0, "tb5")["pd"]["used"], 0)
        self.assertEqual(self.device(1, "tb5")["pd"]["used"], 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
