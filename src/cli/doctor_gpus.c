/* SPDX-License-Identifier: MIT
 *
 * The part of weft doctor about memory of GPUs: whether an RDMA device accesses it, and if not, why.
 */
#include <ctype.h>
#include <string.h>

#include "cli/doctor_find.h"

static bool usable(const json_t *device)
{
    return json_is_true(json_object_get(device, "usable")) && strcmp(doctor_text_of(device, "transport"), "rc") == 0;
}

/* The device with which nodes register the memory of GPUs: their first rail. This is the device that a setting names or, without a setting,
 * the fastest device (verbs_device_open()). NULL: there is no such device, or it cannot read and write other nodes' memory. */
static const json_t *rc_device(const struct doctor_facts *f, const json_t *devices)
{
    char name[64];
    size_t i;
    const json_t *device, *best = NULL;
    bool named = doctor_value_of(f->text[DOCTOR_LIMITS], "device", name, sizeof name);
    json_array_foreach (devices, i, device)
        if (named ? strcmp(doctor_text_of(device, "device"), name) == 0
                  : usable(device) &&
                        (!best || json_number_value(json_object_get(device, "gbits")) > json_number_value(json_object_get(best, "gbits"))))
            best = device;
    return best && usable(best) ? best : NULL;
}

/* Whether weft could use the device of this name. */
static bool could_use(const json_t *devices, const char *name)
{
    size_t i;
    const json_t *device;
    json_array_foreach (devices, i, device)
        if (usable(device) && strcmp(doctor_text_of(device, "device"), name) == 0)
            return true;
    return false;
}

static bool set_to_no(const struct doctor_facts *f)
{
    char value[8];
    return doctor_value_of(f->text[DOCTOR_LIMITS], "gpu_rdma", value, sizeof value) && strcmp(value, "no") == 0;
}

static void judge(const struct doctor_facts *f, const json_t *gpu, const json_t *device, struct doctor_gpu *out)
{
    SAY(out->name, "%s", doctor_text_of(gpu, "name"));
    SAY(out->model, "%s", doctor_text_of(gpu, "model"));
    SAY(out->device, "%s", device ? doctor_text_of(device, "device") : "");
    out->warn = device != NULL;
    if (!device) {
        SAY(out->why, "no RDMA device of this host reads and writes other nodes' memory (transport rc)");
        SAY(out->remedy, "Use an InfiniBand or RoCE device on each host");
    } else if (set_to_no(f)) {
        SAY(out->why, "WEFT_GPU_RDMA is set to no");
        SAY(out->remedy, "Unset WEFT_GPU_RDMA");
    } else if (doctor_text_of(gpu, "no_rdma")[0]) {
        const char *remedy = doctor_text_of(gpu, "no_rdma_remedy");
        SAY(out->why, "%s", doctor_text_of(gpu, "no_rdma"));
        SAY(out->remedy, "%s", remedy[0] ? remedy : "Nothing can be done for this GPU: programs work, but large transfers are slower");
        out->remedy[0] = (char)toupper((unsigned char)out->remedy[0]);
    } else if (json_is_false(json_object_get(json_object_get(device, "traits"), "dmabuf"))) {
        SAY(out->why, "%s cannot register dmabufs, which are file descriptors of GPU memory", out->device);
        SAY(out->remedy,
            "Install rdma-core 34 or newer, and Linux 5.12 or newer; the device's driver must support ibv_reg_dmabuf_mr (mlx5 does)");
    } else {
        out->direct = true;
        out->warn = false;
    }
}

unsigned doctor_gpus(const struct doctor_facts *f, struct doctor_gpu out[DOCTOR_GPUS_MOST])
{
    const char *gpus_text = f->text[DOCTOR_GPUS], *devices_text = f->text[DOCTOR_DEVICES];
    json_t *gpus = gpus_text ? json_loads(gpus_text, 0, NULL) : NULL;
    json_t *devices = devices_text ? json_loads(devices_text, 0, NULL) : NULL, *gpu;
    const json_t *device = rc_device(f, devices);
    unsigned n = 0;
    size_t i;
    json_array_foreach (gpus, i, gpu) {
        if (n == DOCTOR_GPUS_MOST || !json_is_true(json_object_get(gpu, "usable")) || strcmp(doctor_text_of(gpu, "name"), "host") == 0)
            continue;
        memset(&out[n], 0, sizeof out[n]);
        judge(f, gpu, device, &out[n]);
        if (device && strcmp(doctor_text_of(gpu, "rdma"), out[n].device) != 0 && could_use(devices, doctor_text_of(gpu, "rdma")))
            SAY(out[n].nearest, "%s", doctor_text_of(gpu, "rdma"));
        char *texts[] = {out[n].name, out[n].model, out[n].device, out[n].nearest, out[n].why, out[n].remedy};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            doctor_plain(texts[k]);
        n++;
    }
    json_decref(devices);
    json_decref(gpus);
    return n;
}

static void check_readable(struct doctor *d)
{
    json_error_t error;
    char why[300] = "";
    size_t i;
    json_t *gpu;
    const char *text = doctor_fact(d, DOCTOR_GPUS);
    json_t *list = text ? json_loads(text, 0, &error) : NULL;
    if (text && !list)
        SAY(why, "not JSON: line %d, column %d: %.200s", error.line, error.column, error.text);
    else if (text && !json_is_array(list))
        SAY(why, "not a list of GPUs");
    json_array_foreach (list, i, gpu)
        if (!why[0] && (!json_is_string(json_object_get(gpu, "name")) || !json_is_boolean(json_object_get(gpu, "usable"))))
            SAY(why, "entry %zu of the list is not a GPU: expected \"name\", a text, and \"usable\", true or false", i + 1);
    if (why[0])
        doctor_unreadable(d, DOCTOR_GPUS, why, "Capture it again on that host: `weft gpus --json >gpus.json`, or `weft doctor --save DIR`");
    json_decref(list);
}

/* Report GPUs that could be accessed directly, but are not. All GPUs with the same reason are one finding. */
void doctor_check_staged(struct doctor *d)
{
    static const char what[] = "Data between the memory of a GPU and other hosts is copied through the host's memory";
    struct doctor_gpu all[DOCTOR_GPUS_MOST];
    check_readable(d);
    unsigned n = doctor_gpus(d->facts, all);
    for (unsigned i = 0; i < n; i++) {
        struct doctor_finding *f = NULL;
        size_t len = 0;
        for (unsigned k = i; all[i].warn && k < n; k++) {
            if (!all[k].warn || strcmp(all[k].why, all[i].why) != 0)
                continue;
            f = f ? f : doctor_add(d, "gpu-staged", GPU_STAGED, false);
            len += (size_t)snprintf(f->seen + len, sizeof f->seen - 400 - len, "%s%.15s", len ? ", " : "", all[k].name);
            len = len < sizeof f->seen - 400 ? len : sizeof f->seen - 401;
            all[k].warn = k == i;
        }
        if (!f)
            continue;
        SAY(f->what, "%s", what);
        snprintf(f->seen + len, sizeof f->seen - len, ": %.300s", all[i].why);
        SAY(f->remedy, "%s", all[i].remedy);
    }
}
