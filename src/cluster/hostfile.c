/* SPDX-License-Identifier: MIT
 *
 * Reads a hostfile. cluster.h lists its forms; read_any() recognises the form, and one function for each form fills `struct cluster_host`.
 * Unknown keys are errors in weft's own form. They are ignored in MLX's form, which has keys for other programs.
 */
#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "cluster/position.h"

struct reader {
    const char *name, *text;
    size_t len;
    struct position_path path; /* the value being read, for error messages */
    struct cluster_hostfile *out;
    uint32_t *slots; /* [machines] number of nodes on each machine; more than 1 only in weft's own form of the file */
};

static void step_key(struct reader *r, const char *key)
{
    r->path.steps[r->path.depth++] = (struct position_step){.key = key};
}

static void step_index(struct reader *r, size_t index)
{
    r->path.steps[r->path.depth++] = (struct position_step){.index = index};
}

static void step_back(struct reader *r)
{
    r->path.depth--;
}

static const char *hostfile_describe(const json_t *v, char *buf, size_t len)
{
    switch (v ? (int)json_typeof(v) : -1) {
    case JSON_OBJECT: snprintf(buf, len, "an object"); break;
    case JSON_ARRAY: snprintf(buf, len, "a list of %zu", json_array_size(v)); break;
    case JSON_STRING: snprintf(buf, len, "\"%.60s%s\"", json_string_value(v), json_string_length(v) > 60 ? "..." : ""); break;
    case JSON_INTEGER: snprintf(buf, len, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); break;
    case JSON_REAL: snprintf(buf, len, "%g", json_real_value(v)); break;
    case JSON_TRUE: snprintf(buf, len, "true"); break;
    case JSON_FALSE: snprintf(buf, len, "false"); break;
    case JSON_NULL: snprintf(buf, len, "null"); break;
    default: snprintf(buf, len, "nothing"); break;
    }
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return buf;
}

/* Fails with an error like "FILE:LINE: hosts[2].rdma[1]: expected a device's name or null, found 7". */
static int expected(struct reader *r, const char *what, const json_t *found)
{
    char place[256], text[128];
    return base_fail(-EINVAL, "%s:%u: %s: expected %s, found %s", r->name, position_line(r->text, r->len, &r->path),
                     position_name(&r->path, place, sizeof place), what, hostfile_describe(found, text, sizeof text));
}

static int out_of_memory(const struct reader *r)
{
    return base_fail(-ENOMEM, "%s: no memory for the contents of the hostfile" BASE_MEMORY_HINT, r->name);
}

/* Names appear on command lines and in messages: they must be printable, have no blanks, and not look like an option. */
static bool is_name(const json_t *v, size_t max)
{
    const char *s = json_string_value(v);
    if (!s || !s[0] || s[0] == '-' || json_string_length(v) > max)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-:%@[]", *s))
            return false;
    return true;
}

static bool allowed(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (strcmp(key, *keys) == 0)
            return true;
    return false;
}

static int only_keys(struct reader *r, json_t *object, const char *const *keys, const char *what)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value) {
        if (!allowed(key, keys)) {
            step_key(r, key);
            return expected(r, what, value);
        }
    }
    return 0;
}

static int read_ips(struct reader *r, const json_t *list, struct cluster_host *h)
{
    if (!json_is_array(list))
        return expected(r, "a list of addresses", list);
    size_t n = json_array_size(list);
    h->ips = calloc(n ? n : 1, sizeof *h->ips);
    if (!h->ips)
        return out_of_memory(r);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        step_index(r, i);
        if (!is_name(v, 255))
            return expected(r, "an address or a name, as in \"10.0.0.1\"", v);
        h->ips[i] = strdup(json_string_value(v));
        if (!h->ips[i])
            return out_of_memory(r);
        h->ip_count++;
        step_back(r);
    }
    return 0;
}

