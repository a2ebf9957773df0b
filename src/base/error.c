/* SPDX-License-Identifier: MIT
 *
 * Stores the text of the last error, one for each thread, as dlerror() does.
 */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "weft/types.h"

#define ERROR_MAX 1024

static _Thread_local char message[ERROR_MAX];

int(base_fail)(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return code;
}

int(base_context)(int code, const char *format, ...)
{
    char front[ERROR_MAX], whole[ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(front, sizeof front, format, args);
    va_end(args);
    /* If the text is too long, cut its end: the beginning is the most useful part. */
    size_t n = strnlen(front, sizeof front - 3);
    memcpy(whole, front, n);
    memcpy(whole + n, ": ", 2);
    size_t rest = strnlen(message, sizeof whole - n - 3);
    memcpy(whole + n + 2, message, rest);
    whole[n + 2 + rest] = '\0';
    memcpy(message, whole, n + rest + 3);
    return code;
}

const char *base_error(void)
{
    return message;
}

void base_error_clear(void)
{
    message[0] = '\0';
}

const char *base_strerror(int code)
{
    static _Thread_local char text[128];
    int error = code < 0 ? -code : code;
#if defined(__GLIBC__)
    return strerror_r(error, text, sizeof text); /* GNU's variant returns the text */
#else
    if (strerror_r(error, text, sizeof text))
        snprintf(text, sizeof text, "error %d", error);
    return text;
#endif
}

const char *weft_error(void)
{
    return base_error();
}

const char *weft_version(void)
{
    return WEFT_VERSION;
}
