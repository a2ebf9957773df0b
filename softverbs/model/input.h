/* SPDX-License-Identifier: MIT
 *
 * Reads files and JSON that users write, and makes error messages about them. Private to the model.
 */
#ifndef SOFTVERBS_MODEL_INPUT_H
#define SOFTVERBS_MODEL_INPUT_H

#include "model.h"

#include <jansson.h>
#include <stdbool.h>

enum { SV_INPUT_MAX = 4 << 20, SV_FOUND = 64 };

/* Writes the message to `why` (may be NULL), cut off at its size. Returns -error. */
int sv_fail(struct sv_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Reads a whole file of at most SV_INPUT_MAX bytes. Free *text. */
int sv_read_file(const char *path, char **text, size_t *bytes, struct sv_why *why);

/* Reads a JSON object. Repeated keys are an error. Free it with json_decref(). */
int sv_read_object(const char *text, size_t bytes, const char *origin, json_t **object, struct sv_why *why);

/* Describes a value for an error message: `"many"`, `12`, `an object`. */
const char *sv_found(const json_t *value, char found[SV_FOUND]);

/* Whether a name has only letters, digits, - _ . , does not begin with . or -, and is shorter than `bytes`. */
bool sv_name_valid(const char *name, size_t bytes);

#endif