/* Read one row of the device matrix: the devices of host `me` towards each of the `machines` hosts. */
static int hostfile_read_devices(struct reader *r, const json_t *list, struct cluster_host *h, size_t me, size_t machines)
{
    char what[96];
    if (!json_is_array(list))
        return expected(r, "a list of devices", list);
    size_t n = json_array_size(list);
    if (n == 0)
        return 0;
    if (n != machines) {
        snprintf(what, sizeof what, "one entry for each of the %zu hosts", machines);
        return expected(r, what, list);
    }
    h->rdma = calloc(n, sizeof *h->rdma);
    if (!h->rdma)
        return out_of_memory(r);
    h->rdma_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        step_index(r, i);
        /* A list means several cables between two hosts. The transports use only the first. */
        if (json_is_array(v)) {
            const json_t *cable;
            size_t k;
            json_array_foreach (v, k, cable) {
                step_index(r, k);
                if (!is_name(cable, 63))
                    return expected(r, "a device's name", cable);
                step_back(r);
            }
            if (json_array_size(v) > 1 && i != me) {
                char place[256];
                base_log(BASE_LOG_INFO, "%s: %s has %zu cables, of which weft uses the first one", r->name,
                         position_name(&r->path, place, sizeof place), json_array_size(v));
            }
            v = json_array_get(v, 0); /* NULL if the list is empty: no cable */
        }
        if (v && !json_is_null(v)) {
            if (i == me)
                return expected(r, "null (a host has no cable to itself)", v);
            if (!is_name(v, 63))
                return expected(r, "a device's name or null", v);
            h->rdma[i] = strdup(json_string_value(v));
            if (!h->rdma[i])
                return out_of_memory(r);
        }
        step_back(r);
    }
    return 0;
}

/* MLX's form allows additional keys. But an entry with none of the keys ssh, ips and rdma probably has a misspelt key. */
static bool names_host(const json_t *entry)
{
    static const char *const keys[] = {"ssh", "ips", "rdma"};
    for (int i = 0; i < 3; i++) {
        const json_t *v = json_object_get(entry, keys[i]);
        if (v && !json_is_null(v))
            return true;
    }
    return false;
}

static int read_host(struct reader *r, json_t *v, size_t me, size_t machines, bool own)
{
    static const char *const keys[] = {"ssh", "ips", "rdma", "slots", NULL};
    struct cluster_host *h = &r->out->hosts[me];
    int rc = 0;
    if (!json_is_object(v))
        return expected(r, "an object with \"ssh\", \"ips\" and \"rdma\"", v);
    if (own && (rc = only_keys(r, v, keys, "one of the keys ssh, ips, rdma, slots")))
        return rc;
    if (!names_host(v)) {
        char place[256];
        return base_fail(-EINVAL, "%s:%u: %s: expected \"ssh\", \"ips\" or \"rdma\", found none of them", r->name,
                         position_line(r->text, r->len, &r->path), position_name(&r->path, place, sizeof place));
    }
    h->machine = (uint32_t)me;
    r->slots[me] = 1;

    json_t *ssh = json_object_get(v, "ssh");
    step_key(r, "ssh");
    if (ssh && !json_is_null(ssh)) {
        if (!is_name(ssh, 255))
            return expected(r, "a host's name, as in \"a.local\"", ssh);
        h->ssh = strdup(json_string_value(ssh));
        if (!h->ssh)
            return out_of_memory(r);
    }
    step_back(r);

    const json_t *ips = json_object_get(v, "ips");
    step_key(r, "ips");
    if (ips && (rc = read_ips(r, ips, h)))
        return rc;
    step_back(r);

    const json_t *rdma = json_object_get(v, "rdma");
    step_key(r, "rdma");
    if (rdma && (rc = hostfile_read_devices(r, rdma, h, me, machines)))
        return rc;
    step_back(r);

    const json_t *slots = own ? json_object_get(v, "slots") : NULL;
    step_key(r, "slots");
    if (slots) {
        json_int_t n = json_integer_value(slots); /* 0 if it is no integer */
        if (n < 1 || n > WEFT_MAX_NODES)
            return expected(r, "a number of nodes from 1 to 1024", slots);
        r->slots[me] = (uint32_t)n;
    }
    step_back(r);
    return 0;
}

