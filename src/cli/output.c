/* SPDX-License-Identifier: MIT
 *
 * Shared by all subcommands: tables, JSON.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"

struct cli_table {
    unsigned columns, rows, room;
    char ***cells; /* [rows][columns] */
    struct cli_column column[];
};

struct cli_table *cli_table_new(const struct cli_column *columns, unsigned count)
{
    struct cli_table *t = calloc(1, sizeof *t + count * sizeof *columns);
    if (t) {
        t->columns = count;
        memcpy(t->column, columns, count * sizeof *columns);
    }
    return t;
}

static void free_row(char **row, unsigned columns)
{
    for (unsigned i = 0; row && i < columns; i++)
        free(row[i]);
    free(row);
}

int cli_table_add(struct cli_table *t, const char *const *cells)
{
    if (t->rows == t->room) {
        unsigned room = t->room ? 2 * t->room : 16;
        char ***more = realloc(t->cells, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        t->cells = more;
        t->room = room;
    }
    char **row = calloc(t->columns, sizeof *row);
    for (unsigned i = 0; row && i < t->columns; i++) {
        row[i] = strdup(cells[i]);
        if (!row[i]) {
            free_row(row, t->columns);
            row = NULL;
        }
    }
    if (!row)
        return -ENOMEM;
    t->cells[t->rows++] = row;
    return 0;
}

/* Number of columns on a terminal: counts the bytes that start a UTF-8 character. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_row(const struct cli_table *t, FILE *to, const int *widths, char *const *row)
{
    for (unsigned c = 0; c < t->columns; c++) {
        const char *cell = row ? row[c] : t->column[c].title;
        int pad = widths[c] - width_of(cell);
        if (t->column[c].right)
            fprintf(to, "%*s%s", pad, "", cell);
        else if (c + 1 < t->columns)
            fprintf(to, "%s%*s", cell, pad, "");
        else
            fprintf(to, "%s", cell); /* the last cell has no blanks behind it */
        fputs(c + 1 < t->columns ? "  " : "\n", to);
    }
}

void cli_table_print(const struct cli_table *t, FILE *to)
{
    int *widths = calloc(t->columns, sizeof *widths);
    if (!widths)
        return;
    for (unsigned c = 0; c < t->columns; c++) {
        widths[c] = width_of(t->column[c].title);
        for (unsigned r = 0; r < t->rows; r++)
            if (width_of(t->cells[r][c]) > widths[c])
                widths[c] = width_of(t->cells[r][c]);
    }
    print_row(t, to, widths, NULL);
    for (unsigned r = 0; r < t->rows; r++)
        print_row(t, to, widths, t->cells[r]);
    free(widths);
}

static void markdown_cell(const char *text, FILE *to)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', to);
        fputc(*text, to);
    }
    fputs(" |", to);
}

void cli_table_markdown(const struct cli_table *t, FILE *to)
{
    for (unsigned c = 0; c < t->columns; c++) {
        fputs(c ? " " : "| ", to);
        markdown_cell(t->column[c].title, to);
    }
    fputs("\n|", to);
    for (unsigned c = 0; c < t->columns; c++)
        fputs(t->column[c].right ? "---:|" : "---|", to);
    fputs("\n", to);
    for (unsigned r = 0; r < t->rows; r++) {
        for (unsigned c = 0; c < t->columns; c++) {
            fputs(c ? " " : "| ", to);
            markdown_cell(t->cells[r][c], to);
        }
        fputs("\n", to);
    }
}

json_t *cli_table_json(const struct cli_table *t)
{
    json_t *list = json_array();
    for (unsigned r = 0; list && r < t->rows; r++) {
        json_t *row = json_object();
        for (unsigned c = 0; row && c < t->columns; c++)
            json_object_set_new(row, t->column[c].title, json_string(t->cells[r][c]));
        json_array_append_new(list, row);
    }
    return list;
}

void cli_table_free(struct cli_table *t)
{
    if (!t)
        return;
    for (unsigned r = 0; r < t->rows; r++)
        free_row(t->cells[r], t->columns);
    free(t->cells);
    free(t);
}

int cli_table_end(const char *sub, struct cli_table *t, int rc, const char *what)
{
    if (!rc)
        cli_table_print(t, stdout);
    cli_table_free(t);
    return rc ? cli_error(sub, "no memory for the table of %s" BASE_MEMORY_HINT, what) : cli_flush(sub);
}

int cli_json_print(const char *sub, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2)) : NULL;
    json_decref(value);
    if (!text)
        return cli_error(sub, "no memory for the JSON output" BASE_MEMORY_HINT);
    puts(text);
    free(text);
    return cli_flush(sub);
}
