/* SPDX-License-Identifier: MIT
 *
 * Follows a path through a JSON text. The scanner expects valid JSON, but never reads past the end of other text.
 */
#include "cluster/position.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) && *c->at)
        c->at++;
}

static void skip_string(struct cursor *c)
{
    for (c->at++; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && c->at + 1 < c->end)
            c->at++;
    if (c->at < c->end)
        c->at++;
}

static void skip_value(struct cursor *c)
{
    size_t depth = 0;
    while (c->at < c->end) {
        char ch = *c->at;
        if (ch == '"') {
            skip_string(c);
        } else if (ch == '{' || ch == '[') {
            depth++;
            c->at++;
        } else if (ch == '}' || ch == ']') {
            if (depth == 0)
                return; /* the end of the enclosing object or list */
            depth--;
            c->at++;
        } else if (depth == 0 && (ch == ',' || isspace((unsigned char)ch))) {
            return;
        } else {
            c->at++;
            continue; /* inside a number or a word */
        }
        if (depth == 0)
            return;
    }
}

/* Move from the start of an object or list to its member `step`. Returns false if there is no such member. Keys with escapes are not found,
 * so an error about such a key has the line of the object. */
static bool position_enter(struct cursor *c, const struct position_step *step)
{
    if (c->at >= c->end || *c->at != (step->key ? '{' : '['))
        return false;
    c->at++;
    for (size_t i = 0;; i++) {
        skip_space(c);
        if (c->at >= c->end || *c->at == '}' || *c->at == ']')
            return false;
        bool here = !step->key && i == step->index;
        if (step->key) {
            const char *key = c->at + 1;
            skip_string(c);
            size_t len = strlen(step->key);
            here = (size_t)(c->at - key) == len + 1 && memcmp(key, step->key, len) == 0;
            skip_space(c);
            if (c->at < c->end && *c->at == ':')
                c->at++;
            skip_space(c);
        }
        if (here)
            return true;
        const char *before = c->at;
        skip_value(c);
        skip_space(c);
        if (c->at < c->end && *c->at == ',')
            c->at++;
        else if (c->at == before)
            return false; /* not JSON */
    }
}

unsigned position_line(const char *text, size_t len, const struct position_path *path)
{
    struct cursor c = {text, text + len};
    skip_space(&c);
    const char *found = c.at;
    for (unsigned i = 0; i < path->depth && position_enter(&c, &path->steps[i]); i++)
        found = c.at;
    unsigned line = 1;
    for (const char *p = text; p < found; p++)
        line += *p == '\n';
    return line;
}

const char *position_name(const struct position_path *path, char *buf, size_t len)
{
    size_t n = 0;
    for (unsigned i = 0; i < path->depth && n < len; i++) {
        const struct position_step *s = &path->steps[i];
        int m = s->key ? snprintf(buf + n, len - n, "%s%.60s", i ? "." : "", s->key) : snprintf(buf + n, len - n, "[%zu]", s->index);
        n += m > 0 ? (size_t)m : 0;
    }
    if (!path->depth)
        snprintf(buf, len, "the file");
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return buf;
}
