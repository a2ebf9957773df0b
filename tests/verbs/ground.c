/* SPDX-License-Identifier: MIT
 *
 * Making and removing the fabric of a test.
 */
#include "ground.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[128];
static const char *command, *profile;

const char *ground_profile(void)
{
    return profile;
}

bool ground_is_thunderbolt(void)
{
    return strncmp(profile, "tb5", 3) == 0;
}

int ground_softverbs(const char *words)
{
    char line[1024];
    snprintf(line, sizeof line, "'%s' %s", command, words);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int ground_make(char **argv, const char *topology)
{
    char words[256];
    const char *mark = getenv("TEST_RUN_MARK");
    if (!argv[1] || !argv[2] || !argv[3]) {
        fprintf(stderr, "usage: %s SOFTVERBS LIBRARY PROFILE\n", argv[0]);
        return -EINVAL;
    }
    command = argv[1];
    profile = argv[3];
    snprintf(directory, sizeof directory, "%s/%s-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", mark ? mark : "weft-verbs");
    if (!mkdtemp(directory))
        return -errno;
    setenv("SOFTVERBS_DIR", directory, 1);
    setenv("SOFTVERBS_FABRIC", "test", 1);
    setenv("SOFTVERBS_HOST", "0", 1);
    setenv("WEFT_VERBS_LIBRARY", argv[2], 1);
    snprintf(words, sizeof words, "up --fabric test --profile %s %s >/dev/null", profile, topology);
    return ground_softverbs(words) ? -EIO : 0;
}

/* The number of objects that the devices report as in use. */
static int held(void)
{
    static const char *const kinds[] = {"qp", "pd", "mr", "cq", "srq"};
    char line[512];
    int sum = 0;
    size_t i;
    json_t *device, *fabrics = NULL, *fabric;
    snprintf(line, sizeof line, "'%s' ls --json --all", command);
    FILE *f = popen(line, "r");
    if (f)
        fabrics = json_loadf(f, 0, NULL);
    if (!f || pclose(f) || !fabrics)
        sum = -1;
    fabric = json_is_array(fabrics) ? json_array_get(fabrics, 0) : json_array_get(json_object_get(fabrics, "fabrics"), 0);
    if (!json_is_object(fabric) || json_array_size(json_object_get(fabric, "devices")) == 0)
        sum = -1;
    json_array_foreach (json_object_get(fabric, "devices"), i, device) {
        for (size_t k = 0; sum >= 0 && k < sizeof kinds / sizeof kinds[0]; k++)
            sum += (int)json_integer_value(json_object_get(json_object_get(device, kinds[k]), "used"));
        sum += (int)json_integer_value(json_object_get(device, "leaked_pd"));
    }
    if (sum && fabrics)
        json_dumpf(fabrics, stderr, JSON_INDENT(1));
    json_decref(fabrics);
    return sum;
}

int ground_remove(void)
{
    int left = held();
    if (left)
        fprintf(stderr, "%d objects are left on the fabric\n", left);
    if (ground_softverbs("down --fabric test --force >/dev/null"))
        left = -1;
    if (rmdir(directory)) {
        perror(directory);
        left = -1;
    }
    return left ? -EBUSY : 0;
}
