/* SPDX-License-Identifier: MIT
 *
 * Lists GPUs on this machine's PCI bus that no back end can use, with the reason. They cannot be opened.
 */
#include "gpu/gpu.h"
#include "gpu/pci.h"

#include <stdio.h>
#include <stdlib.h>

#define PCI_MOST 64u

static bool offered(const char *address)
{
    weft_gpu_info info;
    for (uint32_t i = 0; info = (weft_gpu_info){0}, gpu_cuda.look(i, &info); i++)
        if (strcmp(info.pci, address) == 0)
            return true;
    return false;
}

static bool unusable_look(uint32_t index, weft_gpu_info *out)
{
    struct pci_gpu all[PCI_MOST];
    uint32_t n = gpu_pci_list("", all, PCI_MOST);
    weft_gpu_info none = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct pci_gpu *g = &all[i];
        char said[PCI_SAID] = "";
        if (offered(g->address) || index--)
            continue;
        snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, g->address);
        snprintf(out->model, sizeof out->model, "%s GPU", g->vendor == PCI_AMD ? "AMD" : "NVIDIA");
        gpu_pci_tell("", g, out);
        if (strcmp(g->driver, "nvidia") == 0)
            gpu_pci_log("", g->address, said);
        gpu_pci_explain(g, said, gpu_cuda.look(0, &none) ? "" : gpu_cuda.why(), getenv("CUDA_VISIBLE_DEVICES"), out);
        return true;
    }
    return false;
}

const struct gpu_backend gpu_unusable = {.name = "", .look = unusable_look};
