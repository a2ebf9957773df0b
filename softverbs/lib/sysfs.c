/* SPDX-License-Identifier: MIT
 *
 * Files of /sys that libibverbs reads for programs. Those of softverbs' devices are made from the fabric; all others are read from the file
 * system.
 */
#include "lib.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* no public header declares these functions */
SV_PUBLIC const char *ibv_get_sysfs_path(void);
SV_PUBLIC int ibv_read_sysfs_file(const char *directory, const char *file, char *text, size_t bytes);

const char *ibv_get_sysfs_path(void)
{
    const char *path = getenv("SYSFS_PATH");

    return path && *path ? path : "/sys";
}

/* The directories of a device, below /sys/class/infiniband/NAME/. */
static const char *const folders[] = {
    "", "ports/", "ports/1/", "ports/1/gids/", "ports/1/gid_attrs/", "ports/1/gid_attrs/types/", "ports/1/pkeys/"};

static bool sysfs_there(uint32_t device)
{
    return !atomic_load_explicit(&sv_lib.fabric->devices[device].removed, memory_order_relaxed);
}

/* Returns the device in whose directory the path is, and the rest of the path. Returns NULL if the path is not in a directory of this
 * host's devices.
 */
static const struct sv_device_model *sysfs_model(const char *path, const char **rest)
{
    static const char root[] = "/sys/class/infiniband/";
    const struct sv_topology *topology;
    const struct sv_host_model *host;

    if (!sv_lib.joined || strncmp(path, root, sizeof root - 1))
        return NULL;
    path += sizeof root - 1;
    topology = &sv_lib.fabric->model.topology;
    host = &topology->hosts[sv_lib.host];
    for (uint32_t i = host->first_device; i < host->first_device + host->device_count && i < SV_DEVICES; i++) {
        size_t length = strnlen(topology->devices[i].name, SV_NAME);

        if (!strncmp(path, topology->devices[i].name, length) && path[length] == '/' && sysfs_there(i)) {
            *rest = path + length + 1;
            return &topology->devices[i];
        }
    }
    return NULL;
}

static int print_guid(char *text, size_t bytes, uint64_t guid)
{
    return snprintf(text, bytes, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32 & 0xffff),
                    (unsigned)(guid >> 16 & 0xffff), (unsigned)(guid & 0xffff));
}

static int print_gid(char *text, size_t bytes, const uint8_t raw[16])
{
    int length = 0;

    for (int i = 0; i < 16 && (size_t)length < bytes; i += 2)
        length += snprintf(text + length, bytes - (size_t)length, "%s%02x%02x", i ? ":" : "", raw[i], raw[i + 1]);
    return length;
}

