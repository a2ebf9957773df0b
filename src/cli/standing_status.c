/* SPDX-License-Identifier: MIT
 *
 * What the control node answers to `weft status` (JSON) and to Prometheus (text, version 0.0.4): both from the desks of the nodes.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/standing.h"
#include "weft/service.h"

extern char **environ;

#define SERVICE_NAMES                                                   \
    {                                                                   \
        {WEFT_SERVICE_PROCESS, "process"}, {WEFT_SERVICE_NAME, "name"}, \
        {                                                               \
            WEFT_SERVICE_NET, "net"                                     \
        }                                                               \
    }

/* The pages of all nodes; NULL for those that are gone or do not answer. */
static struct desk_page **get_pages(weft_node *w, struct jobs *jobs)
{
    uint32_t size = jobs_size(jobs);
    struct desk_page **pages = calloc(size, sizeof(struct desk_page *));
    for (uint32_t i = 0; pages && i < size; i++)
        if (weft_alive(w, i) && jobs_desk(jobs, i, &pages[i]))
            pages[i] = NULL;
    return pages;
}

static void free_pages(struct desk_page **pages, uint32_t size)
{
    for (uint32_t i = 0; pages && i < size; i++)
        free(pages[i]);
    free(pages);
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
    json_t *o = json_pack("{sI ss ss so}", "node", (json_int_t)node, "host", host, "state",
                          !weft_alive(w, node) ? "gone"
                          : p                  ? "up"
                                               : "silent",
                          "services", offered);
    if (!p)
        return o;
    json_object_set_new(o, "pid", json_integer(p->pid));
    json_object_set_new(o, "pool_bytes", json_integer((json_int_t)p->pool.reserved_bytes));
    json_object_set_new(o, "pool_live_bytes", json_integer((json_int_t)p->pool.live_bytes));
    json_object_set_new(o, "pool_largest_free_bytes", json_integer((json_int_t)p->pool.largest_free_bytes));
    json_object_set_new(o, "regions_used", json_integer(p->pool.regions_used));
    json_object_set_new(o, "regions_budget", json_integer(p->pool.regions_budget));
    json_object_set_new(o, "devices", status_devices(&p->node));
    return o;
}

static const char *link_state(const struct desk_link *l)
{
    return !l->alive ? "gone" : l->stats.via == UINT32_MAX ? "down" : "up";
}

static uint64_t link_errors(const weft_link_stats *s)
{
    return s->breaks + s->rail_breaks + s->frames_retransmitted + s->frames_damaged + s->bulk_rejected + s->bulk_repairs;
}

static json_t *status_link(uint32_t from, uint32_t to, const struct desk_link *l)
{
    const weft_link_stats *s = &l->stats;
    return json_pack("{sI sI ss ss sb so ss sI sI sI sI sI sI sI}", "from", (json_int_t)from, "to", (json_int_t)to, "state", link_state(l),
                     "transport", s->transport, "direct", s->via == to, "via", s->via == UINT32_MAX ? json_null() : json_integer(s->via),
                     "devices", s->devices, "bytes", (json_int_t)l->bytes, "bytes_per_second", (json_int_t)l->bytes_per_second, "errors",
                     (json_int_t)link_errors(s), "breaks", (json_int_t)s->breaks, "retransmitted", (json_int_t)s->frames_retransmitted,
                     "damaged", (json_int_t)s->frames_damaged, "repairs", (json_int_t)(s->bulk_rejected + s->bulk_repairs));
}

/* Settings of this node that a program of the cluster is to have as well. */
static json_t *status_settings(void)
{
    static const char *const own[] = {"WEFT_RANK",        "WEFT_SIZE",  "WEFT_COORD", "WEFT_HOSTFILE", "WEFT_SECRET", "WEFT_CLUSTER",
                                      "WEFT_SECRET_FILE", "WEFT_SERVE", "WEFT_SSH",   "WEFT_POOL",     "WEFT_GUARD",  "WEFT_NET_RULES"};
    json_t *o = json_object();
    for (char **e = environ; *e; e++) {
        char name[64];
        size_t n = strcspn(*e, "=");
        bool ours = strncmp(*e, "WEFT_", 5) == 0 && strncmp(*e, "WEFT_OUTER_", 11) != 0 && n < sizeof name && (*e)[n];
        snprintf(name, sizeof name, "%.*s", (int)n, *e);
        for (size_t i = 0; i < sizeof own / sizeof own[0] && ours; i++)
            ours = strcmp(name, own[i]) != 0;
        if (ours)
            json_object_set_new(o, name, json_string(*e + n + 1));
    }
    return o;
}

/* null also for a path that is not UTF-8: JSON has no word for it. */
static json_t *text_or_null(const char *text)
{
    json_t *o = text && text[0] ? json_string(text) : NULL;
    return o ? o : json_null();
}

