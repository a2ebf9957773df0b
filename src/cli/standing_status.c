/* SPDX-License-Identifier: MIT
 *
 * What the control node answers to `weft status` (JSON) and to Prometheus (text, version 0.0.4), from the nodes' desks.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/forward.h"
#include "cli/standing.h"
#include "cluster/cluster.h"
#include "weft/service.h"

extern char **environ;

#define SERVICE_NAMES                                                                              \
    {                                                                                              \
        {WEFT_SERVICE_PROCESS, "process"}, {WEFT_SERVICE_NAME, "name"}, {WEFT_SERVICE_NET, "net"}, \
        {                                                                                          \
            WEFT_SERVICE_FILE, "file"                                                              \
        }                                                                                          \
    }

/* JSON null stands for an empty text, and for a text that is not UTF-8, which JSON does not allow */
static json_t *text_or_null(const char *text)
{
    json_t *o = text && text[0] ? json_string(text) : NULL;
    return o ? o : json_null();
}

static json_t *status_devices(const struct topo_node *n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n->device_count; i++) {
        const struct topo_device *d = &n->devices[i];
        json_array_append_new(list, json_pack("{ss ss ss ss sf sb ss}", "device", d->name, "interface", d->interface, "link", d->link,
                                              "state", d->state, "gbits", d->gbits, "usable", d->reason[0] == '\0', "reason", d->reason));
    }
    return list;
}

static json_t *status_node(weft_node *w, uint32_t node, const struct desk_page *p, struct jobs *jobs)
{
    static const struct {
        uint32_t number;
        const char *name;
    } services[] = SERVICE_NAMES;
    char host[64];
    jobs_host(jobs, node, host, sizeof host);
    json_t *offered = json_array();
    for (size_t i = 0; i < sizeof services / sizeof services[0]; i++)
        if (weft_service_offered(w, node, services[i].number))
            json_array_append_new(offered, json_string(services[i].name));
    json_t *o = json_pack("{sI ss sI ss so}", "node", (json_int_t)node, "host", host, "place", (json_int_t)jobs_slot(jobs, node), "state",
                          !weft_alive(w, node) ? "gone"
                          : p                  ? "up"
                                               : "silent",
                          "services", offered);
    if (!p)
        return o;
    json_object_set_new(o, "pid", json_integer(p->pid));
    json_object_set_new(o, "joined", json_integer(p->joined));
    json_object_set_new(o, "door", text_or_null(p->door));
    json_object_set_new(o, "pool_bytes", json_integer((json_int_t)p->pool.reserved_bytes));
    json_object_set_new(o, "pool_live_bytes", json_integer((json_int_t)p->pool.live_bytes));
    json_object_set_new(o, "pool_largest_free_bytes", json_integer((json_int_t)p->pool.largest_free_bytes));
    const weft_pool_stats *u = &p->pool;
    uint64_t named = u->network_bytes + u->stream_bytes + u->file_bytes + u->task_bytes;
    json_object_set_new(o, "pool_use",
                        json_pack("{sI sI sI sI sI}", "network", (json_int_t)u->network_bytes, "streams", (json_int_t)u->stream_bytes,
                                  "files", (json_int_t)u->file_bytes, "tasks", (json_int_t)u->task_bytes, "other",
                                  (json_int_t)(u->live_bytes > named ? u->live_bytes - named : 0)));
    json_object_set_new(o, "regions_used", json_integer(p->pool.regions_used));
    json_object_set_new(o, "regions_budget", json_integer(p->pool.regions_budget));
    json_object_set_new(o, "devices", status_devices(&p->node));
    return o;
}

static const char *link_state(const struct desk_link *l)
{
    return l->stats.via == UINT32_MAX ? "down" : "up";
}

/* Frames that were sent again are not counted, since the receiver may have had no free buffer. */
static uint64_t link_errors(const weft_link_stats *s)
{
    return s->breaks + s->rail_breaks + s->frames_damaged + s->bulk_rejected + s->bulk_repairs;
}

