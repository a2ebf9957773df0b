/* SPDX-License-Identifier: MIT
 *
 * Where this program is.
 */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/hosts.h"

const char *hosts_program_path(char *buf, size_t len)
{
    ssize_t n = readlink("/proc/self/exe", buf, len - 1);
    if (n <= 0)
        n = snprintf(buf, len, "weft");
    buf[n] = '\0';
    return buf;
}

const char *hosts_own_path(char *buf, size_t len)
{
    hosts_program_path(buf, len);
#if defined(WEFT_FRONT)
    static const char *const places[] = {WEFT_FRONT, "../weft"}; /* where the small command is installed; where it is built */
    char whole[4096], path[4096], *slash = strrchr(buf, '/');
    struct stat st;
    for (size_t i = 0; slash && i < sizeof places / sizeof places[0]; i++) {
        int n = snprintf(whole, sizeof whole, "%.*s/%s", (int)(slash - buf), buf, places[i]);
        if (n < (int)sizeof whole && realpath(whole, path) && stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0 &&
            strlen(path) < len)
            return strcpy(buf, path);
    }
#endif
    return buf;
}
