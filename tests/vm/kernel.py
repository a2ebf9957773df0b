# SPDX-License-Identifier: MIT
"""The kernel of the machines: Debian's package, fetched once, unpacked into a cache, never installed.

A cache entry is a folder named by the package's version, complete from the moment it has its name:

    vmlinux             the kernel, unpacked here since emulated processors take seconds for it
    modules/VERSION/    the modules, with the indexes depmod writes
    boot.cpio           busybox and the modules without which the root cannot be mounted
"""
import fcntl
import glob
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile

META_PACKAGE = "linux-image-amd64"  # the "cloud" flavour has neither 9p nor rdma_rxe
BOOT_MODULES = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "virtio_net"]
# Two thirds of the modules are for hardware that no such machine has.
USELESS = ["sound", *("drivers/" + kind for kind in ("gpu", "media", "staging", "iio", "usb", "scsi", "video", "hid",
                                                     "input", "net/wireless", "net/ethernet", "platform"))]
FETCH_SECONDS = 600
FORMAT = "2"  # part of an entry's name: raised when what an entry holds changes


class Missing(Exception):
    """Something that the machines need is not on this host; the text says what to do."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "weft", "vm")


def cpio(files):
    """An archive of the kind the kernel unpacks at boot; files: (path, mode, bytes)."""
    archive = bytearray()
    for inode, (path, mode, data) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        archive += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        archive += bytes(-len(archive) % 4)
        archive += data
        archive += bytes(-len(archive) % 4)
    return bytes(archive)


def unpack_kernel(image):
    """The ELF file inside a bzImage: where it lies stands in the boot protocol's header."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise Missing("the kernel package's vmlinuz is no bzImage")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start:start + length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        raise Missing("the kernel is compressed in a way unknown here (expected xz)")
    kernel = lzma.LZMADecompressor().decompress(payload)
    if not kernel.startswith(b"\x7fELF"):
        raise Missing("the kernel package's vmlinuz holds no ELF file")
    return kernel


def load_order(modules, wanted):
    """Paths of the wanted modules and all they need, each after what it needs."""
    needs, path_of = {}, {}
    with open(os.path.join(modules, "modules.dep"), encoding="utf-8") as lines:
        for line in lines:
            path, _, rest = line.partition(":")
            needs[path] = rest.split()
            path_of[os.path.basename(path).split(".")[0].replace("-", "_")] = path
    order = []
    for name in wanted:
        if name not in path_of:
            raise Missing(f"the kernel package has no module {name}")
        for path in [*reversed(needs[path_of[name]]), path_of[name]]:
            if path not in order:
                order.append(path)
    return order


def boot_archive(modules, busybox):
    files = [("bin", 0o40755, b""), ("bin/busybox", 0o100755, read(busybox)), ("boot-modules", 0o40755, b"")]
    for folder in ("dev", "proc", "sys"):
        files.append((folder, 0o40755, b""))
    order = load_order(modules, BOOT_MODULES)
    for path in order:
        files.append(("boot-modules/" + os.path.basename(path), 0o100644, read(os.path.join(modules, path))))
    names = "".join(os.path.basename(path) + "\n" for path in order)
    files.append(("boot-modules/order", 0o100644, names.encode()))
    return cpio(files)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def find(command):
    """A command, also where it is not in an ordinary user's PATH."""
    return shutil.which(command, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def said_by(*command, **more):
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, check=False, timeout=FETCH_SECONDS, **more)
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command[:2])}: not done after {FETCH_SECONDS} s") from None
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise Missing(f"{' '.join(command[:2])}: {lines[-1]}")
    return result.stdout


def download(folder, options):
    """The kernel's package as a file in folder; its content is what apt's signed index says."""
    depends = said_by("apt-cache", *options, "depends", META_PACKAGE)
    match = re.search(r"Depends: (linux-image-\S+-amd64)$", depends, re.MULTILINE)
    if not match:
        raise Missing(f"apt knows no {META_PACKAGE}")
    name = match[1]
    shown = said_by("apt-cache", *options, "show", "--no-all-versions", name)
    fields = dict(re.findall(r"^(Version|SHA256): (\S+)$", shown, re.MULTILINE))
    if set(fields) != {"Version", "SHA256"}:
        raise Missing(f"apt knows no version of {name}")
    said_by("apt-get", *options, "download", f"{name}={fields['Version']}", cwd=folder)
    found = glob.glob(os.path.join(folder, "*.deb"))
    if len(found) != 1 or hashlib.sha256(read(found[0])).hexdigest() != fields["SHA256"]:
        raise Missing(f"{name} as fetched is not what apt's index says")
    return found[0]


