/* SPDX-License-Identifier: MIT
 *
 * The paths of this program and of the other programs of its installation.
 */
#ifndef WEFT_CLI_SELF_H
#define WEFT_CLI_SELF_H

#include <limits.h>
#include <stddef.h>

/* The path of another program of this installation. `place`: the program's path, relative to the directory of this process's program.
 * Returns -EPERM if another user could have put the file there. Other errors: the file cannot be found. */
int self_beside(const char *place, char path[PATH_MAX]);
/* Path of the command `weft`, which is used on other hosts, too. If there is a small command (front.c), this is the small command's path.
 */
const char *self_path(char *buf, size_t len);

#endif
