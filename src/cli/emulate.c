/* SPDX-License-Identifier: MIT
 *
 * See emulate.h. The command `softverbs` makes the fabric and becomes each node's program: it is looked for beside this
 * one, in the tree this one was built in, and in PATH.
 */
#include "cli/emulate.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

int emulate_parse(struct emulation *e, const char *text, uint32_t nodes)
{
    char kind[16], *end;
    *e = (struct emulation){0};
    size_t n = strcspn(text, ":");
    const char *count = text[n] ? text + n + 1 : "";
    if (n < sizeof kind) {
        memcpy(kind, text, n);
        kind[n] = '\0';
    }
    errno = 0;
    long hosts = strtol(count, &end, 10);
    bool known = n < sizeof kind && (strcmp(kind, "switch") == 0 || strcmp(kind, "mesh") == 0 || strcmp(kind, "ring") == 0);
    if (!known || errno || end == count || hosts < 1 || hosts > 256 || (*end && *end != ':'))
        return base_fail(-EINVAL, "--softverbs '%s': expected switch:N, mesh:N or ring:N, and perhaps :PROFILE (generic, "
                                  "usual for a switch; tb5, usual else; tb5-strict; or a file)", text);
    if (nodes > (uint32_t)hosts)
        return base_fail(-EINVAL, "--softverbs '%s' has %ld hosts, and there are %u nodes: each needs one of its own", text, hosts,
                         nodes);
    snprintf(e->topology, sizeof e->topology, "%s:%ld", kind, hosts);
    /* Cables are Thunderbolt's: what goes by them finds ways through others. */
    const char *usual = strcmp(kind, "switch") == 0 ? "generic" : "tb5";
    if (snprintf(e->profile, sizeof e->profile, "%s", *end ? end + 1 : usual) >= (int)sizeof e->profile || !e->profile[0])
        return base_fail(-EINVAL, "--softverbs '%s': the profile's name is empty or too long", text);
    return 0;
}

static bool is_program(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) && access(path, X_OK) == 0;
}

static int find_command(char *out, size_t len)
{
    static const char *const beside[] = {"softverbs", "../../softverbs/cli/softverbs"};
    char self[3072];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < sizeof beside / sizeof *beside; i++) {
        snprintf(out, len, "%.*s/%s", (int)(slash - self), self, beside[i]);
        if (is_program(out))
            return 0;
    }
    for (const char *p = getenv("PATH"); p && *p;) {
        size_t part = strcspn(p, ":");
        snprintf(out, len, "%.*s/softverbs", (int)part, p);
        if (part && is_program(out))
            return 0;
        p += part + (p[part] == ':');
    }
    return base_fail(-ENOENT, "--softverbs needs the command softverbs, beside this one or in PATH: it comes with weft on Linux");
}

static int make_fabric(const struct emulation *e)
{
    char topology[64], *count;
    snprintf(topology, sizeof topology, "%s", e->topology);
    count = strchr(topology, ':');
    *count++ = '\0';
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return base_fail(-errno, "cannot start softverbs: %s", base_strerror(errno));
    if (pid == 0) {
        if (!base_end_with(parent, SIGKILL)) /* or it would make the fabric anew in what the keeper removes */
            _exit(127);
        putenv((char *)(uintptr_t)e->directory);
        execl(e->command, "softverbs", "up", "--fabric", "weft", "--profile", e->profile, topology, count, (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return base_fail(-errno, "waiting for softverbs: %s", base_strerror(errno));
    return status == 0 ? 0 : base_fail(-EIO, "softverbs could not make the fabric %s of profile %s", e->topology, e->profile);
}

uint32_t emulate_hosts(const struct emulation *e)
{
    return (uint32_t)strtoul(strchr(e->topology, ':') + 1, NULL, 10);
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
    argv[START + 1] = (char *)(uintptr_t)"--";
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
    if (!set || !set[0]) /* else nodes of one machine would use its memory; rc or tb is for the devices to say */
        snprintf(e->transport, sizeof e->transport, "WEFT_TRANSPORT=rdma");
    err = make_fabric(e);
    if (err)
        return err;
    e->argv[0] = make_argv(e, first);
    e->argv[1] = make_argv(e, others);
    return e->argv[0] && e->argv[1] ? 0 : base_fail(-ENOMEM, "no memory for the nodes' arguments");
}

void emulate_end(struct emulation *e)
{
    for (int i = 0; i < 2; i++) {
        free(e->argv[i]);
        e->argv[i] = NULL;
    }
}
