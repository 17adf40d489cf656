/*
 * A 16550 serial port: the part that Linux's driver needs to print. Called from vCPU threads. The output of the guest
 * is bounded. If the log cannot be written, the guest continues.
 */
#include "vmm/serial.h"

#include <sys/eventfd.h>

enum { DATA, INTERRUPT_ENABLE, INTERRUPT_ID, LINE_CONTROL, MODEM_CONTROL, LINE_STATUS, MODEM_STATUS, SCRATCH };

#define DIVISOR_ACCESS 0x80
#define ENABLE_TRANSMIT 0x02
#define ID_NONE 0x01
#define ID_TRANSMIT 0x02
#define ID_FIFO 0xc0
#define STATUS_EMPTY 0x60 /* room to send, and nothing in progress */
#define MODEM_READY 0xb0  /* carrier, data set ready, clear to send */
#define LOOP_MODE 0x10

int serial_create(struct serial *serial, struct husk_error *err)
{
	pthread_mutex_init(&serial->lock, NULL);
	serial->log = -1;
	serial->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return serial->interrupt_fd < 0 ? husk_fail_errno(err, "cannot make the serial port's interrupt") : 0;
}

static void put_byte(struct serial *serial, uint8_t byte)
{
	if (serial->log < 0 || serial->room == 0)
		return;
	if (write(serial->log, &byte, 1) == 1)
		serial->room--;
}

static void room_again(struct serial *serial)
{
	uint64_t one = 1;

	if (!(serial->registers[INTERRUPT_ENABLE] & ENABLE_TRANSMIT))
		return;
	serial->transmit_pending = true;
	(void)!write(serial->interrupt_fd, &one, sizeof(one));
}

void serial_write(struct serial *serial, uint16_t port, uint8_t value)
{
	uint16_t index = port % SERIAL_PORTS;

	pthread_mutex_lock(&serial->lock);
	bool divisor = serial->registers[LINE_CONTROL] & DIVISOR_ACCESS;
	if (index == DATA && !divisor) {
		if (!(serial->registers[MODEM_CONTROL] & LOOP_MODE))
			put_byte(serial, value);
		room_again(serial);
	} else if (index == INTERRUPT_ENABLE && !divisor) {
		serial->registers[index] = value & 0x0f;
		room_again(serial);
	} else if (index == LINE_CONTROL || index == MODEM_CONTROL || index == SCRATCH) {
		serial->registers[index] = value;
	}
	pthread_mutex_unlock(&serial->lock);
}

static uint8_t read_register(struct serial *serial, uint16_t index)
{
	bool divisor = serial->registers[LINE_CONTROL] & DIVISOR_ACCESS;

	switch (index) {
	case DATA:
		return divisor ? 1 : 0;
	case INTERRUPT_ENABLE:
		return divisor ? 0 : serial->registers[index];
	case INTERRUPT_ID:
		if (!serial->transmit_pending)
			return ID_FIFO | ID_NONE;
		serial->transmit_pending = false;
		return ID_FIFO | ID_TRANSMIT;
	case LINE_STATUS:
		return STATUS_EMPTY;
	case MODEM_STATUS:
		/* In loop mode the outputs are read back as inputs; drivers test this. */
		if (serial->registers[MODEM_CONTROL] & LOOP_MODE) {
			uint8_t out = serial->registers[MODEM_CONTROL];

			return (uint8_t)((out & 0x0c) << 4 | (out & 0x02) << 3 | (out & 0x01) << 5);
		}
		return MODEM_READY;
	default:
		return serial->registers[index];
	}
}

uint8_t serial_read(struct serial *serial, uint16_t port)
{
	pthread_mutex_lock(&serial->lock);
	uint8_t value = read_register(serial, port % SERIAL_PORTS);
	pthread_mutex_unlock(&serial->lock);
	return value;
}
