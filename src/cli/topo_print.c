/* SPDX-License-Identifier: MIT
 *
 * Prints the results of weft topo as tables, as JSON, in Graphviz' language, or as an SVG drawing.
 */
#include <math.h>
#include <string.h>

#include "cli/topo.h"

static const struct topo_link *topo_print_link_of(const struct topo *t, uint32_t from, uint32_t to)
{
    return &t->links[(uint64_t)from * t->size + to];
}

static bool direct(const struct topo_link *l, uint32_t to)
{
    return l->stats.via == to;
}

static bool is_ofi(const struct topo_link *l)
{
    return strcmp(l->stats.transport, "ofi") == 0;
}

/* Whether the link is one of libfabric over TCP. For links of libfabric, `devices` has the provider and the peer's address: "tcp;ofi_rxm
 * 10.0.0.1:7654". */
static bool is_tcp(const struct topo_link *l)
{
    size_t n = strcspn(l->stats.devices, " ;");
    return is_ofi(l) && n == 3 && (strncmp(l->stats.devices, "net", n) == 0 || strncmp(l->stats.devices, "tcp", n) == 0);
}

/* What is at node a's end of the link between a and b: its devices, or for ofi its address, which b knows. */
static const char *end_text(const struct topo *t, uint32_t a, uint32_t b)
{
    bool ofi = is_ofi(topo_print_link_of(t, a, b));
    return ofi ? topo_print_link_of(t, b, a)->stats.devices : topo_print_link_of(t, a, b)->stats.devices;
}

/* The provider and the address at which other nodes reach a node over libfabric; "": no node does. */
static const char *network_of(const struct topo *t, uint32_t node)
{
    for (uint32_t i = 0; i < t->size; i++)
        if (i != node && is_ofi(topo_print_link_of(t, i, node)))
            return topo_print_link_of(t, i, node)->stats.devices;
    return "";
}

/* --- values as text --- */

static const char *time_text(const struct topo_link *l, char *out, size_t len)
{
    double us = (double)l->round_trip_ns / 1e3;
    if (l->round_trip_ns <= 0)
        snprintf(out, len, "-");
    else if (us < 1000)
        snprintf(out, len, us < 10 ? "%.2f us" : "%.1f us", us);
    else
        snprintf(out, len, "%.2f ms", us / 1e3);
    return out;
}

static const char *rate_text(const struct topo_link *l, char *out, size_t len)
{
    double mb = (double)l->bytes_per_second / 1e6;
    if (l->bytes_per_second == 0)
        snprintf(out, len, "-");
    else if (mb < 1000)
        snprintf(out, len, "%.*f MB/s", mb < 1 ? 3 : 0, mb);
    else
        snprintf(out, len, "%.2f GB/s", mb / 1e3);
    return out;
}

static const char *way_text(const struct topo_link *l, uint32_t to, char *out, size_t len)
{
    if (l->stats.via == UINT32_MAX)
        snprintf(out, len, "none");
    else if (direct(l, to))
        snprintf(out, len, "direct");
    else
        snprintf(out, len, "through %u", l->stats.via);
    return out;
}

static const char *dash(const char *text)
{
    return text[0] ? text : "-";
}

/* Describe the link between two nodes: its round-trip time and its bandwidth. If the bandwidths of the two directions differ, writes both,
 * first the one from a to b. */
static void middle_text(const struct topo *t, uint32_t a, uint32_t b, char *time, char *rate, size_t len)
{
    char there[32], back[32];
    time_text(topo_print_link_of(t, a, b), time, len);
    rate_text(topo_print_link_of(t, a, b), there, sizeof there);
    rate_text(topo_print_link_of(t, b, a), back, sizeof back);
    if (strcmp(there, back) == 0)
        snprintf(rate, len, "%s", there);
    else if (strcmp(strchr(there, ' ') ? strchr(there, ' ') : "", strchr(back, ' ') ? strchr(back, ' ') : "") == 0)
        snprintf(rate, len, "%.*s / %s", (int)strcspn(there, " "), there, back);
    else
        snprintf(rate, len, "%s / %s", there, back);
}

static void node_devices(const struct topo_node *n, char *out, size_t len)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n->device_count; i++) {
        const struct topo_device *d = &n->devices[i];
        int m = snprintf(out + at, len - at, "%s%s%s%s%s", at ? ", " : "", d->name, d->reason[0] ? " (" : "", d->reason,
                         d->reason[0] ? ")" : "");
        at = at + (size_t)m < len ? at + (size_t)m : len - 1;
    }
}

/* --- tables --- */

