/* SPDX-License-Identifier: MIT
 *
 * Reads and writes profiles as JSON, by the table of keys.c.
 */
#include "input.h"
#include "keys.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Access to fields by their key ---- */

static void profile_put(struct sv_profile *p, const struct sv_key *k, uint64_t value)
{
    char *at = (char *)p + k->offset;
    switch (k->bytes) {
    case 1: *(uint8_t *)at = (uint8_t)value; break;
    case 2: *(uint16_t *)(void *)at = (uint16_t)value; break;
    case 4: *(uint32_t *)(void *)at = (uint32_t)value; break;
    default: *(uint64_t *)(void *)at = value; break;
    }
}

static uint64_t profile_get(const struct sv_profile *p, const struct sv_key *k)
{
    const char *at = (const char *)p + k->offset;
    switch (k->bytes) {
    case 1: return *(const uint8_t *)at;
    case 2: return *(const uint16_t *)(const void *)at;
    case 4: return *(const uint32_t *)(const void *)at;
    default: return *(const uint64_t *)(const void *)at;
    }
}

static const struct sv_word *word_called(const struct sv_key *k, const json_t *value)
{
    for (const struct sv_word *w = k->words; json_is_string(value) && w->name; w++)
        if (strcmp(w->name, json_string_value(value)) == 0)
            return w;
    return NULL;
}

static bool number_fits(const struct sv_key *k, const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && (uint64_t)json_integer_value(value) >= k->least &&
           (uint64_t)json_integer_value(value) <= k->most;
}

static const char *profile_dot(const struct sv_key *k)
{
    return k->group[0] ? "." : "";
}

/* ---- Reading ---- */

static int profile_refuse(const struct sv_key *k, const json_t *value, const char *origin, struct sv_why *why)
{
    char allowed[160], found[SV_FOUND];
    sv_key_allowed(k, allowed, sizeof allowed);
    return sv_fail(why, EINVAL, "%s: %s%s%s is %s; it must be %s", origin, k->group, profile_dot(k), k->name, sv_found(value, found),
                   allowed);
}

static int read_text(struct sv_profile *p, const struct sv_key *k, const json_t *value)
{
    if (!json_is_string(value) || json_string_length(value) >= k->bytes)
        return -EINVAL;
    const char *s = json_string_value(value);
    for (const char *c = s; *c; c++)
        if (iscntrl((unsigned char)*c))
            return -EINVAL;
    char *at = (char *)p + k->offset;
    memset(at, 0, k->bytes);
    memcpy(at, s, json_string_length(value));
    return 0;
}

static int read_words(struct sv_profile *p, const struct sv_key *k, const json_t *value)
{
    uint32_t bits = 0;
    if (!json_is_array(value))
        return -EINVAL;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const struct sv_word *w = word_called(k, json_array_get(value, i));
        if (!w || (bits & w->value))
            return -EINVAL;
        bits |= w->value;
    }
    profile_put(p, k, bits);
    return 0;
}

static int read_steps(struct sv_profile *p, const struct sv_key *k, const json_t *value)
{
    if (!json_is_array(value) || json_array_size(value) > SV_STEPS)
        return -EINVAL;
    memset(p->depth_steps, 0, sizeof p->depth_steps);
    p->depth_step_count = (uint32_t)json_array_size(value);
    for (uint32_t i = 0; i < p->depth_step_count; i++) {
        const json_t *step = json_array_get(value, i);
        if (!number_fits(k, step))
            return -EINVAL;
        p->depth_steps[i] = (uint32_t)json_integer_value(step);
        if (i && p->depth_steps[i] <= p->depth_steps[i - 1])
            return -EINVAL;
    }
    return 0;
}