static int hostfile_begin(struct reader *r, const json_t *list)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > WEFT_MAX_NODES)
        return expected(r, "a list of 1 to 1024 hosts", list);
    r->out->hosts = calloc(n, sizeof *r->out->hosts);
    r->slots = calloc(n, sizeof *r->slots);
    if (!r->out->hosts || !r->slots)
        return out_of_memory(r);
    r->out->count = r->out->machines = (uint32_t)n;
    return 0;
}

static int read_hosts(struct reader *r, const json_t *list, bool own)
{
    int rc = hostfile_begin(r, list);
    json_t *v;
    size_t i;
    if (rc)
        return rc;
    json_array_foreach (list, i, v) {
        step_index(r, i);
        if ((rc = read_host(r, v, i, r->out->machines, own)))
            return rc;
        step_back(r);
    }
    return 0;
}

static int read_settings(struct reader *r, json_t *object)
{
    struct cluster_hostfile *h = r->out;
    const char *key;
    json_t *v;
    if (!json_is_object(object))
        return expected(r, "an object of settings, as in {\"pool\": \"1G\"}", object);
    h->settings = calloc(json_object_size(object) + 1, sizeof *h->settings);
    if (!h->settings)
        return out_of_memory(r);
    json_object_foreach (object, key, v) {
        char text[64];
        const char *value = text;
        step_key(r, key);
        if (!cluster_setting_in_hostfile(key))
            return expected(r, "a setting that is allowed in a hostfile (`weft config` lists all)", v);
        if (json_is_string(v))
            value = json_string_value(v);
        else if (json_is_integer(v))
            snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        else if (json_is_real(v))
            snprintf(text, sizeof text, "%.9g", json_real_value(v));
        else if (json_is_boolean(v))
            snprintf(text, sizeof text, "%d", json_is_true(v));
        else
            return expected(r, "a text, a number, true or false", v);
        struct cluster_pair *pair = &h->settings[h->setting_count];
        pair->name = strdup(key);
        pair->value = strdup(value);
        h->setting_count++; /* incremented before the check, so that cluster_hostfile_free() frees both strings */
        if (!pair->name || !pair->value)
            return out_of_memory(r);
        step_back(r);
    }
    return 0;
}

static int read_own(struct reader *r, json_t *root)
{
    static const char *const keys[] = {"weft", "coord", "hosts", "settings", NULL};
    int rc = only_keys(r, root, keys, "one of the keys weft, coord, hosts, settings");
    if (rc)
        return rc;
    const json_t *version = json_object_get(root, "weft");
    step_key(r, "weft");
    if (json_integer_value(version) != 1)
        return expected(r, "1 (the version of the format)", version);
    step_back(r);

    const json_t *coord = json_object_get(root, "coord");
    step_key(r, "coord");
    if (coord) {
        if (!json_is_string(coord) || json_string_length(coord) > 120)
            return expected(r, "an address as text, as in \"10.0.0.1:7654\"", coord);
        if ((rc = cluster_address_check(json_string_value(coord))))
            return base_context(rc, "%s:%u: coord", r->name, position_line(r->text, r->len, &r->path));
        r->out->coord = strdup(json_string_value(coord));
        if (!r->out->coord)
            return out_of_memory(r);
    }
    step_back(r);

    json_t *settings = json_object_get(root, "settings");
    step_key(r, "settings");
    if (settings && (rc = read_settings(r, settings)))
        return rc;
    step_back(r);

    const json_t *hosts = json_object_get(root, "hosts");
    step_key(r, "hosts");
    rc = read_hosts(r, hosts, true);
    if (rc == 0)
        step_back(r);
    return rc;
}