static bool link_counts(const struct desk_link *l)
{
    return strcmp(l->stats.transport, "shm") != 0;
}

/* The bytes from one node to another: those that the first node has sent, and those that the second node has fetched from it. */
static uint64_t link_bytes(const struct desk_link *there, const struct desk_link *back)
{
    return there->stats.sent_bytes + (back ? back->stats.fetched_bytes : 0);
}

static json_t *status_link(uint32_t from, const struct desk_link *l, const struct desk_link *back)
{
    uint32_t to = l->node;
    const weft_link_stats *s = &l->stats;
    bool counts = link_counts(l);
    uint64_t bytes = link_bytes(l, back), rate = l->sent_rate + (back ? back->fetched_rate : 0);
    return json_pack("{sI sI ss ss sb so ss so so sI sI sI sI sI}", "from", (json_int_t)from, "to", (json_int_t)to, "state", link_state(l),
                     "transport", s->transport, "direct", s->via == to, "via", s->via == UINT32_MAX ? json_null() : json_integer(s->via),
                     "devices", s->devices, "bytes", counts ? json_integer((json_int_t)bytes) : json_null(), "bytes_per_second",
                     counts ? json_integer((json_int_t)rate) : json_null(), "errors", (json_int_t)link_errors(s), "breaks",
                     (json_int_t)s->breaks, "retransmitted", (json_int_t)s->frames_retransmitted, "damaged", (json_int_t)s->frames_damaged,
                     "repairs", (json_int_t)(s->bulk_rejected + s->bulk_repairs));
}

json_t *standing_settings(void)
{
    static const char *const own[] = {"WEFT_RANK",        "WEFT_SIZE",         "WEFT_COORD",      "WEFT_HOSTFILE", "WEFT_SECRET",
                                      "WEFT_CLUSTER",     "WEFT_SECRET_FILE",  "WEFT_SERVE",      "WEFT_SSH",      "WEFT_POOL",
                                      "WEFT_GUARD",       "WEFT_GUARD_SOCKET", "WEFT_GROW",       "WEFT_JOIN",     "WEFT_NET_RULES",
                                      "WEFT_NET_SOCKETS", "WEFT_FILE_ROOT",    "WEFT_FILE_CACHE", "WEFT_NAMES"};
    json_t *o = json_object();
    for (char **e = environ; *e; e++) {
        char name[64];
        size_t n = strcspn(*e, "=");
        bool ours = cluster_is_setting(*e) && strncmp(*e, "WEFT_OUTER_", 11) != 0 && n < sizeof name && (*e)[n];
        snprintf(name, sizeof name, "%.*s", (int)n, *e);
        for (size_t i = 0; i < sizeof own / sizeof own[0] && ours; i++)
            ours = strcmp(name, own[i]) != 0;
        if (ours)
            json_object_set_new(o, name, json_string(*e + n + 1));
    }
    return o;
}

/* Print the links one by one. With hundreds of nodes, JSON objects of all links would take hundreds of MB. */
static void print_links(FILE *f, weft_node *w, const struct shown *s)
{
    const char *before = "";
    fputs(",\"links\":[", f);
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t k = 0; s->pages[i] && k < s->pages[i]->count; k++) {
            const struct desk_link *l = &s->pages[i]->links[k];
            json_t *o = weft_alive(w, l->node) ? status_link(s->nodes[i], l, shown_link(s, l->node, s->nodes[i])) : NULL;
            if (!o)
                continue;
            fputs(before, f);
            json_dumpf(o, f, JSON_COMPACT);
            json_decref(o);
            before = ",";
        }
    fputc(']', f);
}

