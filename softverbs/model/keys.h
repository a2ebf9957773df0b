/* SPDX-License-Identifier: MIT
 *
 * The keys of a profile: one table, which is used to read and print files. docs/profiles.md lists them.
 */
#ifndef SOFTVERBS_MODEL_KEYS_H
#define SOFTVERBS_MODEL_KEYS_H

#include "model.h"

enum sv_key_type {
    SV_KEY_TEXT,   /* a string, shorter than `bytes` */
    SV_KEY_NUMBER, /* from `least` to `most` */
    SV_KEY_FLAG,   /* true or false */
    SV_KEY_WORD,   /* one of `words` */
    SV_KEY_WORDS,  /* an array of `words`; each sets a bit of the field */
    SV_KEY_STEPS,  /* an array of ascending numbers from `least` to `most`; another field of the profile has the array's length */
};

struct sv_word {
    const char *name; /* NULL: the end of the list */
    uint32_t value;
};

struct sv_key {
    const char *group; /* the JSON object that has the key; "": the outermost one */
    const char *name;  /* the key's name in this object */
    enum sv_key_type type;
    size_t offset, bytes; /* the place of the field in struct sv_profile */
    uint64_t least, most;
    const struct sv_word *words;
    const char *meaning;
};
extern const struct sv_key sv_keys[];
extern const size_t sv_key_count;

/* Describes a key's allowed values: "a number from 1 to 12". */
void sv_key_allowed(const struct sv_key *key, char *text, size_t bytes);

/* Returns the list of all keys, with the built-in profiles' values, for docs/profiles.md. Free it. */
char *sv_profile_table(void);

/* The built-in profiles as JSON. embed.py makes this table from ../profiles. */
struct sv_builtin_profile {
    const char *name;
    const unsigned char *json;
    size_t bytes;
};
extern const struct sv_builtin_profile sv_builtin_profiles[];
extern const size_t sv_builtin_profile_count;

#endif
