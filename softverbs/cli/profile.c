/* SPDX-License-Identifier: MIT
 *
 * softverbs profile: lists the profiles, or prints one in full.
 */
#include "subcommand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: softverbs profile [--json]\n"
    "       softverbs profile NAME | FILE.json\n"
    "\n"
    "Lists the built-in profiles. A profile describes a kind of device: its abilities, its limits, and the errors with\n"
    "which it refuses. With NAME, prints that profile as JSON; edit a copy and give the file to --profile to have a\n"
    "profile of your own. With FILE, checks the file and prints it with all values.\n"
    "\n"
    "  --json   the list as JSON\n"
    "\n"
    "  softverbs profile tb5 >mine.json\n"
    "  softverbs up --profile ./mine.json ring 3\n";

static int profile_list(bool json)
{
    static const char *const titles[] = {"PROFILE", ">QP", ">PD", ">MR", "WHAT IT IS"};
    const char *const *names = sv_profile_names();
    json_t *all = json ? json_array() : NULL;
    struct cli_table *t = json ? NULL : cli_table_new(5, titles);
    for (size_t i = 0; names[i]; i++) {
        struct sv_profile p;
        struct sv_why why = {""};
        int error = sv_profile_load(names[i], &p, &why);
        if (error) {
            json_decref(all);
            if (t)
                cli_table_print("profile", t, "");
            return cli_error("profile", "built-in profile '%s': %s", names[i], why.text[0] ? why.text : strerror(-error));
        }
        if (json) {
            json_array_append_new(all, json_pack("{s:s, s:s}", "name", p.name, "summary", p.summary));
            continue;
        }
        char qp[16], pd[16], mr[16];
        snprintf(qp, sizeof qp, "%u", p.real_qp);
        snprintf(pd, sizeof pd, "%u", p.real_pd);
        snprintf(mr, sizeof mr, "%u", p.real_mr);
        cli_table_add(t, (const char *[]){p.name, qp, pd, mr, p.summary});
    }
    if (json)
        return cli_json_print("profile", all);
    int status = cli_table_print("profile", t, "");
    return status ? status : cli_flush("profile");
}

int cli_profile(int argc, char **argv)
{
    static const struct option longs[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    bool json = false, started = false;
    int c;
    while ((c = cli_option("profile", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'j': json = true; break;
        case 'h': return cli_help("profile", help);
        default: return CLI_USAGE;
        }
    }
    if (optind == argc)
        return profile_list(json);
    if (optind + 1 < argc)
        return cli_usage("profile", "unexpected word '%s' after '%s': one profile at a time", argv[optind + 1], argv[optind]);
    struct sv_profile p;
    int status = cli_profile_load("profile", argv[optind], &p);
    if (status)
        return status;
    char *text = sv_profile_json(&p);
    if (!text)
        return cli_error("profile", "no memory for the text of the profile; end other programs");
    size_t n = strlen(text);
    fputs(text, stdout);
    if (n == 0 || text[n - 1] != '\n')
        putchar('\n');
    free(text);
    return cli_flush("profile");
}