static int read_key(struct sv_profile *p, const struct sv_key *k, const json_t *value)
{
    const struct sv_word *w;
    switch (k->type) {
    case SV_KEY_TEXT: return read_text(p, k, value);
    case SV_KEY_NUMBER:
        if (!number_fits(k, value))
            return -EINVAL;
        profile_put(p, k, (uint64_t)json_integer_value(value));
        return 0;
    case SV_KEY_FLAG:
        if (!json_is_boolean(value))
            return -EINVAL;
        profile_put(p, k, json_is_true(value));
        return 0;
    case SV_KEY_WORD:
        w = word_called(k, value);
        if (!w)
            return -EINVAL;
        profile_put(p, k, w->value);
        return 0;
    case SV_KEY_WORDS: return read_words(p, k, value);
    case SV_KEY_STEPS: return read_steps(p, k, value);
    }
    return -EINVAL;
}

/* Lists the keys of a group, for the error about another key. "" is the outermost group, with the names of the groups. */
static void list_names(const char *group, char *text, size_t bytes)
{
    const char *last = "";
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < sv_key_count && n < bytes; i++) {
        const struct sv_key *k = &sv_keys[i];
        const char *name = NULL;
        if (strcmp(k->group, group) == 0)
            name = k->name;
        else if (!group[0] && strcmp(k->group, last) != 0)
            name = last = k->group;
        if (name)
            n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? ", " : "", name);
    }
}

static int profile_check_names(const json_t *object, const char *group, const char *origin, struct sv_why *why)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, name, value) {
        bool known = !group[0] && strcmp(name, "extends") == 0;
        for (size_t i = 0; i < sv_key_count && !known; i++)
            known = (strcmp(sv_keys[i].group, group) == 0 && strcmp(sv_keys[i].name, name) == 0) ||
                    (!group[0] && name[0] && strcmp(sv_keys[i].group, name) == 0);
        if (!known) {
            char names[320];
            list_names(group, names, sizeof names);
            return sv_fail(why, EINVAL, "%s: %s%s%.40s is no key of a profile; %s has %s%s", origin, group, group[0] ? "." : "", name,
                           group[0] ? group : "the outermost object", group[0] ? "" : "extends, ", names);
        }
    }
    return 0;
}

