/*
 * The serial port at 0x3f8: writes the output of the guest's kernel and agent to a file, up to a limit. There is no
 * input.
 */
#ifndef HUSK_VMM_SERIAL_H
#define HUSK_VMM_SERIAL_H

#include <pthread.h>

#include "base/base.h"

#define SERIAL_PORT 0x3f8u
#define SERIAL_PORTS 8u

struct serial {
	pthread_mutex_t lock;
	uint8_t registers[8];  /* as written: interrupt enable, line control, modem control, scratch, divisor */
	bool transmit_pending; /* the interrupt for free room is pending until it is read */
	int log;               /* -1: discarded */
	uint64_t room;         /* bytes the log may still take */
	int interrupt_fd;
};

int serial_create(struct serial *serial, struct husk_error *err);
void serial_write(struct serial *serial, uint16_t port, uint8_t value);
uint8_t serial_read(struct serial *serial, uint16_t port);

#endif
