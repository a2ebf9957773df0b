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
int cli_cast(int argc, char **argv);
int cli_cat(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_cp(int argc, char **argv);
int cli_devices(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_down(int argc, char **argv);
int cli_exec(int argc, char **argv);
int cli_files(int argc, char **argv);
int cli_gpus(int argc, char **argv);
int cli_kill(int argc, char **argv);
int cli_logs(int argc, char **argv);
int cli_map(int argc, char **argv);
int cli_pin(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_probe(int argc, char **argv);
int cli_proxy(int argc, char **argv);
int cli_publish(int argc, char **argv);
int cli_ps(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_topo(int argc, char **argv);
int cli_up(int argc, char **argv);

/* If descriptor 0, 1 or 2 is closed, open /dev/null there, so that no other file gets this number. /dev/null is opened in the wrong
 * direction, so that using the descriptor fails with EBADF as before. */
void cli_hold_standard_files(void);

/* --- messages: "weft SUB: what: why; remedy" on stderr (messages.c) --- */
#define CLI_FAILED 1
#define CLI_USAGE  2
/* Print an error and return CLI_FAILED. */
int cli_error(const char *sub, const char *format, ...) BASE_PRINTF(2, 3);
/* Print an error and a hint at --help, and return CLI_USAGE. */
int cli_usage(const char *sub, const char *format, ...) BASE_PRINTF(2, 3);

/* getopt_long() with weft's messages. Returns the option's value, -1 at the end, or '?' after an error was printed (then return CLI_USAGE).
 * Options may come after other arguments; at the end, the other arguments are argv[optind] and on. `--` ends the options. If `shorts`
 * begins with "+", the first other argument also ends the options. `*started` false: a new scan starts. */
int cli_option(const char *sub, int argc, char **argv, const char *shorts, const struct option *longs, bool *started);

/* --- SIGINT, SIGTERM and SIGHUP (stop.c). A command that uses RDMA devices catches them, and checks cli_stopped() in every loop, so that
 * it can free the objects of the devices --- */
void cli_catch_signals(void);
int cli_stopped(void); /* the signal that was caught; 0: no signal */

/* --- tables, printed as text or as JSON (output.c) --- */
struct cli_column {
    const char *title; /* also the JSON key */
    bool right;        /* align to the right, as for numbers */
};
struct cli_table;
struct cli_table *cli_table_new(const struct cli_column *columns, unsigned count); /* NULL: no memory */
int cli_table_add(struct cli_table *t, const char *const *cells);                  /* adds a row; copies the cells */
void cli_table_print(const struct cli_table *t, FILE *to);
void cli_table_markdown(const struct cli_table *t, FILE *to);
json_t *cli_table_json(const struct cli_table *t); /* a list of objects; the caller frees it */
void cli_table_free(struct cli_table *t);
/* Prints and frees the table. `rc` not 0: there was no memory for the table. `what`: what the table contains, for errors. Returns the exit
 * status. */
int cli_table_end(const char *sub, struct cli_table *t, int rc, const char *what);
/* Print and free `value`. Returns 0, or CLI_FAILED if standard output cannot be written. */
int cli_json_print(const char *sub, json_t *value);
/* Flush standard output. Returns 0, or CLI_FAILED after an error message, as for a full disk or a closed pipe. */
int cli_flush(const char *sub);

#endif