static int check_whole(const struct sv_profile *p, const char *origin, struct sv_why *why)
{
    const struct {
        const char *name, *limit;
        uint64_t value, most;
    } pairs[] = {
        {"limits.real_qp", "limits.max_qp", p->real_qp, p->max_qp},
        {"limits.real_pd", "limits.max_pd", p->real_pd, p->max_pd},
        {"limits.real_mr", "limits.max_mr", p->real_mr, p->max_mr},
        {"limits.max_sge_rd", "limits.max_sge", p->max_sge_rd, p->max_sge},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i].value > pairs[i].most)
            return sv_fail(why, EINVAL, "%s: %s is %" PRIu64 "; it must be at most %s, which is %" PRIu64, origin, pairs[i].name,
                           pairs[i].value, pairs[i].limit, pairs[i].most);

    const struct {
        const char *name, *because;
        bool set;
        int32_t error;
    } errnos[] = {
        {"limits.qp_errno", "calls beyond limits.real_qp are refused", true, p->qp_errno},
        {"limits.pd_errno", "calls beyond limits.real_pd are refused", true, p->pd_errno},
        {"limits.mr_errno", "calls beyond limits.real_mr are refused", true, p->mr_errno},
        {"limits.mr_size_errno", "calls beyond limits.real_mr_size are refused", true, p->mr_size_errno},
        {"limits.cq_errno", "calls beyond limits.max_cq are refused", true, p->cq_errno},
        {"limits.cqe_errno", "calls beyond limits.max_cqe are refused", true, p->cqe_errno},
        {"limits.message_errno", "messages beyond limits.max_message are refused", true, p->message_errno},
        {"can.transport_errno", "can.transports does not list all of them", p->transports != (SV_RC | SV_UC | SV_UD), p->transport_errno},
        {"can.operation_errno", "can.operations does not list all of them", p->operations != (SV_OP_FADD << 1) - 1, p->operation_errno},
        {"depth.overdepth_errno", "depth.overdepth is refuse", p->overdepth == SV_OVERDEPTH_REFUSE, p->overdepth_errno},
        {"data.receive_errno", "data.receive_needs_rts is true", p->receive_needs_rts, p->receive_errno},
        {"memory.huge_region_errno", "memory.huge_region is refuse", p->huge_region == SV_HUGE_REFUSE, p->huge_region_errno},
        {"memory.access_errno", "memory.full_access is true", p->full_access, p->access_errno},
        {"life.dereg_errno", "life.error_blocks_dereg is true", p->error_blocks_dereg, p->dereg_errno},
        {"life.down_pd_errno", "life.down_port_refuses_pd is true", p->down_port_refuses_pd, p->down_pd_errno},
        {"gids.bad_gid_errno", "a program can always use such a GID", true, p->bad_gid_errno},
        {"gids.unreachable_gid_errno", "gids.first_gid_unreachable is true", p->first_gid_unreachable, p->unreachable_gid_errno},
    };
    for (size_t i = 0; i < sizeof errnos / sizeof errnos[0]; i++)
        if (errnos[i].set && !errnos[i].error)
            return sv_fail(why, EINVAL, "%s: %s is 0; it must be an errno, because %s", origin, errnos[i].name, errnos[i].because);

    if (p->frame_bytes & (p->frame_bytes - 1))
        return sv_fail(why, EINVAL, "%s: depth.frame_bytes is %u; it must be 0 or a power of two", origin, p->frame_bytes);
    if (p->equal_frames && !p->frame_bytes)
        return sv_fail(
            why, EINVAL,
            "%s: data.equal_frames is true, but depth.frame_bytes is 0, so there are no frames to compare: change one of the two", origin);
    if (p->depth_step_count && !p->frame_bytes)
        return sv_fail(why, EINVAL,
                       "%s: depth.depth_steps are given, but depth.frame_bytes is 0, so there are no frames to count: set "
                       "depth.frame_bytes, or remove depth.depth_steps",
                       origin);
    if (p->depth_step_count && p->depth_steps[p->depth_step_count - 1] > p->max_qp_wr)
        return sv_fail(why, EINVAL, "%s: depth.depth_steps goes up to %u; it must stay within limits.max_qp_wr, which is %u", origin,
                       p->depth_steps[p->depth_step_count - 1], p->max_qp_wr);
    if (!p->transports || !p->operations)
        return sv_fail(why, EINVAL, "%s: can.%s is empty; it must name at least one", origin, p->transports ? "operations" : "transports");
    if (p->max_srq && (!p->max_srq_wr || !p->max_srq_sge))
        return sv_fail(why, EINVAL, "%s: limits.max_srq is %u, so limits.max_srq_wr and limits.max_srq_sge must be more than 0", origin,
                       p->max_srq);
    bool infiniband = p->link_layer == SV_LINK_INFINIBAND;
    if (infiniband && !p->lid_base)
        return sv_fail(why, EINVAL,
                       "%s: device.lid_base is 0; it must be from 1 to 255, since device.link_layer is infiniband, where "
                       "ports are addressed by LID and 0 is none",
                       origin);
    if (!infiniband && p->lid_base)
        return sv_fail(why, EINVAL, "%s: device.lid_base is %u; it must be 0, since device.link_layer is ethernet, which has no LIDs",
                       origin, p->lid_base);
    if (infiniband && p->gid_type != SV_GID_IB)
        return sv_fail(why, EINVAL, "%s: device.gid_type is of RoCE; it must be \"ib\", since device.link_layer is infiniband", origin);
    if (!sv_name_valid(p->name, sizeof p->name))
        return sv_fail(why, EINVAL, "%s: name is \"%s\"; it must be of letters, digits, - _ and ., not starting with - or .", origin,
                       p->name);
    return 0;
}

/* A pattern must contain {index} or {interface}, so that two devices cannot have the same name. */
static int check_pattern(const char *pattern, const char *origin, struct sv_why *why)
{
    bool named = false, right = true;
    for (const char *c = pattern; *c && right; c++) {
        if (strncmp(c, "{index}", 7) == 0 || strncmp(c, "{interface}", 11) == 0) {
            named = true;
            c = strchr(c, '}');
        } else {
            right = isalnum((unsigned char)*c) || (strchr("-_.", *c) && c > pattern);
        }
    }
    if (right && named)
        return 0;
    return sv_fail(why, EINVAL,
                   "%s: device.device_name is \"%s\"; it must be of letters, digits, - _ and ., with {index} or "
                   "{interface} in it",
                   origin, pattern);
}

