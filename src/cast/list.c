/* SPDX-License-Identifier: MIT
 *
 * The list of files, folders and links. An entry holds one component of a path and the index of its parent folder. Every component is
 * checked when it is added, so no path in the list leads out of DEST.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cast/cast.h"

#define CHUNK (256u << 10)

bool cast_is_part(const char *name, size_t bytes)
{
    static const char begin[] = ".weft-cast-", end[] = ".part"; /* compared without regard to case, because some file systems ignore case */
    return bytes == sizeof begin - 1 + 16 + sizeof end - 1 && strncasecmp(name, begin, sizeof begin - 1) == 0 &&
           strncasecmp(name + bytes - (sizeof end - 1), end, sizeof end - 1) == 0;
}

static bool name_fits(const char *name, size_t bytes)
{
    return bytes && bytes <= CAST_NAME_MAX && !memchr(name, '/', bytes) && !memchr(name, '\0', bytes) && !(bytes == 1 && name[0] == '.') &&
           !(bytes == 2 && name[0] == '.' && name[1] == '.');
}

static const char *keep(struct cast_list *l, const char *text, size_t bytes)
{
    if (!l->chunks || CHUNK - l->chunk_used < bytes + 1) {
        char **more = realloc(l->chunk, (l->chunks + 1) * sizeof *more);
        if (more)
            l->chunk = more;
        if (!more || !(l->chunk[l->chunks] = malloc(CHUNK)))
            return NULL;
        l->chunks++;
        l->chunk_used = 0;
    }
    char *to = l->chunk[l->chunks - 1] + l->chunk_used;
    memcpy(to, text, bytes);
    to[bytes] = '\0';
    l->chunk_used += bytes + 1;
    return to;
}

static int invalid(const struct cast_list *l, const char *what)
{
    return base_fail(-EPROTO, "the list of files is invalid: entry %u %s; run the same version of weft on all hosts", l->count, what);
}

static int check(const struct cast_list *l, const struct cast_line *n, const char *name, const char *link)
{
    if (n->type == 0 || n->type >= CAST_ENTRY_TYPES || n->mode > 07777 || n->nanoseconds >= 1000000000u || n->zero)
        return invalid(l, "has an unknown type, or a mode or time that is out of range");
    if (!name_fits(name, n->name_bytes))
        return invalid(l, "has a name that is not one path component, and might lead out of the destination");
    if (cast_is_part(name, n->name_bytes))
        return invalid(l, "has a name like '.weft-cast-HASH.part', which is reserved for unfinished files");
    if (n->parent != CAST_ROOT && (n->parent >= l->count || l->entry[n->parent].type != CAST_FOLDER))
        return invalid(l, "has a parent that is not an earlier directory in the list");
    if (n->type == CAST_HARDLINK && (n->target >= l->count || l->entry[n->target].type != CAST_FILE))
        return invalid(l, "is a hard link whose target is not an earlier file in the list");
    if (n->type == CAST_SYMLINK ? !n->link_bytes || n->link_bytes > CAST_LINK_MAX || memchr(link, '\0', n->link_bytes) : n->link_bytes)
        return invalid(l, "is a symbolic link with an invalid target, or has a target although it is no symbolic link");
    if (n->size > INT64_MAX || (n->type != CAST_FILE && n->size))
        return invalid(l, "has a size of 8 EiB or more, or a size although it is no file");
    return 0;
}

int cast_list_add(struct cast_list *l, const struct cast_line *n, const char *name, const char *link)
{
    int rc = check(l, n, name, link);
    if (rc)
        return rc;
    if (l->count == CAST_ENTRIES_MAX)
        return base_fail(-E2BIG, "there are more than %u files, directories and links: use several commands", CAST_ENTRIES_MAX);
    if (l->count == l->room) {
        uint32_t room = l->room ? 2 * l->room : 256;
        struct cast_entry *more = realloc(l->entry, room * sizeof *more);
        if (!more)
            return base_fail(-ENOMEM, "no memory for a list of %u files and directories: use several commands", room);
        l->entry = more;
        l->room = room;
    }
    struct cast_entry e = {n->type, n->parent, n->mode, n->target, n->size, n->seconds, n->nanoseconds, NULL, ""};
    /* drop the set-user-ID and set-group-ID bits, because owners are not copied */
    e.mode &= e.type == CAST_FOLDER ? 01777 : 0777;
    e.name = keep(l, name, n->name_bytes);
    if (n->link_bytes)
        e.link = keep(l, link, n->link_bytes);
    if (!e.name || !e.link)
        return base_fail(-ENOMEM, "no memory for the names of %u files and directories: use several commands", l->count);
    l->entry[l->count++] = e;
    l->files += e.type == CAST_FILE;
    l->bytes += e.size;
    l->special += (e.type == CAST_FILE || e.type == CAST_FOLDER) && n->mode & 06000;
    return 0;
}

int cast_list_take(struct cast_list *l, const struct cast_record *r, const uint8_t *payload)
{
    struct cast_line n;
    memcpy(&n, payload, sizeof n);
    if (r->file != l->count || n.name_bytes > CAST_NAME_MAX || n.link_bytes > CAST_LINK_MAX ||
        r->bytes != sizeof n + n.name_bytes + n.link_bytes)
        return invalid(l, "is out of order or has the wrong length");
    const char *name = (const char *)payload + sizeof n;
    return cast_list_add(l, &n, name, name + n.name_bytes);
}

int cast_list_resize(struct cast_list *l, const struct cast_record *r, const uint8_t *payload)
{
    struct cast_line n;
    memcpy(&n, payload, sizeof n);
    if (r->file >= l->count || l->entry[r->file].type != CAST_FILE || n.type != CAST_FILE || n.size > INT64_MAX || n.mode > 0777 ||
        n.nanoseconds >= 1000000000u)
        return base_fail(-EPROTO,
                         "the final size, mode or time of the followed file is invalid; run the same version of weft on all hosts");
    struct cast_entry *e = &l->entry[r->file];
    l->bytes += n.size - e->size;
    e->size = n.size;
    e->mode = n.mode;
    e->seconds = n.seconds;
    e->nanoseconds = n.nanoseconds;
    return 0;
}

uint64_t cast_size_most(const struct cast *c, uint32_t file)
{
    return c->config.head.follow ? INT64_MAX : c->list.entry[file].size;
}

void cast_list_free(struct cast_list *l)
{
    for (uint32_t i = 0; i < l->chunks; i++)
        free(l->chunk[i]);
    free(l->chunk);
    free(l->entry);
    *l = (struct cast_list){.count = 0};
}

const char *cast_list_path(const struct cast_list *l, uint32_t index, char *out, size_t len)
{
    size_t at = len - 1;
    out[at] = '\0';
    for (uint32_t i = index; i != CAST_ROOT; i = l->entry[i].parent) {
        size_t n = strlen(l->entry[i].name);
        if (n + 1 > at)
            break;
        if (i != index)
            out[--at] = '/';
        at -= n;
        memcpy(out + at, l->entry[i].name, n);
    }
    memmove(out, out + at, len - at);
    return out;
}
