/* SPDX-License-Identifier: MIT
 *
 * The terminal of `weft exec --tty`: raw mode, so that each key goes to the program on the other host, and the size of the window.
 */
#ifndef WEFT_CLI_TERMINAL_H
#define WEFT_CLI_TERMINAL_H

#include <stdint.h>

/* Prepare standard input. A helper process restores the terminal's settings if this process is killed in raw mode. Call this while this
 * process has no other threads. Returns -ENOTTY if standard input is not a terminal. Sets base_error(). */
int terminal_open(void);
int terminal_raw(void);         /* returns 0, or a negative errno with an error text if the terminal is gone */
void terminal_restore(void);    /* may be called at any time */
uint32_t terminal_window(void); /* rows | columns << 16; 0: not known */
void terminal_close(void);      /* also restores the terminal; does nothing if terminal_open() was not called */

#endif
