/* SPDX-License-Identifier: MIT
 *
 * weft config: prints every setting, its value, and where the value comes from.
 */
#include <string.h>

#include "cli/command.h"
#include "cluster/cluster.h"

static const char help[] =
    "Usage: weft config [--json] [--hostfile FILE]\n"
    "\n"
    "Prints all settings of weft: name, value, where the value comes from, and what the setting is for. weft uses the first of\n"
    "these that has a value: an option (or what a program passes to weft_open()), the environment variable (WEFT_...), the\n"
    "\"settings\" of the hostfile, the default.\n"
    "\n"
    "  --hostfile FILE   read this hostfile (default: WEFT_HOSTFILE)\n"
    "  --json            print JSON\n"
    "  -h, --help        print this text\n"
    "\n"
    "Exit status: 0; 1 if a setting is wrong (the error names the setting); 2 if the command line is wrong.\n";

static int print_rows(const struct cluster_setting_row *rows, int count, bool as_json)
{
    static const struct cli_column people[] = {{"setting", false}, {"value", false}, {"from", false}, {"help", false}};
    static const struct cli_column programs[] = {{"name", false},    {"variable", false}, {"value", false},
                                                 {"default", false}, {"from", false},     {"help", false}};
    struct cli_table *t = as_json ? cli_table_new(programs, 6) : cli_table_new(people, 4);
    int rc = t ? 0 : -ENOMEM;
    for (int i = 0; rc == 0 && i < count; i++) {
        const struct cluster_setting_row *r = &rows[i];
        const char *for_people[] = {r->variable, r->value[0] ? r->value : "-", r->from, r->help};
        const char *for_programs[] = {r->name, r->variable, r->value, r->default_text, r->from, r->help};
        rc = cli_table_add(t, as_json ? for_programs : for_people);
    }
    if (rc)
        rc = cli_error("config", "no memory for the table of settings" BASE_MEMORY_HINT);
    else if (as_json)
        rc = cli_json_print("config", cli_table_json(t));
    else {
        cli_table_print(t, stdout);
        rc = cli_flush("config");
    }
    cli_table_free(t);
    return rc;
}

int cli_config(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", no_argument, NULL, 'j'}, {"hostfile", required_argument, NULL, 'H'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    weft_config config = {.bytes = sizeof config};
    bool as_json = false, started = false;
    int c;
    while ((c = cli_option("config", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'j': as_json = true; break;
        case 'H': config.hostfile = optarg; break;
        case 'h': fputs(help, stdout); return cli_flush("config");
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("config", "unexpected argument '%s'", argv[optind]);
    int count = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, &config, true);
    if (count < 0)
        return cli_error("config", "%s", base_error());
    return print_rows(rows, count, as_json);
}
