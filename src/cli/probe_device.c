/* SPDX-License-Identifier: MIT
 *
 * Shared by the probes: opens the device, maps memory, prints tables and errors.
 */
#include <sys/mman.h>

#include "cli/probe.h"

int probe_error(const struct probe *p, const char *format, ...)
{
    char sub[32], line[1600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(sub, sizeof sub, "probe %s", p->kind);
    return cli_error(sub, "%s", line);
}

struct verbs_device *probe_open(const struct probe *p)
{
    struct verbs_device *d = NULL;
    if (verbs_device_open(&d, p->name, p->gid_index) || verbs_device_use(d)) {
        probe_error(p, "%s", base_error());
        verbs_device_close(d);
        return NULL;
    }
    return d;
}

void *probe_map(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

int probe_print(const struct probe *p, struct cli_table *t, json_t *j)
{
    char sub[32];
    int rc;
    snprintf(sub, sizeof sub, "probe %s", p->kind);
    if (!t || !j) {
        json_decref(j);
        rc = cli_error(sub, "no memory for the table of the results" BASE_MEMORY_HINT);
    } else if (p->json) {
        rc = cli_json_print(sub, j);
    } else {
        if (p->markdown)
            cli_table_markdown(t, stdout);
        else
            cli_table_print(t, stdout);
        json_decref(j);
        rc = cli_flush(sub);
    }
    cli_table_free(t);
    return rc;
}