/* Read MLX's ring: the addresses at which each rank listens. The ports belong to MLX's own sockets and are ignored. */
static int read_ring(struct reader *r, const json_t *root)
{
    int rc = hostfile_begin(r, root);
    const json_t *rank, *v;
    size_t i, k;
    if (rc)
        return rc;
    json_array_foreach (root, i, rank) {
        struct cluster_host *h = &r->out->hosts[i];
        h->machine = (uint32_t)i;
        r->slots[i] = 1;
        step_index(r, i);
        if (!json_is_array(rank) || json_array_size(rank) == 0)
            return expected(r, "a list of \"HOST:PORT\"", rank);
        h->ips = calloc(json_array_size(rank), sizeof *h->ips);
        if (!h->ips)
            return out_of_memory(r);
        json_array_foreach (rank, k, v) {
            const char *text = json_string_value(v);
            const char *colon = text ? strrchr(text, ':') : NULL;
            step_index(r, k);
            long port = colon && isdigit((unsigned char)colon[1]) ? strtol(colon + 1, NULL, 10) : 0;
            if (!is_name(v, 255) || !colon || colon == text || port < 1 || port > 65535 ||
                strspn(colon + 1, "0123456789") != strlen(colon + 1))
                return expected(r, "\"HOST:PORT\"", v);
            h->ips[k] = strndup(text, (size_t)(colon - text));
            if (!h->ips[k])
                return out_of_memory(r);
            h->ip_count++;
            step_back(r);
        }
        step_back(r);
    }
    return 0;
}

static int read_matrix(struct reader *r, const json_t *root)
{
    int rc = hostfile_begin(r, root);
    const json_t *row;
    size_t i;
    if (rc)
        return rc;
    json_array_foreach (root, i, row) {
        r->out->hosts[i].machine = (uint32_t)i;
        r->slots[i] = 1;
        step_index(r, i);
        if (json_is_array(row) && json_array_size(row) == 0)
            return expected(r, "one device or null for each host", row);
        if ((rc = hostfile_read_devices(r, row, &r->out->hosts[i], i, r->out->machines)))
            return rc;
        step_back(r);
    }
    return 0;
}

/* A ring starts with an address, which contains a colon. A matrix starts with null. */
static bool is_ring(const json_t *root)
{
    const json_t *first = json_array_get(json_array_get(root, 0), 0);
    return json_is_string(first) && strchr(json_string_value(first), ':');
}

static int read_any(struct reader *r, json_t *root)
{
    if (json_is_object(root) && json_object_get(root, "weft"))
        return read_own(r, root);
    if (json_is_object(root) && json_object_get(root, "hosts")) {
        step_key(r, "hosts");
        return read_hosts(r, json_object_get(root, "hosts"), false);
    }
    if (json_is_array(root) && json_is_object(json_array_get(root, 0)))
        return read_hosts(r, root, false);
    if (json_is_array(root) && json_is_array(json_array_get(root, 0)))
        return is_ring(root) ? read_ring(r, root) : read_matrix(r, root);
    return expected(r, "an object with \"weft\": 1 and \"hosts\", MLX's list of hosts, or a matrix of devices", root);
}

/* Copy the strings. After a failure `to` has the strings that were copied so far; the caller frees these. */
static int copy_strings(char **to, char *const *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (from[i] && !(to[i] = strdup(from[i])))
            return -ENOMEM;
    return 0;
}

static void free_strings(char **list, uint32_t count)
{
    for (uint32_t i = 0; list && i < count; i++)
        free(list[i]);
    free(list);
}

static void free_hosts(struct cluster_host *hosts, uint32_t count)
{
    for (uint32_t i = 0; hosts && i < count; i++) {
        free(hosts[i].ssh);
        free_strings(hosts[i].ips, hosts[i].ip_count);
        free_strings(hosts[i].rdma, hosts[i].rdma_count);
    }
    free(hosts);
}

/* Make the entry of a node from its machine's entry. The node's list has a device for each node, the machine's list one for each
 * machine. */
static int copy_host(struct cluster_host *to, const struct cluster_host *machine, const uint32_t *slots, uint32_t nodes)
{
    to->machine = machine->machine;
    if (machine->ssh && !(to->ssh = strdup(machine->ssh)))
        return -ENOMEM;
    if (machine->ips) {
        to->ips = calloc(machine->ip_count + 1, sizeof *to->ips);
        if (!to->ips)
            return -ENOMEM;
        to->ip_count = machine->ip_count;
        if (copy_strings(to->ips, machine->ips, machine->ip_count))
            return -ENOMEM;
    }
    if (!machine->rdma)
        return 0;
    to->rdma = calloc(nodes, sizeof *to->rdma);
    if (!to->rdma)
        return -ENOMEM;
    to->rdma_count = nodes;
    for (uint32_t i = 0, n = 0; i < machine->rdma_count; n += slots[i], i++)
        for (uint32_t k = 0; machine->rdma[i] && k < slots[i]; k++)
            if (!(to->rdma[n + k] = strdup(machine->rdma[i])))
                return -ENOMEM;
    return 0;
}

