/*
 * The table of methods: which function answers which number. uplink.c looks a method up here for every OPEN. A method that
 * is missing here is not supported. Methods of the supervisor must never be listed here.
 */
#include "agent/agent.h"

static const struct method methods[] = {
	{ .number = METHOD_EXEC, .open = exec_open },
	{ .number = METHOD_ATTACH, .open = attach_open },
	{ .number = METHOD_PROCESS_LIST, .open = process_list_open },
	{ .number = METHOD_PROCESS_SIGNAL, .answer = process_signal_answer },
	{ .number = METHOD_PROCESS_FORGET, .answer = process_forget_answer },
	{ .number = METHOD_FILE_READ, .open = file_read_open },
	{ .number = METHOD_FILE_WRITE, .open = file_write_open },
	{ .number = METHOD_FILE_STAT, .answer = file_stat_answer },
	{ .number = METHOD_FILE_LIST, .open = file_list_open },
	{ .number = METHOD_FILE_MKDIR, .answer = file_mkdir_answer },
	{ .number = METHOD_FILE_MOVE, .answer = file_move_answer },
	{ .number = METHOD_FILE_REMOVE, .open = file_remove_open },
	{ .number = METHOD_FILE_CHMOD, .answer = file_chmod_answer },
	{ .number = METHOD_TAR_READ, .open = tar_read_open },
	{ .number = METHOD_TAR_WRITE, .open = tar_write_open },
	{ .number = METHOD_WATCH, .open = watch_open },
	{ .number = METHOD_CHANGES, .open = changes_open },
	{ .number = METHOD_REPLACE, .answer = replace_answer },
	{ .number = METHOD_DIAL, .open = dial_open },
	{ .number = METHOD_STATS, .answer = stats_answer },
	{ .number = METHOD_IDENTITY, .answer = identity_answer },
	{ .number = METHOD_FREEZE, .answer = freeze_answer },
	{ .number = METHOD_THAW, .answer = thaw_answer },
	{ .number = METHOD_OOM, .answer = oom_answer },
	{ .number = METHOD_LIMITS_WATCH, .open = limits_watch_open },
	{ .number = METHOD_VOLUME, .open = volume_open },
	{ .number = METHOD_MOUNT, .answer = mount_answer },
	{ .number = METHOD_NETWORK, .answer = network_answer },
	{ .number = METHOD_LIMITS, .answer = limits_answer },
};

const struct method *method_find(int64_t number)
{
	for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
		if (methods[i].number == number)
			return &methods[i];
	}
	return NULL;
}
