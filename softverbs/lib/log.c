/* SPDX-License-Identifier: MIT
 *
 * SOFTVERBS_LOG: prints messages of the library on standard error; by default only errors.
 */
#include "lib.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int sv_level = SV_ERROR;

/* One write() for each line, so that lines of several processes do not mix. */
static void log_line(const char *format, va_list list)
{
    char text[1024];
    int head = snprintf(text, sizeof text, "softverbs[%d]: ", (int)getpid());
    int body = vsnprintf(text + head, sizeof text - (size_t)head - 1, format, list);
    size_t length = (size_t)head + (body < 0 ? 0 : (size_t)body);

    if (length > sizeof text - 2)
        length = sizeof text - 2;
    text[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t n = write(STDERR_FILENO, text + done, length - done);

        if (n < 0 && errno != EINTR)
            return; /* standard error is closed */
        if (n > 0)
            done += (size_t)n;
    }
}

void sv_log_line(enum sv_level level, const char *format, ...)
{
    int saved = errno;
    va_list list;

    (void)level;
    va_start(list, format);
    log_line(format, list);
    va_end(list);
    errno = saved;
}

int sv_refuse(int error, const char *format, ...)
{
    if (sv_level >= SV_INFO) {
        va_list list;

        va_start(list, format);
        log_line(format, list);
        va_end(list);
    }
    errno = error;
    return error;
}

__attribute__((constructor)) static void log_start(void)
{
    static const struct {
        const char *name;
        int level;
    } levels[] = {{"none", 0}, {"error", SV_ERROR}, {"info", SV_INFO}, {"debug", SV_DEBUG}};
    const char *wanted = getenv("SOFTVERBS_LOG");

    if (!wanted || !*wanted)
        return;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (!strcmp(wanted, levels[i].name)) {
            sv_level = levels[i].level;
            return;
        }
    }
    sv_log(SV_ERROR, "SOFTVERBS_LOG=%s: expected none, error, info or debug", wanted);
}