/* The text of `o`, with the links added. Frees `o`. */
static char *with_links(json_t *o, weft_node *w, const struct shown *s)
{
    char *head = json_dumps(o, JSON_COMPACT), *text = NULL;
    size_t len;
    FILE *f = head ? open_memstream(&text, &len) : NULL;
    json_decref(o);
    if (f) {
        head[strlen(head) - 1] = '\0'; /* without the last brace */
        fputs(head, f);
        print_links(f, w, s);
        fputc('}', f);
        if (fclose(f)) {
            free(text);
            text = NULL;
        }
    }
    free(head);
    return text;
}

char *standing_status(weft_node *w, struct jobs *jobs, const char *name, bool links)
{
    struct shown s;
    json_t *nodes = json_array();
    const char *hostfile = getenv("WEFT_HOSTFILE"), *coord = getenv("WEFT_COORD"), *door = getenv("WEFT_GROW");
    if (door && door[0] && strncmp(door, "unix:", 5) != 0)
        coord = door; /* node 0 of a program runs on this host; the other nodes of the program connect to it at this address */
    if (shown_get(&s, jobs, links)) {
        json_decref(nodes);
        return NULL;
    }
    for (uint32_t i = 0; i < s.count; i++)
        json_array_append_new(nodes, status_node(w, s.nodes[i], s.pages[i], jobs));
    json_t *o = json_pack("{ss sI so ss sb so sI sI so so so}", "cluster", name, "control_node", (json_int_t)weft_rank(w), "hostfile",
                          text_or_null(hostfile), "coord", coord ? coord : "", "emulated", getenv("SOFTVERBS_HOST") != NULL, "settings",
                          standing_settings(), "epoch", (json_int_t)weft_epoch(w), "numbers", (json_int_t)weft_size(w), "nodes", nodes,
                          "jobs", jobs_list(jobs), "forwards", forwards_list(jobs));
    char *text = links ? with_links(o, w, &s) : json_dumps(o, JSON_COMPACT);
    if (!links)
        json_decref(o);
    shown_free(&s);
    return text;
}

/* --- Prometheus --- */