static int load_builtin(const char *name, struct sv_profile *p, struct sv_why *why, int depth);

static int profile_parse(const char *text, size_t bytes, const char *origin, struct sv_profile *p, struct sv_why *why, int depth)
{
    json_t *root = NULL;
    int rc = sv_read_object(text, bytes, origin, &root, why);
    if (rc)
        return rc;
    memset(p, 0, sizeof *p);
    rc = profile_check_names(root, "", origin, why);
    if (rc)
        goto out;

    const json_t *base = json_object_get(root, "extends");
    char found[SV_FOUND];
    if (base && !json_is_string(base)) {
        rc = sv_fail(why, EINVAL, "%s: extends is %s; it must be the name of a built-in profile", origin, sv_found(base, found));
        goto out;
    }
    if (base) {
        /* only built-in profiles can be extended, so a longer chain is a profile that extends itself */
        rc = depth > 4 ? sv_fail(why, ELOOP, "%s: the profile extends itself: remove \"extends\", or name another profile there", origin)
                       : load_builtin(json_string_value(base), p, why, depth + 1);
        if (rc == -ENOENT) {
            char reason[sizeof why->text];
            snprintf(reason, sizeof reason, "%s", why ? why->text : "");
            rc = sv_fail(why, ENOENT, "%s: extends: %.*s", origin, 400, reason);
        }
        if (rc)
            goto out;
    }

    const char *last = "";
    const json_t *group = root;
    for (size_t i = 0; i < sv_key_count; i++) {
        const struct sv_key *k = &sv_keys[i];
        if (strcmp(k->group, last) != 0) {
            last = k->group;
            group = json_object_get(root, k->group);
            if (group && !json_is_object(group)) {
                rc = sv_fail(why, EINVAL, "%s: %s is %s; it must be an object", origin, k->group, sv_found(group, found));
                goto out;
            }
            rc = group ? profile_check_names(group, k->group, origin, why) : 0;
            if (rc)
                goto out;
        }
        const json_t *value = group ? json_object_get(group, k->name) : NULL;
        /* a profile that extends another one must have its own name, for messages */
        if (!value && (!base || strcmp(k->name, "name") == 0)) {
            rc = sv_fail(why, EINVAL, "%s: %s%s%s is missing (%s). A file without \"extends\" has all keys", origin, k->group,
                         profile_dot(k), k->name, k->meaning);
            goto out;
        }
        if (value && read_key(p, k, value)) {
            rc = profile_refuse(k, value, origin, why);
            goto out;
        }
    }
    rc = check_pattern(p->device_name, origin, why);
    if (!rc)
        rc = check_whole(p, origin, why);
out:
    json_decref(root);
    if (rc)
        memset(p, 0, sizeof *p);
    return rc;
}

int sv_profile_parse(const char *json, size_t bytes, const char *origin, struct sv_profile *p, struct sv_why *why)
{
    return profile_parse(json, bytes, origin, p, why, 0);
}

/* ---- Built-in profiles and files ---- */

