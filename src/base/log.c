/* SPDX-License-Identifier: MIT
 *
 * Logging: each line is one write to stderr, so that lines of several nodes do not mix.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Atomic int base_log_threshold = BASE_LOG_WARN;

static const char *const names[] = {"error", "warn", "info", "debug"};
static char speaker[32];

void base_log_set(const char *level)
{
    for (int i = 0; level && i < 4; i++)
        if (strcmp(level, names[i]) == 0)
            atomic_store_explicit(&base_log_threshold, i, memory_order_relaxed);
}

void base_log_name(const char *name)
{
    snprintf(speaker, sizeof speaker, "%s", name);
}

void base_log_write(enum base_log_level level, const char *format, ...)
{
    char line[1280];
    size_t room = sizeof line - 1; /* one byte is for the newline */
    int n = snprintf(line, room, "weft%s%s: %s: ", speaker[0] ? " " : "", speaker, names[level]);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, room - (size_t)n, format, args);
    va_end(args);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > room - 1)
        len = room - 1;
    line[len++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, len);
    (void)written; /* if stderr fails, there is no place to report it */
}