/* Escapes backslash, quote and newline in a label's value. */
static const char *escape(const char *text, char *out, size_t len)
{
    size_t n = 0;
    for (; *text && n + 3 < len; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = '\0';
    return out;
}

static void head(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

struct node_metric {
    const char *name, *help;
    uint64_t (*value)(const struct desk_page *p);
};
static uint64_t pool_bytes(const struct desk_page *p)
{
    return p->pool.reserved_bytes;
}
static uint64_t pool_live(const struct desk_page *p)
{
    return p->pool.live_bytes;
}
static uint64_t regions_used(const struct desk_page *p)
{
    return p->pool.regions_used;
}
static uint64_t devices_usable(const struct desk_page *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->node.device_count; i++)
        n += p->node.devices[i].reason[0] == '\0';
    return n;
}
static const struct node_metric of_nodes[] = {
    {"weft_pool_bytes", "Size of the node's pool.", pool_bytes},
    {"weft_pool_live_bytes", "Bytes of the node's pool that are allocated.", pool_live},
    {"weft_regions_used", "Memory regions in use, on the device with the most.", regions_used},
    {"weft_devices_usable", "RDMA devices of the node's host that weft can use.", devices_usable},
};

struct link_metric {
    const char *name, *type, *help;
    bool (*value)(const struct desk_link *l, const struct desk_link *back, uint64_t *out); /* false: not known now */
};
static bool is_up(const struct desk_link *l, const struct desk_link *back, uint64_t *out)
{
    (void)back;
    *out = strcmp(link_state(l), "up") == 0;
    return true;
}
static bool bytes_moved(const struct desk_link *l, const struct desk_link *back, uint64_t *out)
{
    *out = link_bytes(l, back);
    return link_counts(l) && back; /* without `back` the sum would lack the fetched bytes, and a counter of Prometheus must not become
                                      smaller */
}
static bool errors_seen(const struct desk_link *l, const struct desk_link *back, uint64_t *out)
{
    (void)back;
    *out = link_errors(&l->stats);
    return true;
}
static bool sent_again(const struct desk_link *l, const struct desk_link *back, uint64_t *out)
{
    (void)back;
    *out = l->stats.frames_retransmitted;
    return true;
}
static const struct link_metric of_links[] = {
    {"weft_link_up", "gauge", "Whether the node reaches the other one.", is_up},
    {"weft_link_bytes_total", "counter", "Bytes from one node to the other: puts, gets and messages; not counted for shared memory.",
     bytes_moved},
    {"weft_link_errors_total", "counter", "Breaks, damaged frames and repairs.", errors_seen},
    {"weft_link_retransmits_total", "counter", "Frames that were sent again; this is normal under load.", sent_again},
};

static void print_node_metrics(FILE *f, weft_node *w, struct jobs *jobs, const struct shown *s)
{
    char host[64], label[160];
    head(f, "weft_node_up", "gauge", "Whether the node is in the cluster.");
    for (uint32_t i = 0; i < s->count; i++) {
        jobs_host(jobs, s->nodes[i], host, sizeof host);
        fprintf(f, "weft_node_up{node=\"%u\",host=\"%s\"} %d\n", s->nodes[i], escape(host, label, sizeof label),
                weft_alive(w, s->nodes[i]));
    }
    for (size_t k = 0; k < sizeof of_nodes / sizeof of_nodes[0]; k++) {
        head(f, of_nodes[k].name, "gauge", of_nodes[k].help);
        for (uint32_t i = 0; i < s->count; i++)
            if (s->pages[i])
                fprintf(f, "%s{node=\"%u\"} %" PRIu64 "\n", of_nodes[k].name, s->nodes[i], of_nodes[k].value(s->pages[i]));
    }
    head(f, "weft_node_numbers_used", "gauge", "Numbers that nodes of the cluster have had. At 65536 no node can join any more.");
    fprintf(f, "weft_node_numbers_used %u\n", weft_size(w));
    head(f, "weft_membership_changes_total", "counter", "Nodes that left, died or joined since the control node joined.");
    fprintf(f, "weft_membership_changes_total %" PRIu64 "\n", weft_epoch(w) - 1);
}

static void print_link_metrics(FILE *f, weft_node *w, const struct shown *s)
{
    char label[64];
    for (size_t k = 0; k < sizeof of_links / sizeof of_links[0]; k++) {
        head(f, of_links[k].name, of_links[k].type, of_links[k].help);
        for (uint32_t i = 0; i < s->count; i++)
            for (uint32_t n = 0; s->pages[i] && n < s->pages[i]->count; n++) {
                const struct desk_link *l = &s->pages[i]->links[n];
                uint64_t value;
                if (weft_alive(w, l->node) && of_links[k].value(l, shown_link(s, l->node, s->nodes[i]), &value))
                    fprintf(f, "%s{from=\"%u\",to=\"%u\",transport=\"%s\"} %" PRIu64 "\n", of_links[k].name, s->nodes[i], l->node,
                            escape(l->stats.transport, label, sizeof label), value);
            }
    }
}

char *standing_metrics(weft_node *w, struct jobs *jobs)
{
    char *text = NULL;
    size_t len;
    struct shown s;
    if (shown_get(&s, jobs, true))
        return NULL;
    FILE *f = open_memstream(&text, &len);
    if (f) {
        json_t *list = jobs_list(jobs), *j;
        size_t i, running = 0;
        json_array_foreach (list, i, j)
            running += strcmp(json_string_value(json_object_get(j, "state")), "running") == 0;
        json_decref(list);
        print_node_metrics(f, w, jobs, &s);
        print_link_metrics(f, w, &s);
        head(f, "weft_jobs_running", "gauge", "Jobs of weft exec that run.");
        fprintf(f, "weft_jobs_running %zu\n", running);
        if (fclose(f)) {
            free(text);
            text = NULL;
        }
    }
    shown_free(&s);
    return text;
}