static int load_builtin(const char *name, struct sv_profile *p, struct sv_why *why, int depth)
{
    for (size_t i = 0; i < sv_builtin_profile_count; i++) {
        const struct sv_builtin_profile *b = &sv_builtin_profiles[i];
        if (strcmp(b->name, name) == 0)
            return profile_parse((const char *)b->json, b->bytes, b->name, p, why, depth);
    }
    char names[128] = "";
    for (size_t i = 0, n = 0; i < sv_builtin_profile_count && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", sv_builtin_profiles[i].name);
    return sv_fail(why, ENOENT, "there is no built-in profile \"%.40s\"; there are %s", name, names);
}

int sv_profile_load(const char *name, struct sv_profile *p, struct sv_why *why)
{
    size_t n = strlen(name), bytes;
    char *text;
    if (!strchr(name, '/') && (n < 5 || strcmp(name + n - 5, ".json") != 0)) {
        int rc = load_builtin(name, p, why, 0);
        if (rc == -ENOENT && why) {
            size_t end = strlen(why->text);
            snprintf(why->text + end, sizeof why->text - end, ". A file is named by a path with a / or .json in it");
        }
        return rc;
    }
    int rc = sv_read_file(name, &text, &bytes, why);
    if (rc)
        return rc;
    rc = profile_parse(text, bytes, name, p, why, 0);
    free(text);
    return rc;
}

const char *const *sv_profile_names(void)
{
    static const char *names[16];
    /* several threads may write this, but always the same values */
    for (size_t i = 0; i < sv_builtin_profile_count && i < 15; i++)
        names[i] = sv_builtin_profiles[i].name;
    return names;
}

/* ---- Writing ---- */

static json_t *write_key(const struct sv_profile *p, const struct sv_key *k)
{
    uint64_t value = k->bytes <= 8 ? profile_get(p, k) : 0;
    json_t *array;
    switch (k->type) {
    case SV_KEY_TEXT: return json_stringn((const char *)p + k->offset, strnlen((const char *)p + k->offset, k->bytes - 1));
    case SV_KEY_NUMBER: return json_integer((json_int_t)value);
    case SV_KEY_FLAG: return json_boolean(value);
    case SV_KEY_WORD:
        for (const struct sv_word *w = k->words; w->name; w++)
            if (w->value == value)
                return json_string(w->name);
        return NULL;
    case SV_KEY_WORDS:
        array = json_array();
        for (const struct sv_word *w = k->words; array && w->name; w++)
            if (w->value & value)
                json_array_append_new(array, json_string(w->name));
        return array;
    case SV_KEY_STEPS:
        array = json_array();
        for (uint32_t i = 0; array && i < p->depth_step_count && i < SV_STEPS; i++)
            json_array_append_new(array, json_integer(p->depth_steps[i]));
        return array;
    }
    return NULL;
}

char *sv_profile_json(const struct sv_profile *p)
{
    json_t *root = json_object(), *group = root;
    const char *last = "";
    char *text = NULL;
    for (size_t i = 0; i < sv_key_count; i++) {
        const struct sv_key *k = &sv_keys[i];
        if (strcmp(k->group, last) != 0) {
            last = k->group;
            group = json_object();
            if (json_object_set_new(root, last, group))
                goto out;
        }
        if (json_object_set_new(group, k->name, write_key(p, k)))
            goto out;
    }
    text = json_dumps(root, JSON_INDENT(2));
out:
    json_decref(root);
    return text;
}

char *sv_profile_table(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    struct sv_profile *all = calloc(sv_builtin_profile_count, sizeof *all);
    int rc = out && all ? 0 : -ENOMEM;
    for (size_t i = 0; i < sv_builtin_profile_count && !rc; i++)
        rc = sv_profile_load(sv_builtin_profiles[i].name, &all[i], NULL);
    if (rc)
        goto out;
    fprintf(out, "| key | allowed values |");
    for (size_t i = 0; i < sv_builtin_profile_count; i++)
        fprintf(out, " %s |", sv_builtin_profiles[i].name);
    fprintf(out, " meaning |\n|---|---|");
    for (size_t i = 0; i < sv_builtin_profile_count; i++)
        fprintf(out, "---|");
    fprintf(out, "---|\n");
    for (size_t i = 0; i < sv_key_count; i++) {
        const struct sv_key *k = &sv_keys[i];
        char allowed[160];
        sv_key_allowed(k, allowed, sizeof allowed);
        fprintf(out, "| `%s%s%s` | %s |", k->group, profile_dot(k), k->name, allowed);
        for (size_t j = 0; j < sv_builtin_profile_count; j++) {
            json_t *value = write_key(&all[j], k);
            char *shown = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
            fprintf(out, " %s |", k->group[0] && shown ? shown : "");
            free(shown);
            json_decref(value);
        }
        fprintf(out, " %s |\n", k->meaning);
    }
out:
    if (out)
        fclose(out);
    free(all);
    if (rc) {
        free(text);
        text = NULL;
    }
    return text;
}
