/* SPDX-License-Identifier: MIT
 *
 * A fabric for one test.
 */
#include "ground.h"

#include "../fabric/shared.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int ground_plan(struct ground *g, const char *profile, int words, const char *const *word)
{
    struct sv_why why = {""};
    int error = sv_profile_load(profile, &g->model.profile, &why);
    if (!error) {
        error = sv_topology_load(words, word, &g->model.profile, &g->model.topology, &why);
    }
    if (error) {
        fprintf(stderr, "planning a fabric: %s\n", why.text);
    }
    return error;
}

int ground_make(struct ground *g, unsigned host)
{
    const char *place = getenv("TMPDIR");
    struct sv_why why = {""};
    snprintf(g->directory, sizeof(g->directory), "%s/softverbs-test-XXXXXX", place ? place : "/tmp");
    if (!mkdtemp(g->directory)) {
        perror(g->directory);
        return -errno;
    }
    setenv("SOFTVERBS_DIR", g->directory, 1);
    setenv("SOFTVERBS_FABRIC", "test", 1);
    ground_host(g, host);
    int error = sf_create("test", &g->model, 1, &why);
    if (error) {
        fprintf(stderr, "making a fabric: %s\n", why.text);
        rmdir(g->directory);
    }
    return error;
}

void ground_host(const struct ground *g, unsigned host)
{
    setenv("SOFTVERBS_HOST", g->model.topology.hosts[host].name, 1);
}

int ground_remove(struct ground *g)
{
    struct sv_why why = {""};
    unsigned live = 0;
    int error = sf_remove("test", false, &live, &why);
    if (error) {
        fprintf(stderr, "removing the fabric: %s (%u live)\n", why.text, live);
        sf_remove("test", true, &live, &why);
    }
    if (rmdir(g->directory) && !error) {
        perror(g->directory);
        error = -errno;
    }
    return error;
}

struct ibv_context *ground_open(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    if (list) {
        ibv_free_device_list(list);
    }
    return context;
}
