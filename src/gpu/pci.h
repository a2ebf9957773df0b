/* SPDX-License-Identifier: MIT
 *
 * GPUs on PCI, as the kernel shows them in sysfs: also those that no driver of theirs offers, and why not. Everything is read below a
 * folder, `root`: "" is this machine.
 */
#ifndef WEFT_GPU_PCI_H
#define WEFT_GPU_PCI_H

#include "base/base.h"
#include "weft/gpu.h"

enum { PCI_NVIDIA = 0x10de, PCI_AMD = 0x1002 };

struct pci_gpu {
    char address[16]; /* "0000:c1:00.0" */
    uint32_t vendor;
    char driver[32]; /* the kernel's; "": none */
    uint32_t generation, lanes, generation_most, lanes_most;
    bool external; /* behind a port where devices come and go, as Thunderbolt's */
};

/* One by its address. */
void gpu_pci_read(const char *root, const char *address, struct pci_gpu *out);
/* Those of NVIDIA and AMD, by address: how many, at most `room`. */
uint32_t gpu_pci_list(const char *root, struct pci_gpu *out, uint32_t room);

/* The RDMA device that is nearest to a device by the PCI tree, and how near (enum weft_gpu_distance); "" where there is none. */
void gpu_pci_nearest(const char *root, const char *address, char rdma[64], uint32_t *distance);

/* What a description of a GPU has of that. */
void gpu_pci_tell(const char *root, const struct pci_gpu *g, weft_gpu_info *out);

/* What NVIDIA's module has said last about why the device does not start: `said` is kept unless a line of the kernel's log says it. Lines
 * of other devices and lines about nothing are passed over. */
#define PCI_SAID 96u
void gpu_pci_log_line(const char *line, const char *address, char said[PCI_SAID]);
void gpu_pci_log(const char *root, const char *address, char said[PCI_SAID]);

/* Why the driver does not offer it, and what to do. `said` is the kernel's word, `cuda` why CUDA's driver cannot be used ("": it can), and
 * `visible` CUDA_VISIBLE_DEVICES or NULL. */
void gpu_pci_explain(const struct pci_gpu *g, const char *said, const char *cuda, const char *visible, weft_gpu_info *out);

#endif
