/* SPDX-License-Identifier: MIT
 *
 * Implements emulate.h with the command `softverbs`, which creates the fabric and runs the program of each node. This command looks for
 * `softverbs` beside itself, in the tree where it was built, and in PATH.
 */
#include "cli/emulate.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/process.h"
#include "cli/hosts.h"
#include "cli/self.h"

extern char **environ;

static bool is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* Length of the longest prefix that names a file, as "lab.json" in "lab.json:tb5". A path may contain colons. Returns 0 if no prefix names
 * a file. */
static size_t file_length(const char *text)
{
    char path[4096];
    for (size_t n = strlen(text); n > 0; n--) {
        if ((text[n] && text[n] != ':') || n >= sizeof path)
            continue;
        memcpy(path, text, n);
        path[n] = '\0';
        if (is_there(path))
            return n;
    }
    return 0;
}

/* Read from a topology file the names of the hosts, and whether cables connect the hosts. Errors elsewhere in the file are reported by
 * softverbs. */
static int read_file(struct emulation *e, bool *cables)
{
    json_error_t why;
    struct stat st;
    if (stat(e->topology, &st) == 0 && !S_ISREG(st.st_mode))
        return base_fail(-EINVAL, "--softverbs: %s is not a regular file: expected a topology as JSON, as softverbs topo prints it",
                         e->topology);
    int fd = open(e->topology, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return base_fail(-errno, "--softverbs: topology %s: %s", e->topology, base_strerror(errno));
    json_t *root = json_loadfd(fd, JSON_REJECT_DUPLICATES, &why);
    close(fd);
    if (!root)
        return base_fail(-EINVAL, "--softverbs: topology %s:%d: expected JSON, as softverbs topo prints it: %s", e->topology,
                         why.line > 0 ? why.line : 1, why.text);
    const json_t *hosts = json_object_get(root, "hosts");
    size_t count = json_array_size(hosts);
    for (size_t i = 0; i < count && count <= EMULATE_HOSTS; i++) {
        const json_t *host = json_array_get(hosts, i), *name = json_is_string(host) ? host : json_object_get(host, "name");
        snprintf(e->names[i], sizeof e->names[i], "%s", json_is_string(name) ? json_string_value(name) : "");
    }
    e->hosts = (uint32_t)count;
    *cables = json_array_size(json_object_get(root, "cables")) > 0;
    json_decref(root);
    if (count < 1 || count > EMULATE_HOSTS)
        return base_fail(-EINVAL,
                         "--softverbs: topology %s: expected an object with \"hosts\", a list of 1 to %u, as softverbs topo prints "
                         "it, and found %zu",
                         e->topology, EMULATE_HOSTS, count);
    return 0;
}

/* The kind of topology with which a text begins. Returns NULL if `text` begins with no kind. */
static const char *emulate_kind_of(const char *text)
{
    static const char *const kinds[] = {"switch", "mesh", "ring", "chain"};
    size_t n = strcspn(text, ":");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i]) == n && memcmp(text, kinds[i], n) == 0)
            return kinds[i];
    return NULL;
}

/* Parse a kind and its number of hosts, as in "mesh:4". Returns the rest of the text; NULL if there is no number. */
static const char *read_kind(struct emulation *e, const char *kind, const char *text)
{
    const char *count = text + strlen(kind);
    char *end;
    count += *count == ':';
    errno = 0;
    long hosts = strtol(count, &end, 10);
    if (errno || end == count || hosts < 1 || hosts > (long)EMULATE_HOSTS || (*end && *end != ':'))
        return NULL;
    e->hosts = (uint32_t)hosts;
    snprintf(e->topology, sizeof e->topology, "%s", kind);
    snprintf(e->count, sizeof e->count, "%u", e->hosts);
    for (uint32_t h = 0; h < e->hosts; h++)
        snprintf(e->names[h], sizeof e->names[h], "%u", h);
    return end;
}

int emulate_parse(struct emulation *e, const char *text, uint32_t nodes)
{
    memset(e, 0, sizeof *e);
    const char *kind = emulate_kind_of(text), *profile = kind ? read_kind(e, kind, text) : NULL;
    bool cables = kind && strcmp(kind, "switch") != 0;
    size_t n = kind ? 0 : file_length(text);
    if (n > 0) {
        snprintf(e->topology, sizeof e->topology, "%.*s", (int)n, text);
        int err = read_file(e, &cables);
        if (err)
            return err;
        profile = text + n;
    }
    if (!profile)
        return base_fail(
            -EINVAL,
            "--softverbs '%s': %sexpected switch:N, mesh:N, ring:N, chain:N or the FILE of a topology, and optionally :PROFILE "
            "(generic, the default without cables; tb5, the default with cables; tb5-strict; or a file)",
            text, kind ? "" : "there is no such file; ");
    if (nodes > e->hosts)
        return base_fail(-EINVAL,
                         "--softverbs '%s' has %u host%s, but there are %u nodes, which need a host each: give fewer nodes, or more hosts",
                         text, e->hosts, e->hosts == 1 ? "" : "s", nodes);
    /* In a topology with cables the links are Thunderbolt links, because the tb transport can route through other nodes. */
    const char *usual = cables ? "tb5" : "generic";
    int len = snprintf(e->profile, sizeof e->profile, "%s", *profile ? profile + 1 : usual);
    if (len >= (int)sizeof e->profile || !len)
        return base_fail(-EINVAL, "--softverbs '%s': the profile's name is %s: `softverbs profile` lists the names", text,
                         len ? "too long" : "empty");
    return 0;
}