/* Returns as snprintf() does; -1: there is no such file. */
static int sysfs_print(const struct sv_device_model *model, const char *file, char *text, size_t bytes)
{
    static const char *const types[] = {"IB/RoCE v1", "IB/RoCE v1", "RoCE v2"};
    const struct sv_profile *profile = sv_lib.profile;
    unsigned index;
    char end;

    if (!strcmp(file, "node_guid") || !strcmp(file, "sys_image_guid"))
        return print_guid(text, bytes, model->guid);
    if (!strcmp(file, "fw_ver"))
        return snprintf(text, bytes, "%s", profile->firmware);
    if (!strcmp(file, "hw_rev"))
        return snprintf(text, bytes, "%x", profile->hardware_version);
    if (!strcmp(file, "board_id") || !strcmp(file, "hca_type"))
        return snprintf(text, bytes, "softverbs-%s", profile->name);
    if (!strcmp(file, "node_desc"))
        return snprintf(text, bytes, "%s", sv_lib.fabric->model.topology.hosts[sv_lib.host].name);
    if (!strcmp(file, "node_type"))
        return snprintf(text, bytes, "1: CA");
    if (!strcmp(file, "ports/1/link_layer"))
        return snprintf(text, bytes, "%s", profile->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
    if (sscanf(file, "ports/1/pkeys/%u%c", &index, &end) == 1 && index < profile->pkeys)
        return snprintf(text, bytes, index ? "0x0000" : "0xffff");
    if (sscanf(file, "ports/1/gids/%u%c", &index, &end) == 1 && index < SV_GIDS)
        return print_gid(text, bytes, model->gids[index].raw);
    if (sscanf(file, "ports/1/gid_attrs/types/%u%c", &index, &end) == 1 && index < SV_GIDS && index < model->gid_count &&
        profile->gid_type < 3)
        return snprintf(text, bytes, "%s", types[profile->gid_type]);
    return -1;
}

int sv_sysfs_text(const char *path, char *text, size_t bytes)
{
    const char *rest;
    const struct sv_device_model *model = sysfs_model(path, &rest);

    return model ? sysfs_print(model, rest, text, bytes) : -1;
}

/* Returns the level of a directory, with or without '/' at its end. 0: the root; 1: a device; 2 and more: below it; -1: not a directory of
 * this host's devices. */
static int sysfs_directory(const char *path)
{
    static const char root[] = "/sys/class/infiniband";
    char whole[256], *end;
    const char *rest;

    if (!sv_lib.joined || snprintf(whole, sizeof whole - 1, "%s", path) >= (int)sizeof whole - 1)
        return -1;
    for (end = whole + strlen(whole); end > whole && end[-1] == '/'; end--)
        end[-1] = '\0';
    if (!strcmp(whole, root))
        return 0;
    strcpy(end, "/");
    if (!sysfs_model(whole, &rest))
        return -1;
    for (int i = 0; i < (int)(sizeof folders / sizeof *folders); i++) {
        if (!strcmp(rest, folders[i]))
            return i + 1;
    }
    return -1;
}

static int device_at(uint32_t index, char *name, size_t bytes)
{
    const struct sv_topology *topology = &sv_lib.fabric->model.topology;
    const struct sv_host_model *host = &topology->hosts[sv_lib.host];

    for (uint32_t i = host->first_device; i < host->first_device + host->device_count && i < SV_DEVICES; i++) {
        if (sysfs_there(i) && index-- == 0)
            return snprintf(name, bytes, "%.*s", SV_NAME, topology->devices[i].name);
    }
    return -1;
}

bool sv_sysfs_directory(const char *path)
{
    return sysfs_directory(path) >= 0;
}

bool sv_sysfs_entry(const char *path, uint32_t index, char *name, size_t bytes, bool *folder)
{
    static const char *const files[] = {"board_id",  "fw_ver",    "hca_type",  "hw_rev",
                                        "node_desc", "node_guid", "node_type", "sys_image_guid"};
    int at = sysfs_directory(path);
    const char *rest;

    *folder = true;
    switch (at) {
    case -1: return false;
    case 0: return device_at(index, name, bytes) >= 0;
    case 1:
        if (index == 0)
            return snprintf(name, bytes, "ports") > 0;
        *folder = false;
        return index <= sizeof files / sizeof *files && snprintf(name, bytes, "%s", files[index - 1]) > 0;
    case 2: return index == 0 && snprintf(name, bytes, "1") > 0;
    case 3: {
        static const char *const below[] = {"gids", "gid_attrs", "pkeys", "link_layer"};
        *folder = index < 3;
        return index < 4 && snprintf(name, bytes, "%s", below[index]) > 0;
    }
    case 5: return index == 0 && snprintf(name, bytes, "types") > 0;
    default: { /* files with numbers as names */
        char whole[320], text[128];
        *folder = false;
        const char *last = folders[at - 1];
        const char *device = path + sizeof "/sys/class/infiniband/" - 1;
        snprintf(name, bytes, "%u", index);
        snprintf(whole, sizeof whole, "/sys/class/infiniband/%.*s/%s%s", (int)strcspn(device, "/"), device, last, name);
        return sysfs_model(whole, &rest) && sv_sysfs_text(whole, text, sizeof text) >= 0;
    }
    }
}

bool sv_device_node(const char *name, uint32_t *number)
{
    const struct sv_host_model *host;
    char node[32];

    if (!sv_lib.joined)
        return false;
    host = &sv_lib.fabric->model.topology.hosts[sv_lib.host];
    for (uint32_t i = 0; i < host->device_count && host->first_device + i < SV_DEVICES; i++) {
        snprintf(node, sizeof node, "uverbs%u", i);
        if (!strcmp(name, node) && sysfs_there(host->first_device + i)) {
            *number = i;
            return true;
        }
    }
    return false;
}

/* Returns the length of the text without the newline at its end, or -1. */
int ibv_read_sysfs_file(const char *directory, const char *file, char *text, size_t bytes)
{
    const struct sv_device_model *model;
    const char *rest;
    char path[1024];
    ssize_t got;
    int fd, length;

    length = snprintf(path, sizeof path, "%s/%s", directory, file);
    if (length < 0 || (size_t)length >= sizeof path || !bytes) {
        errno = ENAMETOOLONG;
        return -1;
    }
    model = sysfs_model(path, &rest);
    if (model) {
        length = sysfs_print(model, rest, text, bytes);
        if (length < 0)
            errno = ENOENT;
        return length < 0 || (size_t)length < bytes ? length : (int)bytes - 1;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    got = read(fd, text, bytes);
    close(fd);
    if (got < 0)
        return -1;
    if (got > 0 && text[got - 1] == '\n')
        text[--got] = '\0';
    else if ((size_t)got < bytes)
        text[got] = '\0';
    else
        return -1;
    return (int)got;
}
