/* SPDX-License-Identifier: MIT
 *
 * Output of all subcommands: messages, options, tables, JSON.
 */
#include "subcommand.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void output_say(const char *sub, const char *format, va_list args)
{
    char line[2048];
    vsnprintf(line, sizeof line, format, args);
    fflush(stdout); /* keeps the order if both are the same file */
    fprintf(stderr, "softverbs%s%s: %s\n", sub[0] ? " " : "", sub, line);
}

int cli_error(const char *sub, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    output_say(sub, format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_usage(const char *sub, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    output_say(sub, format, args);
    va_end(args);
    fprintf(stderr, "See `softverbs %s%s--help`.\n", sub, sub[0] ? " " : "");
    return CLI_USAGE;
}

/* How many letters must be changed, added or removed to turn `a` into `b`. Both are cut at 31 letters. */
static unsigned output_distance(const char *a, const char *b)
{
    enum { LETTERS = 31 };
    unsigned row[LETTERS + 1];
    size_t m = strnlen(a, LETTERS), n = strnlen(b, LETTERS);
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; i <= m; i++) {
        unsigned corner = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned above = row[j], cost = corner + (a[i - 1] != b[j - 1]);
            if (above + 1 < cost)
                cost = above + 1;
            if (row[j - 1] + 1 < cost)
                cost = row[j - 1] + 1;
            row[j] = cost;
            corner = above;
        }
    }
    return row[n];
}

const char *cli_nearest(const char *word, const void *words, size_t count, size_t stride)
{
    const char *nearest = NULL;
    unsigned best = 3;
    for (size_t i = 0; i < count; i++) {
        const char *candidate;
        memcpy(&candidate, (const char *)words + i * stride, sizeof candidate);
        unsigned far = output_distance(word, candidate);
        if (*word && strncmp(word, candidate, strlen(word)) == 0)
            far = 1; /* `word` begins the candidate */
        size_t longer = strlen(candidate) > strlen(word) ? strlen(candidate) : strlen(word);
        if (far < best && far < longer) { /* '0' is no suggestion for '9': the words have no letter in common */
            best = far;
            nearest = candidate;
        }
    }
    return nearest;
}

int cli_option(const char *sub, int argc, char **argv, bool stop, const struct option *longs, bool *started)
{
    if (!*started) {
        optind = 0; /* resets getopt */
        opterr = 0;
        *started = true;
    }
    int c = getopt_long(argc, argv, stop ? "+:h" : ":h", longs, NULL);
    if (c != ':' && c != '?')
        return c;
    const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
    if (c == ':') {
        cli_usage(sub, "option '%s' needs a value", word);
        return '?';
    }
    if (strncmp(word, "--", 2) != 0 || optopt) {
        if (optopt && strncmp(word, "--", 2) == 0)
            cli_usage(sub, "option '%s' takes no value", word);
        else
            cli_usage(sub, "unknown option '-%c'", optopt);
        return '?';
    }
    size_t count = 0;
    while (longs[count].name)
        count++;
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    const char *near = cli_nearest(name, &longs[0].name, count, sizeof longs[0]);
    if (near)
        cli_usage(sub, "unknown option '--%s'; did you mean '--%s'?", name, near);
    else
        cli_usage(sub, "unknown option '--%s'", name);
    return '?';
}

struct cli_table {
    unsigned columns;
    bool broken; /* no memory for the table */
    size_t rows;
    char **cells;
};

static char **add_row(struct cli_table *t)
{
    size_t count = (t->rows + 1) * t->columns;
    char **more = realloc(t->cells, count * sizeof *more);
    if (!more) {
        t->broken = true;
        return NULL;
    }
    t->cells = more;
    return more + t->rows++ * t->columns;
}

struct cli_table *cli_table_new(unsigned columns, const char *const *titles)
{
    struct cli_table *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->columns = columns;
    cli_table_add(t, titles);
    return t;
}

void cli_table_add(struct cli_table *t, const char *const *cells)
{
    char **row = t ? add_row(t) : NULL;
    for (unsigned i = 0; row && i < t->columns; i++)
        if (!(row[i] = strdup(cells[i])))
            t->broken = true;
}

static void print_row(struct cli_table *t, size_t r, const int *width, const char *indent)
{
    fputs(indent, stdout);
    for (unsigned c = 0; c < t->columns; c++) {
        const char *cell = t->cells[r * t->columns + c];
        bool right = t->cells[c][0] == '>', last = c + 1 == t->columns;
        if (r == 0 && right)
            cell++;
        if (right)
            printf("%*s", width[c], cell);
        else
            printf("%-*s", last ? 0 : width[c], cell);
        fputs(last ? "\n" : "  ", stdout);
    }
}

int cli_table_print(const char *sub, struct cli_table *t, const char *indent)
{
    int status = 0;
    int *width = t && !t->broken ? calloc(t->columns, sizeof *width) : NULL;
    if (!width)
        status = cli_error(sub, "out of memory; end other programs");
    for (size_t r = 0; width && r < t->rows; r++)
        for (unsigned c = 0; c < t->columns; c++) {
            int w = (int)strlen(t->cells[r * t->columns + c]) - (r == 0 && t->cells[c][0] == '>');
            if (w > width[c])
                width[c] = w;
        }
    for (size_t r = 0; width && r < t->rows; r++)
        print_row(t, r, width, indent);
    for (size_t i = 0; t && i < t->rows * t->columns; i++)
        free(t->cells[i]);
    if (t)
        free(t->cells);
    free(t);
    free(width);
    return status;
}

int cli_flush(const char *sub)
{
    if (fflush(stdout) || ferror(stdout))
        return cli_error(sub, "cannot write to standard output: %s", strerror(errno));
    return 0;
}

int cli_help(const char *sub, const char *text)
{
    fputs(text, stdout);
    return cli_flush(sub);
}

int cli_json_print(const char *sub, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2)) : NULL;
    json_decref(value);
    if (!text)
        return cli_error(sub, "out of memory; end other programs");
    puts(text);
    free(text);
    return cli_flush(sub);
}