def fetch(cache):
    """Makes the cache's entry, and prints the steps that take time."""
    for command in ("apt-get", "dpkg-deb", "depmod"):
        if not find(command):
            raise Missing(f"{command} is not here (Debian's packages apt, dpkg and kmod)")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as scratch:
        try:
            package = download(scratch, [])
        except Missing:
            # Package lists of its own, because those of the system may be missing or old, and only root may update them.
            lists, archives = os.path.join(scratch, "lists"), os.path.join(scratch, "archives")
            for folder in (lists, archives):
                os.makedirs(os.path.join(folder, "partial"))
            options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={archives}",
                       "-o", "APT::Sandbox::User=" + ("root" if os.getuid() == 0 else "")]
            try:
                said_by("apt-get", *options, "-o", "APT::Update::Error-Mode=any", "update")
                package = download(scratch, options)
            except Missing as missing:
                raise Missing(f"{missing} (the kernel comes from Debian's archive, by apt and the network, "
                              "and is kept from then on)") from None
        version = os.path.basename(package).removeprefix("linux-image-").removesuffix(".deb")
        tree, entry = os.path.join(scratch, "tree"), os.path.join(scratch, "entry")
        said_by("dpkg-deb", "-x", package, tree)
        os.mkdir(entry)
        image, = glob.glob(os.path.join(tree, "boot", "vmlinuz-*"))
        release = os.path.basename(image).removeprefix("vmlinuz-")
        with open(os.path.join(entry, "vmlinux"), "wb") as file:
            file.write(unpack_kernel(read(image)))
        for useless in USELESS:
            shutil.rmtree(os.path.join(tree, "lib", "modules", release, "kernel", useless), ignore_errors=True)
        said_by(find("depmod"), "-b", tree, release)
        os.rename(os.path.join(tree, "lib", "modules"), os.path.join(entry, "modules"))
        for path, _, _ in os.walk(scratch):
            os.chmod(path, 0o755)
        final = os.path.join(cache, f"{version}.{FORMAT}")
        if os.path.exists(final):
            os.utime(final)
        else:
            os.rename(entry, final)


class Kernel:
    """A cache entry, and the boot archive that goes with the busybox of this host."""

    def __init__(self, say, refresh=False):
        busybox = find("busybox")
        if not busybox:
            raise Missing("busybox is not here: apt-get install busybox-static")
        if b"/ld-linux" in read(busybox)[:4096]:
            raise Missing("busybox needs shared libraries, and the machine starts without: "
                          "apt-get install busybox-static")
        try:
            self.open(cache_folder(), busybox, say, refresh)
        except OSError as error:
            raise Missing(f"the cache of kernels (XDG_CACHE_HOME names another place): {error}") from error

    def open(self, cache, busybox, say, refresh):
        os.makedirs(cache, exist_ok=True)
        entry = None if refresh else self.newest(cache)
        if entry is None:
            with open(os.path.join(cache, "lock"), "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                entry = None if refresh else self.newest(cache)  # another run may have made it meanwhile
                if entry is None:
                    say(f"fetching Debian's kernel package (70 MB) into {cache}, once")
                    fetch(cache)
                    entry = self.newest(cache)
        self.image = os.path.join(entry, "vmlinux")
        self.modules = os.path.join(entry, "modules")
        self.release, = os.listdir(self.modules)
        stamp = hashlib.sha256(read(busybox) + " ".join(BOOT_MODULES).encode()).hexdigest()[:16]
        archive = os.path.join(entry, f"boot-{stamp}.cpio")
        if not os.path.exists(archive):
            with tempfile.NamedTemporaryFile(dir=entry, delete=False) as file:
                file.write(boot_archive(os.path.join(self.modules, self.release), busybox))
            os.rename(file.name, archive)
        self.boot = read(archive)

    @staticmethod
    def newest(cache):
        entries = glob.glob(os.path.join(cache, f"[0-9]*.{FORMAT}"))
        return max(entries, key=os.path.getmtime, default=None)
