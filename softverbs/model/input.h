/* SPDX-License-Identifier: MIT
 *
 * Reading what users write: files, JSON, and error messages about their mistakes. For the model only.
 */
#ifndef SOFTVERBS_MODEL_INPUT_H
#define SOFTVERBS_MODEL_INPUT_H

#include "model.h"

#include <jansson.h>
#include <stdbool.h>

enum { SV_INPUT_MAX = 4 << 20, SV_FOUND = 64 };

/* Write the message to `why`, cut off at its size; return -error. `why` may be NULL. */
int sv_fail(struct sv_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A whole file, malloc'ed; at most SV_INPUT_MAX bytes. */
int sv_read_file(const char *path, char **text, size_t *bytes, struct sv_why *why);

/* Reads the JSON object in a text; the caller frees it with json_decref(). A repeated key is an error. */
int sv_read_object(const char *text, size_t bytes, const char *origin, json_t **object, struct sv_why *why);

/* A short description of a value, for an error message: `"many"`, `12`, `an object`. */
const char *sv_found(const json_t *value, char found[SV_FOUND]);

/* Whether a name has only letters, digits, - _ . , does not begin with . or -, and is shorter than `bytes`. */
bool sv_name_valid(const char *name, size_t bytes);

#endif
