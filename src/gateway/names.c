/* SPDX-License-Identifier: MIT
 *
 * The asker's side of the name service: the public calls, and requests by record.
 */
#include "gateway/gateway.h"

#include <stdlib.h>
#include <string.h>

static int name_record(weft_request *r, uint32_t node, uint16_t kind, const char *name)
{
    size_t len = name ? strlen(name) : 0;
    *r = (weft_request){.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_NAME, .kind = kind, .node = node};
    if (len == 0 || len >= WEFT_NAME_BYTES)
        return base_fail(-EINVAL, "name '%s': a name must have 1 to %u bytes", name ? name : "", WEFT_NAME_BYTES - 1);
    memcpy(&r->arg[4], name, len);
    return 0;
}

/* Sends a request about names and waits for the answer. */
static int name_ask(weft_node *w, const weft_request *r, int64_t timeout_ns, struct gateway_result *out, void *payload, size_t *len)
{
    struct gateway_question q = {.record = r};
    return gateway_ask_wait(gateway_in(w), &q, timeout_ns, out, payload, len);
}

int weft_name_publish(weft_node *w, uint32_t node, const char *name, weft_gaddr addr, uint64_t bytes, int64_t timeout_ns)
{
    weft_request r;
    int rc = name_record(&r, node, WEFT_NAME_PUBLISH, name);
    r.arg[0] = addr;
    r.arg[1] = bytes;
    return rc ? rc : name_ask(w, &r, timeout_ns, NULL, NULL, NULL);
}

static void name_fill(weft_name *out, const char *name, const uint64_t *words)
{
    *out = (weft_name){.addr = words[0], .bytes = words[1], .owner = (uint32_t)words[2]};
    memcpy(out->name, name, strnlen(name, WEFT_NAME_BYTES - 1));
}

static int name_look(weft_node *w, uint32_t node, const char *name, bool wait, weft_name *out, int64_t timeout_ns)
{
    weft_request r;
    struct gateway_result result;
    int rc = name_record(&r, node, WEFT_NAME_LOOKUP, name);
    if (rc)
        return rc;
    r.flags = wait ? WEFT_NAME_WAIT : 0;
    rc = name_ask(w, &r, timeout_ns, &result, NULL, NULL);
    if (rc == -ENOENT)
        return base_fail(
            rc,
            "no node has published the name '%s' at node %u, or the name was removed: check the name, or wait until it is published "
            "(weft_name_wait())",
            name, node);
    if (rc == -ETIMEDOUT && wait)
        return base_fail(rc, "no node has published the name '%s' at node %u before the deadline; try again, or allow more time", name,
                         node);
    if (!rc)
        name_fill(out, name, result.word);
    return rc;
}

int weft_name_lookup(weft_node *w, uint32_t node, const char *name, weft_name *out, int64_t timeout_ns)
{
    return name_look(w, node, name, false, out, timeout_ns);
}

int weft_name_wait(weft_node *w, uint32_t node, const char *name, weft_name *out, int64_t timeout_ns)
{
    return name_look(w, node, name, true, out, timeout_ns);
}

struct lookup {
    weft_name *out;
    char name[WEFT_NAME_BYTES];
};

static void lookup_told(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r)
{
    (void)g;
    struct lookup *l = a->arg;
    if (!r->status)
        name_fill(l->out, l->name, r->word);
    free(l);
}

int weft_name_lookup_start(weft_node *w, uint32_t node, const char *name, bool wait, weft_name *out, int64_t timeout_ns, weft_op *op)
{
    weft_request r;
    int rc = name_record(&r, node, WEFT_NAME_LOOKUP, name);
    struct lookup *l = rc ? NULL : calloc(1, sizeof *l);
    if (!l)
        return rc ? rc : base_fail(-ENOMEM, "no memory for the request to look up a name" BASE_MEMORY_HINT);
    l->out = out;
    memcpy(l->name, &r.arg[4], sizeof l->name);
    r.flags = wait ? WEFT_NAME_WAIT : 0;
    r.timeout_ns = timeout_ns < 0 ? 0 : timeout_ns ? timeout_ns : 1;
    rc = gateway_ask(gateway_in(w), &(struct gateway_question){.record = &r, .tell = lookup_told, .arg = l, .op = op}, NULL);
    if (rc)
        free(l);
    return rc;
}

int weft_name_withdraw(weft_node *w, uint32_t node, const char *name, int64_t timeout_ns)
{
    weft_request r;
    int rc = name_record(&r, node, WEFT_NAME_WITHDRAW, name);
    rc = rc ? rc : name_ask(w, &r, timeout_ns, NULL, NULL, NULL);
    return rc == -ENOENT ? base_fail(rc, "cannot withdraw the name '%s': no node has published it at node %u", name, node) : rc;
}

/* Checks the names in a server's answer, which is not trusted: limits the number of names to what was received, and ends each name with a
 * zero. */
static uint32_t names_in(weft_name *out, uint64_t count, uint32_t max, size_t len)
{
    count = count < max ? count : max;
    count = count < len / sizeof *out ? count : len / sizeof *out;
    for (uint64_t i = 0; i < count; i++)
        out[i].name[WEFT_NAME_BYTES - 1] = '\0';
    return (uint32_t)count;
}

int weft_name_list(weft_node *w, uint32_t node, weft_name *out, uint32_t max, uint32_t *count, uint64_t *next, int64_t timeout_ns)
{
    weft_request r = {.version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_NAME, .kind = WEFT_NAME_LIST, .node = node};
    struct gateway_result result;
    uint32_t most = max < 40 ? max : 40;
    size_t len = most * sizeof *out;
    *count = 0;
    if (!max)
        return base_fail(-EINVAL, "weft_name_list(): max is 0: pass room for at least one name");
    r.arg[0] = *next;
    r.arg[1] = most;
    int rc = name_ask(w, &r, timeout_ns, &result, out, &len);
    if (rc)
        return rc;
    *count = names_in(out, result.word[0], most, len);
    *next = result.word[1];
    return 0;
}

/* --- records --- */

/* In a request for a list, `data` is the memory to which the names will be written, so it is not sent. */
int gateway_name_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg)
{
    (void)g;
    (void)data;
    (void)arg;
    if (r->kind != WEFT_NAME_LIST)
        return 1;
    if (r->arg[1] > r->data_bytes / sizeof(weft_name))
        return base_fail(-EINVAL,
                         "the record of a request for a list of %llu names has no room for the list: set its address and its length",
                         (unsigned long long)r->arg[1]);
    r->data_bytes = 0;
    return 1;
}

void gateway_name_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data)
{
    (void)g;
    (void)arg;
    memcpy(r->result, result->word, sizeof r->result);
    if (result->status || r->kind != WEFT_NAME_LIST)
        return;
    uint32_t room = r->arg[1] < UINT32_MAX ? (uint32_t)r->arg[1] : 0;
    size_t len = result->len / sizeof(weft_name) < room ? result->len : room * sizeof(weft_name);
    if (len)
        memcpy(data, result->payload, len);
    r->result[0] = names_in(data, result->word[0], room, len);
}
