/* SPDX-License-Identifier: MIT
 *
 * The control node's part of `weft cat`, `weft files` and `weft pin`: sends requests to the service 'file' of other nodes (weft/file.h).
 */
#include <stdlib.h>
#include <string.h>

#include "cli/standing.h"
#include "weft/file.h"
#include "weft/service.h"

#define READ_NS   (30 * WEFT_SECOND) /* how long the gateway may take to read a part of a file from its disk */
#define CAT_BYTES (256u << 10)
#define PIN_SAY   8u     /* each time after this many pieces, the command gets a sign of life */
#define FILES_MAX 10000u /* maximum number of files of a node that are listed */

/* Finds the node that a request names, and checks that it offers files. */
static int file_node(weft_node *w, struct jobs *jobs, const struct control_request *r, uint32_t *node)
{
    int rc = jobs_node(jobs, r->hosts[0], node);
    if (rc)
        return rc;
    if (!weft_alive(w, *node))
        return base_fail(-ECONNRESET, "%s: node %u is gone; see `weft status`", r->hosts[0], *node);
    return weft_service_offered(w, *node, WEFT_SERVICE_FILE)
               ? 0
               : base_fail(-EOPNOTSUPP,
                           "%s: node %u does not offer the service 'file'; if it has just joined, try again, else name another host",
                           r->hosts[0], *node);
}

static void send_end(int fd, int rc)
{
    if (rc)
        control_send(fd, CONTROL_ERROR, UINT32_MAX, (uint32_t)-rc, base_error(), strlen(base_error()));
    else
        control_send(fd, CONTROL_DONE, UINT32_MAX, 0, NULL, 0);
}

/* --- weft cat --- */

/* Sends bytes to the command. Returns false if the command has ended. */
static bool send_bytes(int fd, uint32_t node, const uint8_t *bytes, size_t len)
{
    for (size_t at = 0, n; at < len; at += n) {
        n = len - at < CONTROL_PIECE_MAX ? len - at : CONTROL_PIECE_MAX;
        if (control_send(fd, CONTROL_OUT, node, 1, bytes + at, n))
            return false;
    }
    return true;
}

void standing_cat(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r)
{
    weft_file *f = NULL;
    uint32_t node;
    int64_t first = 0, last = INT64_MAX;
    size_t got;
    uint8_t *some = malloc(CAT_BYTES);
    int rc = some ? file_node(w, jobs, r, &node) : base_fail(-ENOMEM, "no memory to read a file" BASE_MEMORY_HINT);
    if (!rc && (base_parse_number(r->arguments[1], 0, INT64_MAX, &first) || base_parse_number(r->arguments[2], first, INT64_MAX, &last)))
        rc = base_fail(-EPROTO, "the range of the request is invalid; run the command of the same version of weft as the cluster");
    if (!rc)
        rc = weft_file_open(w, node, r->arguments[0], 0, &f, READ_NS);
    uint64_t at = (uint64_t)first, end = rc ? 0 : weft_file_size(f);
    end = (uint64_t)last < end ? (uint64_t)last + 1 : end;
    for (; !rc && at < end; at += got) {
        rc = weft_file_read(f, some, end - at < CAT_BYTES ? (size_t)(end - at) : CAT_BYTES, at, &got, READ_NS);
        if (!send_bytes(fd, node, some, got))
            break;
    }
    send_end(fd, rc);
    weft_file_close(f);
    free(some);
}

/* --- weft pin --- */

/* Reads one byte of each piece, so that the gateway caches the whole file. */
static int pin_read(weft_file *f, int fd)
{
    char byte;
    size_t got;
    int rc = 0;
    for (uint64_t at = 0; !rc && at < weft_file_size(f); at += WEFT_FILE_PIECE) {
        rc = weft_file_read(f, &byte, 1, at, &got, READ_NS);
        if (at / WEFT_FILE_PIECE % PIN_SAY == 0 && control_send(fd, CONTROL_TEXT, UINT32_MAX, 0, NULL, 0))
            break;
    }
    return rc;
}

void standing_pin(weft_node *w, struct jobs *jobs, int fd, const struct control_request *r)
{
    weft_file *f = NULL;
    uint32_t node;
    int rc = file_node(w, jobs, r, &node);
    if (!rc && r->head.arguments == 2) {
        rc = weft_file_unpin(w, node, r->arguments[0], READ_NS);
    } else if (!rc) {
        rc = weft_file_open(w, node, r->arguments[0], 0, &f, READ_NS);
        if (!rc)
            rc = weft_file_pin(f, READ_NS);
        if (!rc)
            rc = pin_read(f, fd);
        weft_file_close(f);
    }
    send_end(fd, rc);
}

/* --- weft files --- */

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

/* Returns the path, with '?' in place of bytes that JSON or a terminal cannot show. */
static json_t *path_text(char *path)
{
    for (char *c = path; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    json_t *o = json_string(path);
    if (o)
        return o;
    topo_check_text(path, strlen(path) + 1);
    return json_string(path);
}

static json_t *files_of(weft_node *w, uint32_t node, const char *host)
{
    weft_file_cache c;
    weft_file_cached one;
    uint64_t next = 0;
    if (weft_file_cache_stat(w, node, &c, sizeof c, 2 * WEFT_SECOND))
        return NULL;
    json_t *o = json_pack("{sI ss so so so so so so so so so so so}", "node", (json_int_t)node, "host", host, "limit_bytes",
                          number(c.limit_bytes), "cached_bytes", number(c.cached_bytes), "mapped_bytes", number(c.mapped_bytes),
                          "pinned_bytes", number(c.pinned_bytes), "hits", number(c.hits), "disk_reads", number(c.disk_reads), "disk_bytes",
                          number(c.disk_bytes), "dropped", number(c.dropped), "readers", number(c.readers), "given_bytes",
                          number(c.given_bytes), "passed_bytes", number(c.passed_bytes));
    json_t *list = json_array();
    for (uint32_t i = 0; i < FILES_MAX && !weft_file_list(w, node, &one, sizeof one, &next, 2 * WEFT_SECOND); i++) {
        json_array_append_new(list,
                              json_pack("{so so so so so so sI sI sb sb}", "path", path_text(one.path), "bytes", number(one.info.bytes),
                                        "generation", number(one.info.generation), "cached_bytes", number(one.cached_bytes), "hits",
                                        number(one.hits), "disk_reads", number(one.disk_reads), "readers", (json_int_t)one.readers,
                                        "leases", (json_int_t)one.leases, "pinned", one.pinned, "stale", one.stale));
        if (!next)
            break;
    }
    json_object_set_new(o, "files", list);
    return o;
}

json_t *standing_files(weft_node *w, struct jobs *jobs)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < weft_size(w); i++) {
        char host[64];
        if (!weft_service_offered(w, i, WEFT_SERVICE_FILE))
            continue;
        jobs_host(jobs, i, host, sizeof host);
        json_t *o = files_of(w, i, host);
        if (o)
            json_array_append_new(all, o);
    }
    return json_pack("{so}", "nodes", all);
}
