/* SPDX-License-Identifier: MIT
 *
 * Reads files and JSON that users write, and makes error messages about them.
 */
#include "input.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sv_fail(struct sv_why *why, int error, const char *format, ...)
{
    if (why) {
        va_list args;
        va_start(args, format);
        vsnprintf(why->text, sizeof why->text, format, args);
        va_end(args);
    }
    return -error;
}

int sv_read_file(const char *path, char **text, size_t *bytes, struct sv_why *why)
{
    FILE *f = fopen(path, "rbe");
    char *all = NULL;
    int rc = 0;
    if (!f) {
        rc = errno;
        return sv_fail(why, rc, "cannot read %s: %s", path, strerror(rc));
    }
    /* read, not mapped: it may be a pipe, and another process may truncate it */
    size_t room = 64 << 10, got = 0;
    for (;;) {
        char *more = realloc(all, room);
        if (!more) {
            rc = sv_fail(why, ENOMEM, "%s: no memory to read the file; end other programs", path);
            goto out;
        }
        all = more;
        got += fread(all + got, 1, room - got, f);
        if (got < room)
            break;
        if (room >= SV_INPUT_MAX) {
            rc = sv_fail(why, EFBIG, "%s: the file is too long: a profile or topology file may have at most %d MiB", path,
                         SV_INPUT_MAX >> 20);
            goto out;
        }
        room *= 2;
    }
    if (ferror(f)) {
        rc = errno ? errno : EIO;
        rc = sv_fail(why, rc, "cannot read %s: %s", path, strerror(rc));
    }
out:
    fclose(f);
    if (rc) {
        free(all);
        return rc;
    }
    *text = all;
    *bytes = got;
    return 0;
}

int sv_read_object(const char *text, size_t bytes, const char *origin, json_t **object, struct sv_why *why)
{
    json_error_t e;
    if (bytes > SV_INPUT_MAX)
        return sv_fail(why, EFBIG, "%s: the text is too long: a profile or a topology may have at most %d MiB", origin, SV_INPUT_MAX >> 20);
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return sv_fail(why, EINVAL, "%s:%d:%d: not JSON: %s", origin, e.line, e.column, e.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return sv_fail(why, EINVAL, "%s: the text is a JSON array: write a JSON object, { \"name\": ... }", origin);
    }
    *object = root;
    return 0;
}

const char *sv_found(const json_t *value, char found[SV_FOUND])
{
    if (json_is_object(value))
        return "an object";
    if (json_is_array(value) && json_array_size(value) == 0)
        return "an empty array";
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_COMPACT);
    if (!text)
        return "something unreadable";
    if (strlen(text) < SV_FOUND)
        strcpy(found, text);
    else
        snprintf(found, SV_FOUND, "%.*s...", SV_FOUND - 5, text);
    free(text);
    return found;
}

bool sv_name_valid(const char *name, size_t bytes)
{
    size_t n = strnlen(name, bytes);
    if (n == 0 || n == bytes || name[0] == '.' || name[0] == '-')
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}
