/* SPDX-License-Identifier: MIT
 *
 * GPUs on PCI, as the kernel shows them in sysfs, even if no driver offers them. All files are read below the folder `root`; "" means this
 * machine.
 */
#ifndef WEFT_GPU_PCI_H
#define WEFT_GPU_PCI_H

#include "base/base.h"
#include "weft/gpu.h"

enum { PCI_NVIDIA = 0x10de, PCI_AMD = 0x1002 };

struct pci_gpu {
    char address[16]; /* "0000:c1:00.0" */
    uint32_t vendor;
    char driver[32]; /* the kernel's driver; "": none */
    uint32_t generation, lanes, generation_most, lanes_most;
    bool external; /* behind a hot-plug port, such as Thunderbolt's */
};

/* Reads the GPU with this address. */
void gpu_pci_read(const char *root, const char *address, struct pci_gpu *out);
/* Lists the GPUs of NVIDIA and AMD, ordered by address. Returns how many, at most `room`. */
uint32_t gpu_pci_list(const char *root, struct pci_gpu *out, uint32_t room);

/* Finds the RDMA device that is nearest to a device in the PCI tree, and how near it is (enum weft_gpu_distance); "" if there is none. */
void gpu_pci_nearest(const char *root, const char *address, char rdma[64], uint32_t *distance);

/* Reads which processors are on the NUMA node of a device, as a bit set. Returns false if that is not known. */
bool gpu_pci_processors(const char *root, const char *address, uint64_t set[BASE_CPU_WORDS]);

/* Fills the fields of a GPU's description that are known from PCI. */
void gpu_pci_tell(const char *root, const struct pci_gpu *g, weft_gpu_info *out);

/* Searches the kernel's log for the last message of NVIDIA's module that says why the device does not start. If there is no such message,
 * `said` stays unchanged. */
#define PCI_SAID 96u
void gpu_pci_log_line(const char *line, const char *address, char said[PCI_SAID]);
void gpu_pci_log(const char *root, const char *address, char said[PCI_SAID]);

/* Explains why no driver offers the GPU, and what to do. `said`: the reason from the kernel's log; `cuda`: why CUDA's driver cannot be
 * used, or ""; `visible`: CUDA_VISIBLE_DEVICES, or NULL. */
void gpu_pci_explain(const struct pci_gpu *g, const char *said, const char *cuda, const char *visible, weft_gpu_info *out);

#endif