json_t *standing_status(weft_node *w, struct jobs *jobs, const char *name)
{
    uint32_t size = jobs_size(jobs);
    struct desk_page **pages = get_pages(w, jobs);
    json_t *nodes = json_array(), *links = json_array();
    const char *hostfile = getenv("WEFT_HOSTFILE"), *coord = getenv("WEFT_COORD");
    for (uint32_t i = 0; pages && i < size; i++) {
        json_array_append_new(nodes, status_node(w, i, pages[i], jobs));
        for (uint32_t k = 0; pages[i] && k < size; k++)
            if (k != i)
                json_array_append_new(links, status_link(i, k, &pages[i]->links[k]));
    }
    free_pages(pages, size);
    return json_pack("{ss sI so ss sb so sI so so so}", "cluster", name, "control_node", (json_int_t)weft_rank(w), "hostfile",
                     text_or_null(hostfile), "coord", coord ? coord : "", "emulated", getenv("SOFTVERBS_HOST") != NULL, "settings",
                     status_settings(), "epoch", (json_int_t)weft_epoch(w), "nodes", nodes, "links", links, "jobs", jobs_list(jobs));
}

/* --- Prometheus --- */

/* A label's value: backslash, quote and newline are escaped. */
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
    uint64_t (*value)(const struct desk_link *l);
};
static uint64_t is_up(const struct desk_link *l)
{
    return strcmp(link_state(l), "up") == 0;
}
static uint64_t bytes_moved(const struct desk_link *l)
{
    return l->bytes;
}
static uint64_t errors_seen(const struct desk_link *l)
{
    return link_errors(&l->stats);
}
static const struct link_metric of_links[] = {
    {"weft_link_up", "gauge", "Whether the node reaches the other one.", is_up},
    {"weft_link_bytes_total", "counter", "Bytes of large transfers over RDMA devices, as far as they are counted.", bytes_moved},
    {"weft_link_errors_total", "counter", "Breaks, retransmits, damaged frames and repairs.", errors_seen},
};

static void print_node_metrics(FILE *f, weft_node *w, struct jobs *jobs, struct desk_page **pages)
{
    char host[64], label[160];
    uint32_t size = jobs_size(jobs);
    head(f, "weft_node_up", "gauge", "Whether the node is in the cluster.");
    for (uint32_t i = 0; i < size; i++) {
        jobs_host(jobs, i, host, sizeof host);
        fprintf(f, "weft_node_up{node=\"%u\",host=\"%s\"} %d\n", i, escape(host, label, sizeof label), weft_alive(w, i));
    }
    for (size_t k = 0; k < sizeof of_nodes / sizeof of_nodes[0]; k++) {
        head(f, of_nodes[k].name, "gauge", of_nodes[k].help);
        for (uint32_t i = 0; i < size; i++)
            if (pages[i])
                fprintf(f, "%s{node=\"%u\"} %" PRIu64 "\n", of_nodes[k].name, i, of_nodes[k].value(pages[i]));
    }
}

static void print_link_metrics(FILE *f, uint32_t size, struct desk_page **pages)
{
    char label[64];
    for (size_t k = 0; k < sizeof of_links / sizeof of_links[0]; k++) {
        head(f, of_links[k].name, of_links[k].type, of_links[k].help);
        for (uint32_t i = 0; i < size; i++)
            for (uint32_t to = 0; pages[i] && to < size; to++) {
                const struct desk_link *l = &pages[i]->links[to];
                if (to != i)
                    fprintf(f, "%s{from=\"%u\",to=\"%u\",transport=\"%s\"} %" PRIu64 "\n", of_links[k].name, i, to,
                            escape(l->stats.transport, label, sizeof label), of_links[k].value(l));
            }
    }
}

char *standing_metrics(weft_node *w, struct jobs *jobs)
{
    char *text = NULL;
    size_t len;
    struct desk_page **pages = get_pages(w, jobs);
    FILE *f = pages ? open_memstream(&text, &len) : NULL;
    if (f) {
        json_t *list = jobs_list(jobs), *j;
        size_t i, running = 0;
        json_array_foreach (list, i, j)
            running += strcmp(json_string_value(json_object_get(j, "state")), "running") == 0;
        json_decref(list);
        print_node_metrics(f, w, jobs, pages);
        print_link_metrics(f, jobs_size(jobs), pages);
        head(f, "weft_jobs_running", "gauge", "Jobs of weft exec that run.");
        fprintf(f, "weft_jobs_running %zu\n", running);
        if (fclose(f)) {
            free(text);
            text = NULL;
        }
    }
    free_pages(pages, jobs_size(jobs));
    return text;
}