static struct cli_table *node_table(const struct topo *t)
{
    static const struct cli_column columns[] = {{"node", true}, {"host", false}, {"pool", true}, {"devices", false}};
    struct cli_table *table = cli_table_new(columns, 4);
    int rc = table ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < t->size && !rc; i++) {
        char number[16], pool[32], devices[512];
        snprintf(number, sizeof number, "%u", i);
        node_devices(&t->nodes[i], devices, sizeof devices);
        if (!devices[0])
            snprintf(devices, sizeof devices, "%s", network_of(t, i));
        const char *cells[] = {number, dash(t->nodes[i].host), base_format_bytes(t->nodes[i].pool_bytes, pool, sizeof pool), dash(devices)};
        rc = cli_table_add(table, cells);
    }
    if (!rc)
        return table;
    cli_table_free(table);
    return NULL;
}

static struct cli_table *link_table(const struct topo *t)
{
    static const struct cli_column columns[] = {{"from", true},        {"to", true},       {"state", false},     {"transport", false},
                                                {"way", false},        {"devices", false}, {"round trip", true}, {"bandwidth", true},
                                                {"retransmits", true}, {"repairs", true}};
    struct cli_table *table = cli_table_new(columns, 10);
    int rc = table ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < t->size * t->size && !rc; i++) {
        uint32_t from = i / t->size, to = i % t->size;
        const struct topo_link *l = topo_print_link_of(t, from, to);
        char a[16], b[16], way[32], time[32], rate[32], retransmits[32], repairs[32];
        if (from == to)
            continue;
        bool tb = strcmp(l->stats.transport, "tb") == 0, frames = tb || is_ofi(l);
        snprintf(a, sizeof a, "%u", from);
        snprintf(b, sizeof b, "%u", to);
        snprintf(retransmits, sizeof retransmits, frames ? "%llu" : "-", (unsigned long long)l->stats.frames_retransmitted);
        snprintf(repairs, sizeof repairs, tb ? "%llu" : "-", (unsigned long long)l->stats.bulk_repairs);
        const char *cells[] = {a,
                               b,
                               l->measured ? "up" : l->why,
                               dash(l->stats.transport),
                               way_text(l, to, way, sizeof way),
                               dash(l->stats.devices),
                               time_text(l, time, sizeof time),
                               rate_text(l, rate, sizeof rate),
                               retransmits,
                               repairs};
        rc = cli_table_add(table, cells);
    }
    if (!rc)
        return table;
    cli_table_free(table);
    return NULL;
}

static const char *usable_device(const struct topo_node *n)
{
    for (uint32_t i = 0; i < n->device_count; i++)
        if (!n->devices[i].reason[0])
            return n->devices[i].name;
    return NULL;
}

/* Whether two nodes use libfabric although both have RDMA devices. */
static bool lacks_rdma(const struct topo *t, uint32_t a, uint32_t b)
{
    return is_ofi(topo_print_link_of(t, a, b)) && usable_device(&t->nodes[a]) && usable_device(&t->nodes[b]);
}

/* Whether two nodes use TCP although both have a provider for the same faster network. */
static bool lacks_provider(const struct topo *t, uint32_t a, uint32_t b)
{
    const char *better = t->nodes[a].better;
    return is_tcp(topo_print_link_of(t, a, b)) && !lacks_rdma(t, a, b) && better[0] && strcmp(better, t->nodes[b].better) == 0;
}

/* How many pairs of nodes are slow for the reason that `slow` tests. *a and *b: the first such pair. */
static uint32_t slow_pairs(const struct topo *t, bool (*slow)(const struct topo *t, uint32_t a, uint32_t b), uint32_t *a, uint32_t *b)
{
    uint32_t pairs = 0;
    for (uint32_t i = 0; i < t->size; i++)
        for (uint32_t k = i + 1; k < t->size; k++)
            if (slow(t, i, k) && pairs++ == 0) {
                *a = i;
                *b = k;
            }
    return pairs;
}

static void print_slow_pairs(const struct topo *t)
{
    uint32_t a = 0, b = 0, pairs = slow_pairs(t, lacks_rdma, &a, &b);
    if (pairs)
        fprintf(stderr,
                "weft topo: %u pair%s of nodes (the first: %u and %u) use libfabric (ofi), although both have RDMA devices that weft can "
                "use (%s; "
                "%s); if WEFT_TRANSPORT=ofi is set, unset it; to see why the devices do not reach each other, set WEFT_TRANSPORT=rdma\n",
                pairs, pairs == 1 ? "" : "s", a, b, usable_device(&t->nodes[a]), usable_device(&t->nodes[b]));
    pairs = slow_pairs(t, lacks_provider, &a, &b);
    if (pairs)
        fprintf(
            stderr,
            "weft topo: %u pair%s of nodes (the first: %u and %u) use TCP, although libfabric has the faster provider %s on both hosts; "
            "if WEFT_OFI_PROVIDER or WEFT_OFI_INTERFACE is set, unset it; otherwise `weft doctor` and the nodes' messages (WEFT_LOG=warn) "
            "may have the reason\n",
            pairs, pairs == 1 ? "" : "s", a, b, t->nodes[a].better);
}

