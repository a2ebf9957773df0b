/* SPDX-License-Identifier: MIT
 *
 * Prints the events of a job as JSON objects, for `weft exec --json`.
 */
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "cli/exec.h"

static void print_json(struct exec_print *p, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (text) {
        relay_say(&p->out, text, strlen(text));
        relay_say(&p->out, "\n", 1);
    }
    free(text);
    json_decref(o);
}

/* Add bytes to a JSON object: as text if they are UTF-8, else as base64. */
static void put_bytes(json_t *o, const char *bytes, size_t len)
{
    json_t *text = json_stringn(bytes, len);
    if (text) {
        json_object_set_new(o, "text", text);
        return;
    }
    size_t room = sodium_base64_ENCODED_LEN(len, sodium_base64_VARIANT_ORIGINAL);
    char *coded = malloc(room);
    if (coded)
        json_object_set_new(o, "base64",
                            json_string(sodium_bin2base64(coded, room, (const unsigned char *)bytes, len, sodium_base64_VARIANT_ORIGINAL)));
    free(coded);
}

/* A sentence as JSON. The sentence may contain a file's name that is not UTF-8. Then "?" replaces each byte that is not ASCII. */
static json_t *sentence(const char *text)
{
    json_t *o = json_string(text);
    char *copy = o ? NULL : strdup(text);
    for (char *p = copy; p && *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    if (copy)
        o = json_string(copy);
    free(copy);
    return o ? o : json_null();
}

void exec_print_json(struct exec_print *p, const struct control_frame *f, const char *host, const char *payload)
{
    static const char *const names[] = {
        [CONTROL_STARTED] = "started", [CONTROL_OUT] = "output", [CONTROL_ENDED] = "ended", [CONTROL_ERROR] = "error"};
    json_t *o = json_pack("{ss sI ss}", "event", names[f->type], "node", (json_int_t)f->node, "host", host);
    if (!o)
        return;
    if (f->type == CONTROL_OUT) {
        json_object_set_new(o, "stream", json_string(f->number == 2 ? "stderr" : "stdout"));
        put_bytes(o, payload, f->bytes);
    } else if (f->type == CONTROL_ERROR) {
        json_object_set_new(o, "error", sentence(payload));
    } else {
        json_object_set_new(o, f->type == CONTROL_STARTED ? "pid" : "status", json_integer(f->number));
    }
    print_json(p, o);
}
