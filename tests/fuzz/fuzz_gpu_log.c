/* SPDX-License-Identifier: MIT
 *
 * Any bytes as lines of the kernel's log about a GPU: the text that is taken from them must be printable.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/pci.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char said[PCI_SAID] = "";
    weft_gpu_info info = {0};
    const struct pci_gpu g = {.address = "0000:03:00.0", .vendor = PCI_NVIDIA, .driver = "nvidia", .external = size & 1};
    while (size) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t n = end ? (size_t)(end - data) : size;
        char *line = malloc(n + 1); /* allocated with exactly this length, so that a sanitizer detects reads beyond the end */
        if (line) {
            memcpy(line, data, n);
            line[n] = '\0';
            gpu_pci_log_line(line, g.address, said);
        }
        free(line);
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
    for (const char *c = said; *c; c++)
        if (*c < ' ' || *c > '~')
            abort();
    gpu_pci_explain(&g, said, "", NULL, &info);
    if (!info.why[0] || !memchr(info.why, '\0', sizeof info.why) || !memchr(info.remedy, '\0', sizeof info.remedy))
        abort();
    return 0;
}
