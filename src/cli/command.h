/* SPDX-License-Identifier: MIT
 *
 * cli: the command `weft`. Each subcommand has a file, a row in the table of main.c, and an entry here. An entry gets argv with argv[0] =
 * its own name, and returns the exit status: 0, 1 for a failure, 2 for wrong usage.
 */
#ifndef WEFT_CLI_COMMAND_H
#define WEFT_CLI_COMMAND_H

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/base.h"

/* --- subcommands --- */
int cli_config(int argc, char **argv);
int cli_devices(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_gpus(int argc, char **argv);
int cli_map(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_probe(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_topo(int argc, char **argv);

/* --- messages: "weft SUB: what: why; remedy" on stderr (output.c) --- */
#define CLI_FAILED 1
#define CLI_USAGE  2
/* Say it and return CLI_FAILED. */
int cli_error(const char *sub, const char *format, ...) BASE_PRINTF(2, 3);
/* Say it, point at --help, and return CLI_USAGE. */
int cli_usage(const char *sub, const char *format, ...) BASE_PRINTF(2, 3);

/* getopt_long() with our own messages: the option's value, -1 at the end, '?' after a message (return CLI_USAGE).
 * Options may stand behind other words, which are argv[optind] and on at the end; nothing behind `--` is one. With a "+" before
 * `shorts` they end at the first word that is none: what follows is a command's. Starts anew when `*started` is false. */
int cli_option(const char *sub, int argc, char **argv, const char *shorts, const struct option *longs, bool *started);

/* --- SIGINT, SIGTERM and SIGHUP (stop.c): from now on every loop looks whether one came, so that nothing is left on a device --- */
void cli_catch_signals(void);
int cli_stopped(void); /* the signal; 0: none */

/* --- tables for people, and the same as JSON (output.c) --- */
struct cli_column {
    const char *title; /* also the JSON key */
    bool right;        /* numbers stand to the right */
};
struct cli_table;
struct cli_table *cli_table_new(const struct cli_column *columns, unsigned count); /* NULL: no memory */
int cli_table_add(struct cli_table *t, const char *const *cells);                  /* copied */
void cli_table_print(const struct cli_table *t, FILE *to);
void cli_table_markdown(const struct cli_table *t, FILE *to);
json_t *cli_table_json(const struct cli_table *t); /* a list of objects; the caller's */
void cli_table_free(struct cli_table *t);
/* Print and free `value`: 0, or CLI_FAILED when stdout does not take it. */
int cli_json_print(const char *sub, json_t *value);
/* Flush stdout; a full disk or a closed pipe is a failure that must not pass unseen. */
int cli_flush(const char *sub);

#endif