static int find_command(char *out, size_t len)
{
    static const char *const beside[] = {"softverbs", "../../softverbs/cli/softverbs"};
    char self[3072], path[3200];
    self_path(self, sizeof self);
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < sizeof beside / sizeof *beside; i++) {
        snprintf(path, sizeof path, "%.*s/%s", (int)(slash - self), self, beside[i]);
        if (base_process_find(path, out, len) == 0)
            return 0;
    }
    if (base_process_find("softverbs", out, len) == 0)
        return 0;
    return base_fail(-ENOENT, "--softverbs needs the command softverbs, beside weft or in PATH; on Linux it is installed with weft");
}

/* This process's environment with one assignment added or replaced. The caller frees the array. */
static char **environment_with(const char *assignment)
{
    size_t count = 0, n = 0, name = strcspn(assignment, "=") + 1;
    while (environ[count])
        count++;
    char **env = calloc(count + 2, sizeof *env);
    if (!env)
        return NULL;
    env[n++] = (char *)(uintptr_t)assignment;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], assignment, name) != 0)
            env[n++] = environ[i];
    return env;
}

static int make_fabric(const struct emulation *e)
{
    const char *argv[] = {"softverbs", "up", "--fabric", "weft", "--profile", e->profile, "--", e->topology, e->count[0] ? e->count : NULL,
                          NULL};
    char **env = environment_with(e->directory);
    if (!env)
        return base_fail(-ENOMEM, "no memory for the environment of softverbs" BASE_MEMORY_HINT);
    /* softverbs must end with this process. Otherwise it could create files in the directory while the keeper (keeper.c) removes the
     * directory. */
    const struct base_process how = {.path = e->command, .argv = (char *const *)(uintptr_t)argv, .env = env, .end_with = SIGKILL};
    pid_t pid;
    int rc = base_process_start(&how, &pid, NULL);
    free(env);
    if (rc)
        return base_fail(rc, "cannot start softverbs (%s): %s", e->command, base_strerror(rc));
    return base_process_reap(pid) == 0
               ? 0
               : base_fail(-EIO, "softverbs could not create the fabric %s%s%s with profile %s: see its message above", e->topology,
                           e->count[0] ? ":" : "", e->count, e->profile);
}

static char **make_argv(struct emulation *e, char *const *program)
{
    static const char *const start[] = {"softverbs", "run", "--fabric", "weft", "--host"};
    enum { START = sizeof start / sizeof *start };
    size_t count = 0;
    while (program[count])
        count++;
    char **argv = calloc(START + 2 + count + 1, sizeof *argv);
    if (!argv)
        return NULL;
    for (size_t i = 0; i < START; i++)
        argv[i] = (char *)(uintptr_t)start[i];
    argv[START] = e->host;
    argv[START + 1] = (char *)(uintptr_t) "--";
    memcpy(argv + START + 2, program, count * sizeof *program);
    return argv;
}

int emulate_start(struct emulation *e, const char *dir, char *const *first, char *const *others)
{
    int err = find_command(e->command, sizeof e->command);
    if (err)
        return err;
    snprintf(e->directory, sizeof e->directory, "SOFTVERBS_DIR=%s", dir);
    const char *set = getenv("WEFT_TRANSPORT");
    /* Without a transport the nodes would use shared memory. "rdma" stands for rc or tb, whichever the devices need. */
    if (!set || !set[0])
        snprintf(e->transport, sizeof e->transport, "WEFT_TRANSPORT=rdma");
    err = make_fabric(e);
    if (err)
        return err;
    e->argv[0] = make_argv(e, first);
    e->argv[1] = make_argv(e, others);
    return e->argv[0] && e->argv[1] ? 0 : base_fail(-ENOMEM, "no memory for the nodes' arguments" BASE_MEMORY_HINT);
}

void emulate_end(struct emulation *e)
{
    for (int i = 0; i < 2; i++) {
        free(e->argv[i]);
        e->argv[i] = NULL;
    }
}
