/* SPDX-License-Identifier: MIT
 *
 * Recognizes programs into which the loader does not load this library: static programs, and those for which the loader ignores the
 * environment variables that name the library. Such programs run, but find no devices, and only this command can tell the user why.
 */
#include "subcommand.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Opens the file that execvp() would run as `program`. -1: none. */
static int open_program(const char *program)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];
    if (strchr(program, '/'))
        return open(program, O_RDONLY | O_CLOEXEC);
    for (const char *p = path ? path : "/bin:/usr/bin"; *p;) {
        size_t n = strcspn(p, ":");
        int length = snprintf(file, sizeof file, "%.*s%s%s", (int)n, p, n ? "/" : "", program);
        if (length > 0 && (size_t)length < sizeof file && access(file, X_OK) == 0)
            return open(file, O_RDONLY | O_CLOEXEC);
        p += n + (p[n] == ':');
    }
    return -1;
}

/* Whether the file has a note named "softverbs". A static program with this note only starts other programs, so the user need not be
 * warned. */
static bool has_our_note(int fd, const Elf64_Phdr *part)
{
    static const char name[] = "softverbs";
    char notes[1024];
    size_t most = part->p_filesz < sizeof notes ? (size_t)part->p_filesz : sizeof notes;
    ssize_t n = part->p_offset > INT32_MAX ? 0 : pread(fd, notes, most, (off_t)part->p_offset);
    return n > 0 && memmem(notes, (size_t)n, name, sizeof name);
}

/* Whether the file is a static executable for this machine: it names no loader, and does not have the note. */
static bool is_static(int fd)
{
    Elf64_Ehdr head;
    Elf64_Phdr part;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof part || head.e_phnum == 0 || head.e_phoff > INT32_MAX)
        return false;
    for (unsigned i = 0; i < head.e_phnum; i++) {
        if (pread(fd, &part, sizeof part, (off_t)(head.e_phoff + i * sizeof part)) != (ssize_t)sizeof part || part.p_type == PT_INTERP ||
            (part.p_type == PT_NOTE && has_our_note(fd, &part)))
            return false;
    }
    return true;
}

/* Whether the program gets rights that its caller does not have. Then the loader ignores LD_PRELOAD and LD_LIBRARY_PATH. */
static bool gains_rights(int fd)
{
    struct stat s;
    if (fstat(fd, &s))
        return false;
    return (s.st_mode & S_ISUID && s.st_uid != getuid()) || (s.st_mode & S_ISGID && s.st_gid != getgid()) ||
           (geteuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0);
}

void cli_warn_linked(const char *program)
{
    int saved = errno, fd = open_program(program);
    if (fd >= 0 && is_static(fd))
        cli_error("run",
                  "warning: '%s' is statically linked: it does not load softverbs' library, so it sees no devices of softverbs (programs "
                  "that it starts may see them). Link this program dynamically",
                  program);
    else if (fd >= 0 && gains_rights(fd))
        cli_error("run",
                  "warning: '%s' is set-user-ID, set-group-ID or has capabilities: the loader ignores LD_PRELOAD for this program, so it "
                  "sees no softverbs devices. Run a copy without these rights (made with cp)",
                  program);
    if (fd >= 0)
        close(fd);
    errno = saved;
}