static int expand_slots(struct reader *r)
{
    struct cluster_hostfile *h = r->out;
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < h->machines; i++)
        nodes += r->slots[i];
    if (nodes <= h->machines) /* equal: there is one node on each host */
        return 0;
    if (nodes > WEFT_MAX_NODES)
        return base_fail(-EINVAL, "%s: hosts: expected at most %u nodes in all, found %u", r->name, WEFT_MAX_NODES, nodes);
    struct cluster_host *all = calloc(nodes, sizeof *all);
    if (!all)
        return out_of_memory(r);
    for (uint32_t i = 0, n = 0; i < h->machines; i++) {
        for (uint32_t k = 0; k < r->slots[i]; k++, n++) {
            if (copy_host(&all[n], &h->hosts[i], r->slots, nodes)) {
                free_hosts(all, nodes);
                return out_of_memory(r);
            }
        }
    }
    free_hosts(h->hosts, h->machines);
    h->hosts = all;
    h->count = nodes;
    return 0;
}

int cluster_hostfile_parse(struct cluster_hostfile **out, const char *text, size_t len, const char *name)
{
    struct reader r = {.name = name, .text = text, .len = len};
    json_error_t error;
    int rc;
    *out = NULL;
    if (len > CLUSTER_HOSTFILE_MAX)
        return base_fail(-EINVAL, "%s: a hostfile has at most 4 MiB, found %zu bytes", name, len);
    if (len && memchr(text, 0, len))
        return base_fail(-EINVAL, "%s: expected JSON text, found a zero byte", name);
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        for (char *p = error.text; *p; p++)
            if ((unsigned char)*p < 0x20 || *p == 0x7f)
                *p = ' ';
        return base_fail(-EINVAL, "%s:%d: expected JSON, found an error in column %d: %s", name, error.line > 0 ? error.line : 1,
                         error.column, error.text);
    }
    r.out = calloc(1, sizeof *r.out);
    rc = r.out ? read_any(&r, root) : out_of_memory(&r);
    if (rc == 0)
        rc = expand_slots(&r);
    if (rc)
        cluster_hostfile_free(r.out);
    else
        *out = r.out;
    free(r.slots);
    json_decref(root);
    return rc;
}

int cluster_hostfile_read(struct cluster_hostfile **out, const char *path)
{
    struct stat st;
    char *text = NULL;
    size_t len = 0;
    int rc = 0;
    *out = NULL;
    /* O_NONBLOCK: opening a named pipe would block. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return base_fail(-errno, "hostfile %s: %s", path, base_strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        rc = base_fail(-EINVAL, "hostfile %s: expected a regular file", path);
        goto out;
    }
    if (st.st_size > (off_t)CLUSTER_HOSTFILE_MAX) {
        rc = base_fail(-EINVAL, "%s: a hostfile has at most 4 MiB, found %lld bytes", path, (long long)st.st_size);
        goto out;
    }
    text = malloc((size_t)st.st_size + 1);
    if (!text) {
        rc = base_fail(-ENOMEM, "%s: no memory to read the hostfile" BASE_MEMORY_HINT, path);
        goto out;
    }
    while (len < (size_t)st.st_size) {
        ssize_t n = read(fd, text + len, (size_t)st.st_size - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = base_fail(-errno, "hostfile %s: %s", path, base_strerror(errno));
            goto out;
        }
        if (n == 0)
            break;
        len += (size_t)n;
    }
    rc = cluster_hostfile_parse(out, text, len, path);
out:
    free(text);
    close(fd);
    return rc;
}

void cluster_hostfile_free(struct cluster_hostfile *h)
{
    if (!h)
        return;
    free_hosts(h->hosts, h->count);
    for (uint32_t i = 0; i < h->setting_count; i++) {
        free(h->settings[i].name);
        free(h->settings[i].value);
    }
    free(h->settings);
    free(h->coord);
    free(h);
}
