/* SPDX-License-Identifier: MIT
 *
 * Checks that the profiles tb5 and tb5-strict do what Apple's Thunderbolt device is known to do. Each check is about one property of the
 * device, which others have measured or published (Apple's TN3205, and issues of programs that use the device). Where the reports differ,
 * softverbs/docs/profiles.md says which profile follows which. Each check has a fabric of its own. The output is TAP.
 *
 * usage: tb5 PROFILE SOFTVERBS LIBRDMA [CHECK...]
 */
#include "tb5.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t side(const struct ground *g, const struct check *c, bool is_left, int mine, int other)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        close(other);
        left = is_left;
        wire = mine;
        ground_host(g, is_left ? 0 : 1);
        c->run();
        exit(0); /* leaves the fabric */
    }
    return child;
}

static bool run(const char *profile, const struct check *c)
{
    static struct ground g;
    char hosts[4] = {(char)('0' + (c->hosts ? c->hosts : 2))};
    const char *const words[] = {"mesh", hosts};
    int pair[2], status[2] = {0};
    if (ground_plan(&g, profile, 2, words)) {
        return false;
    }
    if (c->plan) {
        c->plan(&g);
    }
    if (ground_make(&g, 0) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        return false;
    }
    fflush(NULL);
    pid_t a = side(&g, c, true, pair[0], pair[1]), b = side(&g, c, false, pair[1], pair[0]);
    close(pair[0]);
    close(pair[1]);
    bool good = a > 0 && b > 0;
    if (a > 0) {
        waitpid(a, &status[0], 0);
    }
    if (b > 0) {
        waitpid(b, &status[1], 0);
    }
    for (int i = 0; i < 2; i++) {
        const bool dies = i == 1 && c->right_dies;
        if (WIFSIGNALED(status[i]) && !dies) {
            fprintf(stderr, "    %s: ended by signal %d\n", i ? "right" : "left", WTERMSIG(status[i]));
        }
        good = good && (dies ? WIFSIGNALED(status[i]) : status[i] == 0);
    }
    return ground_remove(&g) == 0 && good;
}

static bool chosen(const struct check *c, int count, char **word)
{
    for (int i = 0; i < count; i++) {
        if (strstr(c->name, word[i])) {
            return true;
        }
    }
    return count == 0;
}

int main(int count, char **word)
{
    static const struct check *const rooms[] = {device_checks, limit_checks, data_checks};
    unsigned failures = 0, number = 0, total = 0;
    if (count < 4) {
        fprintf(stderr, "usage: tb5 PROFILE SOFTVERBS LIBRDMA [CHECK...]\n");
        return 2;
    }
    strict = !strcmp(word[1], "tb5-strict");
    command = word[2];
    library_path = word[3];
    signal(SIGPIPE, SIG_IGN);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
            for (const struct check *c = rooms[i]; c->name; c++) {
                if (!chosen(c, count - 4, word + 4)) {
                    continue;
                }
                if (pass == 0) {
                    total++;
                    continue;
                }
                bool good = run(word[1], c);
                printf("%sok %u %s\n", good ? "" : "not ", ++number, c->name);
                fflush(stdout);
                failures += !good;
            }
        }
        if (pass == 0) {
            printf("1..%u\n", total);
        }
    }
    return failures != 0;
}
