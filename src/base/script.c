/* SPDX-License-Identifier: MIT
 *
 * Checks that the interpreter of a script exists.
 */
#include "base/base.h"
#include "base/process.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int base_check_interpreter(const char *path)
{
    char line[257];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
    if (fd >= 0)
        close(fd);
    if (n < 3 || line[0] != '#' || line[1] != '!')
        return 0;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    char *name = line + 2 + strspn(line + 2, " \t");
    name[strcspn(name, " \t")] = '\0';
    if (!name[0] || access(name, F_OK) == 0 || errno != ENOENT)
        return 0;
    size_t len = strlen(name);
    bool windows = name[len - 1] == '\r';
    if (windows)
        name[len - 1] = '\0';
    return base_fail(-ENOENT, "'%s' cannot be executed: its interpreter '%s'%s", path, name,
                     windows ? ": the line ends with a carriage return, as on Windows: remove it"
                             : ", which its first line names, does not exist; correct that line, or install the interpreter");
}
