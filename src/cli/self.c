/* SPDX-License-Identifier: MIT
 *
 * Finds the paths of this program and of the other programs of its installation.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/self.h"

static const char *program_path(char *buf, size_t len)
{
    ssize_t n = readlink("/proc/self/exe", buf, len - 1);
    if (n <= 0 || (size_t)n == len - 1) /* a path of the whole length may have been cut */
        n = snprintf(buf, len, "weft");
    buf[n] = '\0';
    return buf;
}

/* Whether a file or directory belongs to this program's owner, to root or to this user. If the program was copied into /tmp, anybody may
 * put files beside the program. The small command (front.c) has this check, too. */
static bool is_trusted(const char *path)
{
    struct stat st, self;
    return stat(path, &st) == 0 &&
           (st.st_uid == 0 || st.st_uid == geteuid() || (stat("/proc/self/exe", &self) == 0 && st.st_uid == self.st_uid));
}

int self_beside(const char *place, char path[PATH_MAX])
{
    char self[3072], at[PATH_MAX], folder[PATH_MAX], *slash = strrchr(program_path(self, sizeof self), '/');
    int n = slash ? snprintf(at, sizeof at, "%.*s/%s", (int)(slash - self), self, place) : 0;
    if (n <= 0 || n >= (int)sizeof at)
        return -ENOENT;
    if (!realpath(at, path))
        return -errno;
    snprintf(folder, sizeof folder, "%s", path);
    slash = strrchr(folder, '/');
    slash[slash == folder] = '\0';
    return is_trusted(path) && is_trusted(folder) ? 0 : -EPERM;
}

const char *self_path(char *buf, size_t len)
{
    program_path(buf, len);
#if defined(WEFT_FRONT)
    static const char *const places[] = {WEFT_FRONT, "../weft"}; /* paths of the small command: when installed; in the build folder */
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (self_beside(places[i], path) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0 &&
            strlen(path) < len)
            return strcpy(buf, path);
#endif
    return buf;
}