static int print_tables(const struct topo *t)
{
    struct cli_table *nodes = node_table(t), *links = link_table(t);
    int status = nodes && links ? 0 : cli_error("topo", "no memory for the table of links" BASE_MEMORY_HINT);
    if (!status) {
        cli_table_print(nodes, stdout);
        putchar('\n');
        cli_table_print(links, stdout);
        status = cli_flush("topo");
        print_slow_pairs(t);
    }
    cli_table_free(nodes);
    cli_table_free(links);
    return status;
}

/* --- JSON --- */

/* Convert text of another host. It may not be valid UTF-8, which jansson refuses. */
static json_t *text_json(const char *text)
{
    json_t *j = text[0] ? json_string(text) : json_null();
    return j ? j : json_string("?");
}

static json_t *node_json(const struct topo *t, uint32_t number)
{
    const struct topo_node *n = &t->nodes[number];
    json_t *devices = json_array();
    for (uint32_t i = 0; i < n->device_count; i++) {
        const struct topo_device *d = &n->devices[i];
        json_array_append_new(devices, json_pack("{s:o, s:o, s:o, s:o, s:f, s:b, s:o}", "device", text_json(d->name), "interface",
                                                 text_json(d->interface), "link", text_json(d->link), "state", text_json(d->state), "gbits",
                                                 d->gbits, "usable", !d->reason[0], "reason", text_json(d->reason)));
    }
    return json_pack("{s:i, s:o, s:I, s:o, s:o, s:o}", "node", (int)number, "host", text_json(n->host), "pool_bytes",
                     (json_int_t)n->pool_bytes, "devices", devices, "network", text_json(network_of(t, number)), "better_than_tcp",
                     text_json(n->better));
}

static json_t *link_json(const struct topo_link *l, uint32_t from, uint32_t to)
{
    const weft_link_stats *s = &l->stats;
    return json_pack("{s:i, s:i, s:s, s:o, s:o, s:b, s:o, s:o, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "from", (int)from,
                     "to", (int)to, "state", l->measured ? "up" : "failed", "why", text_json(l->why), "transport", text_json(s->transport),
                     "direct", direct(l, to), "via", s->via == UINT32_MAX ? json_null() : json_integer(s->via), "devices",
                     text_json(s->devices), "cables", (int)s->cables, "round_trip_ns", (json_int_t)l->round_trip_ns, "bytes_per_second",
                     (json_int_t)l->bytes_per_second, "frames_sent", (json_int_t)s->frames_sent, "frames_retransmitted",
                     (json_int_t)s->frames_retransmitted, "frames_received", (json_int_t)s->frames_received, "frames_damaged",
                     (json_int_t)s->frames_damaged, "bulk_sent_bytes", (json_int_t)s->bulk_sent_bytes, "bulk_received_bytes",
                     (json_int_t)s->bulk_received_bytes, "bulk_rejected", (json_int_t)s->bulk_rejected, "bulk_repairs",
                     (json_int_t)s->bulk_repairs);
}

static int topo_print_json(const struct topo *t)
{
    json_t *nodes = json_array(), *links = json_array();
    for (uint32_t i = 0; i < t->size; i++)
        json_array_append_new(nodes, node_json(t, i));
    for (uint32_t i = 0; i < t->size * t->size; i++)
        if (i / t->size != i % t->size)
            json_array_append_new(links, link_json(&t->links[i], i / t->size, i % t->size));
    return cli_json_print("topo", json_pack("{s:o, s:o}", "nodes", nodes, "links", links));
}

/* --- Graphviz --- */

static void dot_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text < ' ' ? '?' : *text);
    }
}

static int print_dot(const struct topo *t)
{
    char time[96], rate[96];
    puts("graph weft {\n    layout=circo\n    node [shape=box, style=rounded, fontname=\"sans-serif\"]\n"
         "    edge [fontname=\"sans-serif\", fontsize=10]");
    for (uint32_t i = 0; i < t->size; i++) {
        printf("    n%u [label=\"node %u\\n", i, i);
        dot_text(t->nodes[i].host);
        puts("\"]");
    }
    for (uint32_t a = 0; a < t->size; a++) {
        for (uint32_t b = a + 1; b < t->size; b++) {
            const struct topo_link *l = topo_print_link_of(t, a, b);
            middle_text(t, a, b, time, rate, sizeof time);
            printf("    n%u -- n%u [label=\"%s, %s\\n%s\"", a, b, l->stats.transport, time, rate);
            if (!direct(l, b))
                printf(", style=dashed, color=gray, fontcolor=gray");
            else if (!l->measured)
                printf(", color=red, fontcolor=red");
            if (direct(l, b) && l->stats.devices[0]) {
                printf(", taillabel=\"");
                dot_text(end_text(t, a, b));
                printf("\", headlabel=\"");
                dot_text(end_text(t, b, a));
                putchar('"');
            }
            puts("]");
        }
    }
    puts("}");
    return cli_flush("topo");
}

