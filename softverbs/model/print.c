/* SPDX-License-Identifier: MIT
 *
 * Prints a topology as JSON, which can be read back, and as a graph for Graphviz dot.
 *
 * The topology may come from a file that other processes write, so indices are checked before they are used.
 */
#include "build.h"
#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sv_topology_sane(const struct sv_topology *t)
{
    if (t->host_count > SV_HOSTS || t->device_count > SV_DEVICES || !memchr(t->name, 0, sizeof t->name))
        return false;
    for (uint32_t h = 0; h < t->host_count; h++)
        if (!sv_name_valid(t->hosts[h].name, SV_NAME) || t->hosts[h].first_device > t->device_count ||
            t->hosts[h].device_count > t->device_count - t->hosts[h].first_device)
            return false;
    for (uint32_t i = 0; i < t->device_count; i++) {
        const struct sv_device_model *d = &t->devices[i];
        if (d->host >= t->host_count || d->gid_count > SV_GIDS || !sv_name_valid(d->name, sizeof d->name) ||
            !sv_name_valid(d->interface, sizeof d->interface) || d->cable < SV_NO_CABLE || d->cable >= (int32_t)t->device_count)
            return false;
    }
    return true;
}

static json_t *print_device_json(const struct sv_device_model *d)
{
    char text[SV_ADDRESS_TEXT];
    json_t *o = json_object(), *gids = json_array();
    int bad = json_object_set_new(o, "interface", json_string(d->interface));
    bad |= json_object_set_new(o, "name", json_string(d->name));
    sv_mac_text(d->mac, text);
    bad |= json_object_set_new(o, "mac", json_string(text));
    sv_guid_text(d->guid, text);
    bad |= json_object_set_new(o, "guid", json_string(text));
    for (unsigned g = 0; g < d->gid_count; g++) {
        sv_gid_text(d->gids[g].raw, text);
        json_t *one = json_string(text);
        if (d->gids[g].unreachable) {
            json_t *marked = json_object();
            bad |= json_object_set_new(marked, "gid", one) | json_object_set_new(marked, "unreachable", json_true());
            one = marked;
        }
        bad |= json_array_append_new(gids, one);
    }
    bad |= json_object_set_new(o, "gids", gids);
    bad |= json_object_set_new(o, "port", json_string(d->port_up ? "up" : "down"));
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static int cables_json(const struct sv_topology *t, json_t *root)
{
    json_t *cables = json_array(), *joined = json_array();
    bool every = true;
    int bad = 0;
    for (uint32_t i = 0; i < t->device_count; i++) {
        char place[SV_PLACE];
        int32_t other = t->devices[i].cable;
        every = every && other != SV_NO_CABLE;
        if (other == SV_SWITCH)
            bad |= json_array_append_new(joined, json_string(sv_place(t, i, place)));
        if (other < (int32_t)i)
            continue; /* no cable, or printed at the other end */
        json_t *one = json_object();
        bad |= json_object_set_new(one, "from", json_string(sv_place(t, i, place)));
        bad |= json_object_set_new(one, "to", json_string(sv_place(t, (uint32_t)other, place)));
        bad |= json_array_append_new(cables, one);
    }
    if (json_array_size(cables))
        bad |= json_object_set(root, "cables", cables);
    if (json_array_size(joined))
        bad |= every ? json_object_set_new(root, "switch", json_true()) : json_object_set(root, "switch", joined);
    json_decref(cables);
    json_decref(joined);
    return bad;
}

char *sv_topology_json(const struct sv_topology *t)
{
    char *text = NULL;
    json_t *root = json_object(), *hosts = json_array();
    if (!sv_topology_sane(t)) {
        errno = EINVAL;
        goto out;
    }
    int bad = json_object_set_new(root, "name", json_string(t->name));
    for (uint32_t h = 0; h < t->host_count; h++) {
        const struct sv_host_model *m = &t->hosts[h];
        json_t *host = json_object(), *devices = json_array();
        bad |= json_object_set_new(host, "name", json_string(m->name));
        for (uint32_t i = m->first_device; i < (uint32_t)m->first_device + m->device_count; i++)
            bad |= json_array_append_new(devices, print_device_json(&t->devices[i]));
        bad |= json_object_set_new(host, "devices", devices);
        bad |= json_array_append_new(hosts, host);
    }
    bad |= json_object_set(root, "hosts", hosts);
    bad |= cables_json(t, root);
    text = bad ? NULL : json_dumps(root, JSON_INDENT(2));
    if (!text)
        errno = ENOMEM;
out:
    json_decref(hosts);
    json_decref(root);
    return text;
}

static void dot_device(FILE *out, const struct sv_topology *t, uint32_t i)
{
    const struct sv_device_model *d = &t->devices[i];
    char text[SV_ADDRESS_TEXT];
    fprintf(out, "    d%u [label=\"%s\\n%s%s", i, d->interface, d->name, d->port_up ? "" : " (down)");
    for (unsigned g = 0; g < d->gid_count; g++) {
        sv_gid_text(d->gids[g].raw, text);
        fprintf(out, "\\n%u %s%s", g, text, d->gids[g].unreachable ? " (unreachable)" : "");
    }
    fprintf(out, "\"%s];\n", d->port_up ? "" : ", style=\"rounded,dashed\"");
}

char *sv_topology_dot(const struct sv_topology *t)
{
    char *text = NULL;
    size_t bytes = 0;
    bool joined = false;
    if (!sv_topology_sane(t)) {
        errno = EINVAL;
        return NULL;
    }
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fprintf(out, "graph fabric {\n    label=\"");
    for (const char *c = t->name; *c; c++)
        fprintf(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fprintf(out, "\";\n    labelloc=t;\n    fontname=\"sans-serif\";\n    node [shape=box, style=rounded, "
                 "fontname=\"sans-serif\", fontsize=10];\n");
    for (uint32_t h = 0; h < t->host_count; h++) {
        const struct sv_host_model *m = &t->hosts[h];
        fprintf(out, "    subgraph cluster_%u {\n    label=\"host %s\";\n", h, m->name);
        /* also shows a host without devices */
        if (m->device_count == 0)
            fprintf(out, "    h%u [label=\"no device\", shape=plaintext];\n", h);
        for (uint32_t i = m->first_device; i < (uint32_t)m->first_device + m->device_count; i++)
            dot_device(out, t, i);
        fprintf(out, "    }\n");
    }
    for (uint32_t i = 0; i < t->device_count; i++) {
        const struct sv_device_model *d = &t->devices[i];
        const char *style = d->port_up ? "" : " [style=dashed]";
        if (d->cable == SV_SWITCH) {
            if (!joined)
                fprintf(out, "    s [label=\"switch\", shape=ellipse];\n");
            joined = true;
            fprintf(out, "    d%u -- s%s;\n", i, style);
        } else if (d->cable > (int32_t)i) {
            fprintf(out, "    d%u -- d%d%s;\n", i, d->cable, style);
        }
    }
    fprintf(out, "}\n");
    int bad = ferror(out);
    if (fclose(out) || bad) {
        free(text);
        return NULL;
    }
    return text;
}
