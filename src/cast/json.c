/* SPDX-License-Identifier: MIT
 *
 * Names of files in JSON. A name may have any bytes, but JSON allows only UTF-8.
 */
#include <stdlib.h>
#include <string.h>

#include "cast/show.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Returns the length of the UTF-8 character at `text`, or 0 if there is no valid one. */
static size_t character(const char *text, size_t left)
{
    if ((unsigned char)*text < 0x80)
        return 1;
    for (size_t n = 2; n <= 4 && n <= left; n++) {
        json_t *o = json_stringn(text, n); /* NULL if it is not UTF-8 */
        json_decref(o);
        if (o)
            return n;
    }
    return 0;
}

json_t *cast_json_text(const char *text)
{
    json_t *o = json_string(text);
    size_t left = strlen(text);
    char *copy = o ? NULL : malloc(left * strlen(REPLACEMENT) + 1), *to = copy;
    while (copy && left) {
        size_t n = character(text, left);
        memcpy(to, n ? text : REPLACEMENT, n ? n : strlen(REPLACEMENT));
        to += n ? n : strlen(REPLACEMENT);
        n += n == 0;
        text += n;
        left -= n;
    }
    if (copy) {
        *to = '\0';
        o = json_string(copy);
    }
    free(copy);
    return o ? o : json_null();
}

json_t *cast_json_encoded(const char *path)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    char *coded = malloc(3 * strlen(path) + 1), *to = coded;
    for (; coded && *path; path++)
        if (strchr(plain, *path))
            *to++ = *path;
        else
            to += sprintf(to, "%%%02X", (unsigned char)*path);
    if (coded)
        *to = '\0';
    json_t *o = coded ? json_string(coded) : json_null();
    free(coded);
    return o;
}