/* --- drawing --- */

static void xml_text(const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '&' || c == '<' || c == '>' || c == '"')
            printf("&#%u;", c);
        else
            putchar(c < ' ' || c > '~' ? '?' : c);
    }
}

struct place {
    double x, y;
};

static struct place place_of(const struct topo *t, uint32_t node, double radius, double middle)
{
    double angle = 2 * 3.14159265358979 * node / t->size - 3.14159265358979 / 2;
    return (struct place){middle + radius * cos(angle), middle + radius * sin(angle)};
}

static void draw_link(const struct topo *t, uint32_t a, uint32_t b, double radius, double middle)
{
    const struct topo_link *l = topo_print_link_of(t, a, b);
    struct place p = place_of(t, a, radius, middle), q = place_of(t, b, radius, middle);
    bool way = direct(l, b);
    char time[96], rate[96];
    printf("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"><title>", p.x, p.y, q.x, q.y,
           !l->measured ? "failed"
           : way        ? "direct"
                        : "far");
    middle_text(t, a, b, time, rate, sizeof time);
    printf("%u - %u: ", a, b);
    xml_text(l->stats.transport);
    if (way)
        printf(", %s, %s", time, rate);
    else
        printf(" through %u, %s, %s", l->stats.via, time, rate);
    puts("</title></line>");
    if (!way && l->measured)
        return;
    /* Lines cross in the middle of the circle, so put their labels nearer to one end. */
    double at = b - a == 1 || b - a == t->size - 1 ? 0.5 : 0.34, x = p.x + (q.x - p.x) * at, y = p.y + (q.y - p.y) * at;
    printf("<text x=\"%.1f\" y=\"%.1f\">%s</text><text x=\"%.1f\" y=\"%.1f\">", x, y - 3, time, x, y + 10);
    xml_text(rate);
    puts("</text>");
    if (l->stats.devices[0]) {
        printf("<text x=\"%.1f\" y=\"%.1f\" class=\"device\">", p.x + (q.x - p.x) * 0.2, p.y + (q.y - p.y) * 0.2);
        xml_text(end_text(t, a, b));
        printf("</text><text x=\"%.1f\" y=\"%.1f\" class=\"device\">", q.x + (p.x - q.x) * 0.2, q.y + (p.y - q.y) * 0.2);
        xml_text(end_text(t, b, a));
        puts("</text>");
    }
}

static int print_svg(const struct topo *t)
{
    double radius = t->size * 40.0 > 260 ? t->size * 40.0 : 260, middle = radius + 80;
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n", 2 * middle, 2 * middle,
           2 * middle, 2 * middle);
    puts("<style>rect{fill:#fff}line{stroke:#246;stroke-width:2}line.far{stroke:#bbb;stroke-width:1;stroke-dasharray:4 4}"
         "line.failed{stroke:#c22}circle{fill:#eef4fa;stroke:#246;stroke-width:2}"
         "text{font:11px sans-serif;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}"
         "text.device{font-size:9px;fill:#666}text.node{font-size:16px;font-weight:bold;stroke:none}text.host{stroke:none;fill:#444}"
         "</style>\n<rect width=\"100%\" height=\"100%\"/>");
    for (int pass = 0; pass < 2; pass++) /* draws the dashed lines first, so that they are below the others */
        for (uint32_t a = 0; a < t->size; a++)
            for (uint32_t b = a + 1; b < t->size; b++)
                if (direct(topo_print_link_of(t, a, b), b) == (pass == 1))
                    draw_link(t, a, b, radius, middle);
    for (uint32_t i = 0; i < t->size; i++) {
        struct place p = place_of(t, i, radius, middle);
        printf("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"26\"/><text x=\"%.1f\" y=\"%.1f\" class=\"node\">%u</text>"
               "<text x=\"%.1f\" y=\"%.1f\" class=\"host\">",
               p.x, p.y, p.x, p.y + 6, i, p.x, p.y + 41);
        xml_text(t->nodes[i].host);
        puts("</text>");
    }
    puts("</svg>");
    return cli_flush("topo");
}

int topo_print(const struct topo *t, enum topo_format format)
{
    switch (format) {
    case TOPO_JSON: return topo_print_json(t);
    case TOPO_DOT: return print_dot(t);
    case TOPO_SVG: return print_svg(t);
    default: return print_tables(t);
    }
}
