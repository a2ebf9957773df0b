/* SPDX-License-Identifier: MIT
 *
 * The command `softverbs`. There is one file for each subcommand. Each has its row in main.c's table, and its function is declared here.
 * The function gets argv with its own name in argv[0], and returns the exit status: 0, 1 for a failure, 2 for a wrong command line; `run`
 * has those of env(1).
 *
 *   main.c     finds the subcommand, and the help        output.c  messages, options, tables, JSON
 *   words.c    words into numbers, times, errno, verbs   place.c   which fabric, host, device a word means
 *   run.c up.c down.c topo.c profile.c ls.c reboot.c     fault.c   rules;  cable.c  cables and devices
 */
#ifndef SOFTVERBS_COMMAND_H
#define SOFTVERBS_COMMAND_H

#include "../fabric/shared.h"

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

int cli_run(int argc, char **argv);
int cli_up(int argc, char **argv);
int cli_topo(int argc, char **argv);
int cli_profile(int argc, char **argv);
int cli_ls(int argc, char **argv);
int cli_down(int argc, char **argv);
int cli_reboot(int argc, char **argv);
int cli_fault(int argc, char **argv);

/* ---- output.c: "softverbs SUB: what: why; remedy" on stderr ---- */
enum { CLI_FAILED = 1, CLI_USAGE = 2 };
/* Prints the message and returns CLI_FAILED. */
int cli_error(const char *sub, const char *format, ...) CLI_PRINTF(2, 3);
/* Prints the message, refers to --help, and returns CLI_USAGE. */
int cli_usage(const char *sub, const char *format, ...) CLI_PRINTF(2, 3);

/* getopt_long() with this command's messages. Returns the option's value; -1: the end; '?': a message was printed, so return CLI_USAGE.
 * With `stop`, options end at the first word that is no option; otherwise such words are moved behind the options. Set `*started` to false
 * before the first call. */
int cli_option(const char *sub, int argc, char **argv, bool stop, const struct option *longs, bool *started);
/* Returns the word that `word` probably means, or NULL. `stride`: bytes from one `const char *` to the next. */
const char *cli_nearest(const char *word, const void *words, size_t count, size_t stride);
/* Prints a help text. Returns 0, or CLI_FAILED if stdout cannot be written. */
int cli_help(const char *sub, const char *text);
/* Prints and frees a JSON value; NULL means no memory. Returns 0, or CLI_FAILED after a message. */
int cli_json_print(const char *sub, json_t *value);
int cli_flush(const char *sub);

/* A table for people. Columns are as wide as needed. Cells are copied. cli_table_print() reports a lack of memory. */
struct cli_table;
/* '>' before a title: align the column to the right. */
struct cli_table *cli_table_new(unsigned columns, const char *const *titles);
void cli_table_add(struct cli_table *, const char *const *cells);
int cli_table_print(const char *sub, struct cli_table *, const char *indent);

/* ---- words.c: 0, or -EINVAL ---- */
int cli_parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out);
int cli_parse_time(const char *text, uint64_t *ns);    /* 300ns 20us 1.5ms 2s 1m; the unit is required */
int cli_parse_chance(const char *text, uint32_t *ppm); /* 0.01, 1%, 50ppm */
int cli_parse_errno(const char *text, int32_t *out);   /* ENOMEM, 12 */
int cli_parse_verb(const char *text, uint32_t *out);   /* create_qp, ibv_create_qp */
const char *cli_errno_name(int32_t, char buffer[16]);
const char *cli_verb_name(uint32_t);
const char *cli_verbs(void); /* all verbs, for messages */
void cli_time_text(uint64_t nanoseconds, char *text, size_t bytes);
/* Makes a name that another process has written printable. */
const char *cli_clean(const char *name, size_t bytes, char *text, size_t room);

/* ---- place.c: 0, or the exit status after a message ---- */
#define CLI_SEED 1 /* the default seed of a fabric: faults are the same in each run */
/* --fabric, else $SOFTVERBS_FABRIC, else the profile's name, else "default". */
int cli_fabric_name(const char *sub, const char *option, const struct sv_profile *, const char **name);
/* Maps a fabric that is not down. `join`: needed to take locks or to write. */
int cli_attach(const char *sub, struct sf_view *, const char *name, bool join);
int cli_find_host(const char *sub, const struct sf_view *, const char *word, uint32_t *host);
/* Finds a device: HOST:DEVICE, HOST:INTERFACE, or a device's name if only one device has it. */
int cli_find_device(const char *sub, const struct sf_view *, const char *word, uint32_t *device);
/* The names of this user's fabrics, sorted. There may be none. */
int cli_fabrics(const char *sub, char ***names, size_t *count);
void cli_fabrics_free(char **names, size_t count);
int cli_profile_load(const char *sub, const char *word, struct sv_profile *);
/* Makes a model on the heap from a profile and the words of a topology. */
int cli_model(const char *sub, const char *profile, int words, char *const *word, struct sv_model **);
/* HOST:DEVICE of an entry, such as "0:rocep0". */
void cli_device_text(const struct sv_topology *, uint32_t device, char text[2 * SV_NAME]);

/* ---- fault.c: a rule as text and as JSON; `entry` is an index into fabric->faults ---- */
void cli_fault_text(const struct sf_fabric *, uint32_t entry, char *text, size_t bytes);
json_t *cli_fault_json(const struct sf_fabric *, uint32_t entry);

/* ---- linked.c: warns if the library cannot be loaded into `program` ---- */
void cli_warn_linked(const char *program);

/* ---- cable.c ---- */
int cli_join(struct sf_view *, const char *const devices[2]);
int cli_cable(const char *action, struct sf_view *, const char *device); /* `action`: pull, plug, remove, restore */

#endif
